//! Random free parameters: the usual start of training, and networks to test and measure with.

use faer::Mat;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::activation::Activation;
use crate::bilipnet::BiLipNetFree;
use crate::bounds::Bounds;
use crate::error::{Error, Result};
use crate::monlip::MonLipFree;

/// A reproducible source of normal numbers: the same seed gives the same numbers on every machine and version.
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

impl MonLipFree {
    /// Glorot-normal matrices, standard normal biases times `bias_scale`, ψ = 1.
    ///
    /// # Errors
    /// When `n`, the number of hidden layers or a width is zero.
    pub fn random(
        n: usize,
        units: &[usize],
        bounds: Bounds,
        activation: Activation,
        bias_scale: f64,
        rng: &mut Rng,
    ) -> Result<Self> {
        if n == 0 {
            return Err(Error::setting("n", 0, "must be at least 1"));
        }
        check_units(units)?;
        let m: usize = units.iter().sum();
        let mut before = 0;
        let mut fab = Vec::with_capacity(units.len());
        for &width in units {
            fab.push(rng.glorot(width + before, width));
            before = width;
        }
        let scaled = |values: Vec<f64>| values.into_iter().map(|v| bias_scale * v).collect();
        Ok(MonLipFree {
            bounds,
            activation,
            fq: rng.glorot(m, n),
            fp: None,
            fab,
            log_psi: None,
            hidden_bias: scaled(rng.normals(m)),
            output_bias: scaled(rng.normals(n)),
        })
    }
}

impl BiLipNetFree {
    /// `blocks` monotone layers of the given hidden widths between orthogonal ones, all [`MonLipFree::random`]-like,
    /// each with an equal share of the bounds.
    ///
    /// # Errors
    /// When `n`, `blocks`, the number of hidden layers or a width is zero.
    pub fn random(
        n: usize,
        units: &[usize],
        blocks: usize,
        bounds: Bounds,
        activation: Activation,
        bias_scale: f64,
        rng: &mut Rng,
    ) -> Result<Self> {
        if blocks == 0 {
            return Err(Error::setting("blocks", 0, "must be at least 1"));
        }
        let mut free = BiLipNetFree {
            bounds,
            orthogonal: Vec::new(),
            monotone: Vec::new(),
        };
        for k in 0..=blocks {
            let bias = rng.normals(n).into_iter().map(|v| bias_scale * v).collect();
            free.orthogonal.push((rng.glorot(n.max(1), n.max(1)), bias));
            if k < blocks {
                free.monotone
                    .push(MonLipFree::random(n, units, bounds, activation, bias_scale, rng)?);
            }
        }
        free.share_bounds()?;
        Ok(free)
    }
}
