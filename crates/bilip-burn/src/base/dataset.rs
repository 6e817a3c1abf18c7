//! Rows of data in memory.

use bilip::Rng;

use super::{Error, Result};

/// Numbers of columns: those of a dataset, or those that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Inputs x.
    pub inputs: usize,
    /// Parameters p of partial networks; 0 of others.
    pub parameters: usize,
    /// Targets y.
    pub targets: usize,
}

impl Columns {
    /// Inputs and targets, no parameters.
    pub fn new(inputs: usize, targets: usize) -> Self {
        Columns {
            inputs,
            parameters: 0,
            targets,
        }
    }
}

impl std::fmt::Display for Columns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Columns {
            inputs,
            parameters,
            targets,
        } = self;
        write!(
            f,
            "{inputs} inputs, {parameters} parameters and {targets} targets"
        )
    }
}

/// Rows of inputs, parameters (for partial networks) and targets, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    inputs: Vec<f64>,
    parameters: Vec<f64>,
    targets: Vec<f64>,
    /// One per row; all alike if none.
    weights: Option<Vec<f64>>,
    columns: Columns,
}

impl Dataset {
    /// A table of inputs and targets.
    ///
    /// # Errors
    /// When the sizes do not give the same number of rows, there are none, or a number is not
    /// finite.
    pub fn new(inputs: Vec<f64>, n: usize, targets: Vec<f64>, t: usize) -> Result<Self> {
        Self::with_parameters(Columns::new(n, t), inputs, Vec::new(), targets)
    }

    /// A table of inputs, parameters and targets.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_parameters(
        columns: Columns,
        inputs: Vec<f64>,
        parameters: Vec<f64>,
        targets: Vec<f64>,
    ) -> Result<Self> {
        let Columns {
            inputs: n,
            parameters: p,
            targets: t,
        } = columns;
        let rows = inputs.len().checked_div(n).unwrap_or(0);
        if rows == 0
            || t == 0
            || inputs.len() != rows * n
            || targets.len() != rows * t
            || parameters.len() != rows * p
        {
            return Err(Error::setting(
                "table",
                (inputs.len(), parameters.len(), targets.len()),
                format!("numbers do not make rows of {columns}"),
            ));
        }
        for (name, values) in [
            ("inputs", &inputs),
            ("parameters", &parameters),
            ("targets", &targets),
        ] {
            if let Some(k) = values.iter().position(|v| !v.is_finite()) {
                return Err(Error::setting(
                    name,
                    values[k],
                    format!("entry {k} is not a finite number"),
                ));
            }
        }
        Ok(Dataset {
            inputs,
            parameters,
            targets,
            weights: None,
            columns,
        })
    }

    /// The same rows with weights, one per row: a loss is the weighted mean over the rows of a batch
    /// times the mean weight of that batch. They are scaled to a mean of one.
    ///
    /// # Errors
    /// When there is not one weight per row, one is negative or not finite, or all are zero.
    pub fn with_weights(mut self, mut weights: Vec<f64>) -> Result<Self> {
        let rows = self.rows();
        if weights.len() != rows {
            return Err(Error::setting(
                "weights",
                weights.len(),
                format!("there are {rows} rows"),
            ));
        }
        if let Some(bad) = weights.iter().find(|w| !(**w >= 0.0 && w.is_finite())) {
            return Err(Error::setting(
                "weights",
                *bad,
                "every weight must be a finite number that is not negative",
            ));
        }
        let mean = weights.iter().sum::<f64>() / rows as f64;
        if !(mean > 0.0 && mean.is_finite()) {
            return Err(Error::setting("weights", mean, "their mean must be positive"));
        }
        weights.iter_mut().for_each(|w| *w /= mean);
        self.weights = Some(weights);
        Ok(self)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.inputs.len() / self.columns.inputs
    }

    /// Inputs, row-major.
    pub fn inputs(&self) -> &[f64] {
        &self.inputs
    }

    /// Parameters, row-major.
    pub fn parameters(&self) -> &[f64] {
        &self.parameters
    }

    /// Targets, row-major.
    pub fn targets(&self) -> &[f64] {
        &self.targets
    }

    /// Weights of the rows, with a mean of one; `None` where all rows count alike.
    pub fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }

    /// Columns of inputs, parameters and targets.
    pub fn columns(&self) -> Columns {
        self.columns
    }

    /// Some rows, in the order given.
    pub fn select(&self, rows: &[usize]) -> Dataset {
        let pick = |data: &[f64], width: usize| -> Vec<f64> {
            rows.iter()
                .flat_map(|r| data[r * width..(r + 1) * width].iter().copied())
                .collect()
        };
        Dataset {
            inputs: pick(&self.inputs, self.columns.inputs),
            parameters: pick(&self.parameters, self.columns.parameters),
            targets: pick(&self.targets, self.columns.targets),
            weights: self.weights.as_ref().map(|w| pick(w, 1)),
            columns: self.columns,
        }
    }
}

/// A permutation of `0..rows`, reproducible (Fisher–Yates).
pub fn shuffled(rows: usize, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    for i in (1..rows).rev() {
        order.swap(i, (rng.uniform() * (i + 1) as f64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_datasets_are_errors() {
        assert!(Dataset::new(vec![1.0; 5], 2, vec![1.0; 2], 1).is_err());
        assert!(Dataset::new(vec![], 2, vec![], 1).is_err());
        assert!(Dataset::new(vec![f64::NAN, 1.0], 2, vec![1.0], 1).is_err());
        let rows = Dataset::new(vec![1.0, 2.0], 1, vec![1.0, 2.0], 1).unwrap();
        for bad in [vec![1.0], vec![1.0, -1.0], vec![1.0, f64::NAN], vec![0.0, 0.0]] {
            assert!(rows.clone().with_weights(bad).is_err());
        }
        let weighted = rows.with_weights(vec![3.0, 1.0]).unwrap();
        assert_eq!(weighted.weights(), Some(&[1.5, 0.5][..]));
        assert_eq!(weighted.select(&[1]).weights(), Some(&[0.5][..]));
    }

    #[test]
    fn shuffled_rows_are_all_rows() {
        let mut order = shuffled(100, &mut Rng::new(5));
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
