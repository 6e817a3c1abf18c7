//! What a pass through a network asks of a layer, whatever its kind.
//!
//! A block of rows is column-major: `n` numbers per row, one row after the other.

use faer::{MatMut, MatRef};

use crate::base::double::Pair;
use crate::base::real::Real;
use crate::certify::LayerCertificate;
use crate::layers::bias::Bias;

/// Forward: `J w`; reverse: `Jᵀ w`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Direction {
    Forward,
    Reverse,
}

/// Reusable hidden-state buffers; they grow to the largest block seen and are then never
/// reallocated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers<T> {
    pub(crate) current: Vec<T>,
    pub(crate) previous: Vec<T>,
    /// Per column: `‖ẑ‖²` over all hidden layers of the last forward pass, where the layer has any.
    pub(crate) hidden_norm2: Vec<f64>,
}

impl<T: Real> Buffers<T> {
    pub(crate) fn ensure(&mut self, len: usize) {
        if self.current.len() < len {
            self.current.resize(len, T::zero());
            self.previous.resize(len, T::zero());
        }
    }
}

/// Rows of a block of a forward pass: large enough for GEMM to run at its rate, small enough that
/// the hidden state of a 256-wide layer stays in a 1 MiB second-level cache.
pub(crate) const BLOCK_ROWS: usize = 128;

/// A layer `Rⁿ → Rⁿ`.
pub(crate) trait Layer<T: Real>: Sync {
    /// The dimension n.
    fn size(&self) -> usize;

    /// Slopes per row that a forward pass can record.
    fn slopes(&self) -> usize {
        0
    }

    /// The bias that a partial network replaces row by row.
    fn own_bias(&self) -> &[T];

    /// What is proved; the proof is made when it is first asked for.
    fn proof(&self) -> &LayerCertificate;

    /// The proof, made again.
    fn prove_again(&self) -> LayerCertificate;

    /// Computes what a pass with error bounds needs of the layer, on all cores: ahead of a parallel
    /// region, inside of which every thread would compute it for itself.
    fn prepare(&self) {
        self.proof();
    }

    /// Rows of a block.
    fn block_rows(&self) -> usize {
        BLOCK_ROWS
    }

    /// `y ← F(x)`; the slopes of the activation, one column per row, where they are asked for.
    fn forward_cols(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        buffers: &mut Buffers<T>,
        slopes: Option<MatMut<'_, T>>,
    );

    /// `out ← J w` or `Jᵀ w`, `directions` columns of `w` for every column of `slopes`.
    fn linear_cols(
        &self,
        slopes: MatRef<'_, T>,
        w: &[T],
        out: &mut [T],
        directions: usize,
        direction: Direction,
        buffers: &mut Buffers<T>,
    );
}

/// A layer in f64 that knows how exactly it is evaluated.
pub(crate) trait Evaluate: Layer<f64> {
    /// A bound on the Euclidean rounding error of row `j` of the last [`Layer::forward_cols`],
    /// which went from `x` to `y`.
    ///
    /// `bias_error` bounds the Euclidean error of the row's bias.
    fn rounding_error(&self, row: EvaluatedRow<'_>) -> f64;

    /// `F(x)` in double-double arithmetic, and a bound on its error.
    fn evaluate_accurately(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64);
}

/// A row that has been evaluated.
pub(crate) struct EvaluatedRow<'a> {
    pub(crate) x: &'a [f64],
    pub(crate) y: &'a [f64],
    pub(crate) bias: &'a [f64],
    pub(crate) bias_error: f64,
    /// `‖ẑ‖²`, for layers with hidden units.
    pub(crate) hidden_norm2: f64,
}
