//! Standardized variables: means taken off, scales by powers of two, so that the guarantee carries
//! over exactly.

use bilip::Scaling;

use crate::error::{Result, ensure};

/// `(v − center)/scale`, column by column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standard {
    pub center: Vec<f64>,
    pub scale: Vec<f64>,
}

/// Mean and standard deviation of a column.
fn moments(values: &[f64], columns: usize, k: usize) -> (f64, f64) {
    let column = || values.iter().skip(k).step_by(columns);
    let count = column().count() as f64;
    // Scaled first, so that squares of huge numbers stay numbers.
    let largest = column()
        .fold(0.0f64, |a, v| a.max(v.abs()))
        .max(f64::MIN_POSITIVE);
    let mean = column().map(|v| v / largest).sum::<f64>() / count;
    let variance = column().map(|v| (v / largest - mean).powi(2)).sum::<f64>() / count;
    (mean * largest, variance.sqrt() * largest)
}

/// Whether values are all alike, up to what rounding may leave of them.
pub(crate) fn is_constant(column: &[f64]) -> bool {
    let (mean, deviation) = moments(column, 1, 0);
    are_alike(mean, deviation)
}

fn are_alike(mean: f64, deviation: f64) -> bool {
    deviation <= 1e-12 * mean.abs() || deviation <= 1e-30
}

impl Standard {
    /// Nothing changed.
    pub fn identity(columns: usize) -> Self {
        Standard {
            center: vec![0.0; columns],
            scale: vec![1.0; columns],
        }
    }

    /// Every column by its own mean and the power of two nearest to its standard deviation.
    ///
    /// # Errors
    /// On a column that is constant.
    pub fn of(values: &[f64], names: &[String], what: &str) -> Result<Self> {
        let columns = names.len();
        let (mut center, mut scale) = (Vec::new(), Vec::new());
        for (k, name) in names.iter().enumerate() {
            let (mean, deviation) = moments(values, columns, k);
            ensure!(
                deviation < 1e30 && mean.abs() < 1e30,
                "{what} column {name}: its numbers are too large (mean {mean:e}, deviation {deviation:e}); give it in a larger unit"
            );
            ensure!(
                !are_alike(mean, deviation),
                "{what} column {name}: its values are all alike (mean {mean:e}, deviation {deviation:e}); leave it out"
            );
            center.push(mean);
            scale.push(Scaling::<f64>::nearest_power_of_two(deviation));
        }
        Ok(Standard { center, scale })
    }

    /// The same with one factor for all columns, so that distances keep their proportions.
    pub fn uniform(mut self) -> Self {
        let mean_log = self.scale.iter().map(|s| s.log2()).sum::<f64>() / self.scale.len() as f64;
        self.scale.fill(mean_log.round().exp2());
        self
    }

    /// The same with factors that are powers of four, so that their roots are powers of two.
    pub fn powers_of_four(mut self) -> Self {
        for s in &mut self.scale {
            *s = (2.0 * (s.log2() / 2.0).round()).exp2();
        }
        self
    }

    pub fn apply(&self, values: &[f64]) -> Vec<f64> {
        let columns = self.center.len();
        values
            .iter()
            .enumerate()
            .map(|(k, v)| (v - self.center[k % columns]) / self.scale[k % columns])
            .collect()
    }

    /// `v ↦ (v − center)/scale` as a layer; `None` when it changes nothing.
    pub fn forward<T: bilip::Real>(&self) -> Result<Option<Scaling<T>>> {
        if *self == Standard::identity(self.center.len()) {
            return Ok(None);
        }
        let scale = self.scale.iter().map(|s| T::round_from(1.0 / s)).collect();
        let shift = (self.center.iter().zip(&self.scale))
            .map(|(c, s)| T::round_from(-c / s))
            .collect();
        Ok(Some(Scaling::new(scale, shift)?))
    }

    /// `v ↦ scale·v + center` as a layer; `None` when it changes nothing.
    pub fn backward<T: bilip::Real>(&self) -> Result<Option<Scaling<T>>> {
        if *self == Standard::identity(self.center.len()) {
            return Ok(None);
        }
        let narrow = |v: &[f64]| v.iter().map(|v| T::round_from(*v)).collect();
        Ok(Some(Scaling::new(narrow(&self.scale), narrow(&self.center))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_brought_to_order_one_by_powers_of_two() {
        let names = ["a".to_string(), "b".to_string()];
        let values: Vec<f64> = (0..100)
            .flat_map(|k| [300.0 + 0.01 * k as f64, 1e6 * (k % 7) as f64])
            .collect();
        let standard = Standard::of(&values, &names, "input").unwrap();
        for s in &standard.scale {
            assert_eq!(s.log2().fract(), 0.0);
        }
        let moved = standard.apply(&values);
        for k in 0..2 {
            let (mean, deviation) = moments(&moved, 2, k);
            assert!(
                mean.abs() < 1e-9 && (0.7..1.42).contains(&deviation),
                "{mean} {deviation}"
            );
        }
        assert!(Standard::of(&[1.0, 2.0, 1.0, 3.0], &names, "input").is_err());
        let layer = standard.forward::<f64>().unwrap().unwrap();
        use bilip::BiLipschitz;
        for (a, b) in layer.forward(&values).unwrap().iter().zip(&moved) {
            assert!((a - b).abs() < 1e-9);
        }
    }
}
