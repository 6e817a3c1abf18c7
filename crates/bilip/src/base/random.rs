//! Reproducible random numbers.

use faer::Mat;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::base::error::{Error, Result};

/// A reproducible source of normal numbers: the same seed gives the same numbers on every machine
/// and version.
#[derive(Clone, Debug)]
pub struct Rng {
    source: ChaCha8Rng,
    spare: Option<f64>,
}

impl Rng {
    /// A source with the given seed.
    pub fn new(seed: u64) -> Self {
        Rng {
            source: ChaCha8Rng::seed_from_u64(seed),
            spare: None,
        }
    }

    /// Uniform on [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.source.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        if let Some(value) = self.spare.take() {
            return value;
        }
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.uniform();
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }

    /// `count` standard normal numbers.
    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// A matrix of normal numbers with the given standard deviation.
    pub fn matrix(&mut self, rows: usize, cols: usize, deviation: f64) -> Mat<f64> {
        let mut matrix = Mat::zeros(rows, cols);
        for i in 0..rows {
            for j in 0..cols {
                matrix[(i, j)] = deviation * self.normal();
            }
        }
        matrix
    }

    /// A Glorot-normal matrix: standard deviation `√(2/(rows + cols))`.
    pub fn glorot(&mut self, rows: usize, cols: usize) -> Mat<f64> {
        self.matrix(rows, cols, (2.0 / (rows + cols) as f64).sqrt())
    }
}

/// Hidden widths that make a layer.
pub(crate) fn check_units(units: &[usize]) -> Result<()> {
    if units.is_empty() || units.contains(&0) {
        return Err(Error::setting(
            "units",
            format!("{units:?}"),
            "needs at least one layer, all of width at least 1",
        ));
    }
    Ok(())
}
