//! The largest lower bound over a cell that convex combinations of cuts give, and where to cut
//! next.
//!
//! A combination of cuts is a cut; `min` of an affine function over `ε ∈ [−1, 1]ᵈ` is
//! `constant − Σ|gradientⱼ|`. One cut per round, at the minimizer of the best combination so far
//! plus the Gauss–Newton model of F around the best point so far: a proximal bundle method
//! (Kiwiel 1990), whose every step is a proof.

use super::cells::Cut;
use crate::base::real::UNIT_ROUNDOFF;
use crate::base::rounding::gamma;

/// Cuts kept for combinations.
const KEPT: usize = 12;

/// The state of one cell.
pub(super) struct Bundle {
    /// `JᵀJ` of the affine model in ε, row by row.
    model: Vec<f64>,
    cuts: Vec<Cut>,
    best: Option<Cut>,
    /// The point with the smallest value so far.
    pub(super) point: Vec<f64>,
    pub(super) value: f64,
}

impl Bundle {
    /// From the columns `∂G/∂εⱼ` of an affine model.
    pub(super) fn new<'a>(columns: impl Fn(usize) -> &'a [f64], d: usize) -> Self {
        let mut model = vec![0.0; d * d];
        for i in 0..d {
            for j in 0..d {
                let dot = columns(i).iter().zip(columns(j)).map(|(a, b)| a * b);
                model[i * d + j] = dot.sum::<f64>();
            }
        }
        Bundle {
            model,
            cuts: Vec::new(),
            best: None,
            point: vec![0.0; d],
            value: f64::INFINITY,
        }
    }

    /// The minimizer over the cell of `gradientᵀε + ½(ε − at)ᵀJᵀJ(ε − at)`, about.
    pub(super) fn model_minimizer(&self, gradient: &[f64], at: &[f64]) -> Vec<f64> {
        let d = at.len();
        let mut point = at.to_vec();
        for _ in 0..16 {
            let mut moved = 0.0f64;
            for j in 0..d {
                let row = &self.model[j * d..(j + 1) * d];
                let slope: f64 = gradient[j] + (0..d).map(|k| row[k] * (point[k] - at[k])).sum::<f64>();
                let next = match row[j] > 0.0 {
                    true => (point[j] - slope / row[j]).clamp(-1.0, 1.0),
                    false if slope == 0.0 => point[j],
                    false => -slope.signum(),
                };
                let next = if next.is_nan() { 0.0 } else { next };
                moved = moved.max((next - point[j]).abs());
                point[j] = next;
            }
            if moved < 1e-9 {
                break;
            }
        }
        point
    }

    /// Adds a cut that was made at `point`, where F has this value.
    pub(super) fn add(&mut self, cut: Cut, point: &[f64], value: f64) {
        if value < self.value {
            self.value = value;
            self.point = point.to_vec();
        }
        if cut.constant.is_nan() || cut.gradient.iter().any(|g| !g.is_finite()) {
            return;
        }
        let mut best = match self.best.take() {
            None => cut.clone(),
            Some(best) => best.combined(&cut),
        };
        if !self.cuts.is_empty() {
            for _ in 0..2 {
                for cut in &self.cuts {
                    best = best.combined(cut);
                }
                best = best.combined(&cut);
            }
        }
        if self.cuts.len() == KEPT {
            self.cuts.remove(0);
        }
        self.cuts.push(cut);
        self.best = Some(best);
    }

    /// The best lower bound of F over the cell so far.
    pub(super) fn bound(&self) -> f64 {
        self.best.as_ref().map_or(0.0, |cut| cut.bound().max(0.0))
    }

    /// Where to cut next.
    pub(super) fn next(&self) -> Vec<f64> {
        match &self.best {
            Some(cut) => self.model_minimizer(&cut.gradient, &self.point),
            None => self.point.clone(),
        }
    }
}

impl Cut {
    /// A lower bound of the cut over the cell.
    fn bound(&self) -> f64 {
        let reach: f64 = self.gradient.iter().map(|g| g.abs()).sum();
        let rounding = gamma(self.gradient.len() + 8) * (self.constant.abs() + reach);
        self.constant - reach - rounding
    }

    /// The combination with another cut that has the largest minimum over the cell.
    fn combined(&self, other: &Cut) -> Cut {
        let minimum = |share: f64| {
            let mix = |a: f64, b: f64| a + share * (b - a);
            let slopes = self.gradient.iter().zip(&other.gradient);
            mix(self.constant, other.constant) - slopes.map(|(a, b)| mix(*a, *b).abs()).sum::<f64>()
        };
        // Concave and piecewise linear in the share, with bends where a slope vanishes.
        let mut best = (0.0, minimum(0.0));
        let bends = (self.gradient.iter().zip(&other.gradient)).map(|(a, b)| a / (a - b));
        for share in bends.chain([1.0]).filter(|s| (0.0..=1.0).contains(s)) {
            let value = minimum(share);
            if value > best.1 {
                best = (share, value);
            }
        }
        let share = best.0;
        if share == 0.0 {
            return self.clone();
        }
        let mix = |a: f64, b: f64| (1.0 - share) * a + share * b;
        let sizes = |cut: &Cut| cut.constant.abs() + cut.gradient.iter().map(|g| g.abs()).sum::<f64>();
        let rounding = 8.0 * UNIT_ROUNDOFF * (sizes(self) + sizes(other));
        Cut {
            constant: mix(self.constant, other.constant) - rounding,
            gradient: (self.gradient.iter().zip(&other.gradient))
                .map(|(a, b)| mix(*a, *b))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_of_a_kink_make_a_level_cut() {
        // |ε₁ − 0.2| from its two sides.
        let left = Cut {
            constant: 0.2,
            gradient: vec![-1.0],
        };
        let right = Cut {
            constant: -0.2,
            gradient: vec![1.0],
        };
        assert!(left.bound() < -0.7 && right.bound() < -1.1);
        let level = left.combined(&right);
        assert!((-1e-14..=0.0).contains(&level.bound()), "{}", level.bound());
    }
}
