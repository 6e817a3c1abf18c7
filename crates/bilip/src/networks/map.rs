//! What every bi-Lipschitz map here can do, written once for any sequence of layers.

use crate::base::bounds::Claimed;
use crate::base::error::{Error, Result, check_batch, check_finite};
use crate::base::parallel;
use crate::base::real::Real;
use crate::certify::{Certificate, Proved};
use crate::inverse::{Inverse, InverseOptions, invert};
use crate::layers::channels::ChannelOrthogonal;
use crate::layers::conv::ConvMonLip;
use crate::layers::evaluate::evaluate;
use crate::layers::layer::{Direction, Layer};
use crate::layers::monlip::MonLip;
use crate::layers::orthogonal::Orthogonal;
use crate::layers::scaling::Scaling;
use crate::layers::stack::{LayerRef, Stack, Workspace, with_f64};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A map `Rⁿ → Rⁿ` with proved bounds `μ‖Δx‖ ≤ ‖ΔG‖ ≤ ν‖Δx‖`: evaluated, differentiated, inverted.
///
/// Batches are row-major `[batch, n]` slices; a single row is a batch of one, an empty slice a
/// batch of none. Batches are evaluated in parallel over blocks of rows. This trait is sealed.
pub trait BiLipschitz<T: Real>: sealed::Sealed + Sync {
    /// The dimension `n`.
    fn dim(&self) -> usize;

    /// Proved bounds (μ, ν) of the stored weights. For weights from a file the proof is made when
    /// it is first asked for.
    fn bounds(&self) -> Proved;

    /// The bounds the network was designed for; [`bounds`](Self::bounds) equal them whenever they
    /// are proved.
    fn claim(&self) -> Claimed;

    /// The layers, in the order of application.
    fn layers(&self) -> Vec<LayerRef<'_, T>>;

    /// `G(x)` for every row of `x`, `[batch, n] → [batch, n]`.
    ///
    /// # Errors
    /// On a batch whose size is no multiple of `n` or that holds NaN or infinity.
    fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        stack(self).forward(x)
    }

    /// `J(x) dx` for every row: `[batch, n]` twice, `→ [batch, n]`.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward), and when the two batches differ in size.
    fn jvp(&self, x: &[T], dx: &[T]) -> Result<Vec<T>> {
        stack(self).product(x, dx, Direction::Forward)
    }

    /// `J(x)ᵀ w` for every row: `[batch, n]` twice, `→ [batch, n]`.
    ///
    /// # Errors
    /// As for [`jvp`](Self::jvp).
    fn vjp(&self, x: &[T], cotangent: &[T]) -> Result<Vec<T>> {
        stack(self).product(x, cotangent, Direction::Reverse)
    }

    /// The exact Jacobian at every row, `[batch, n] → [batch, n, n]`, entry `[b, i, j] =
    /// ∂G_i/∂x_j`.
    ///
    /// Where a kinked activation has no derivative, the one from the left is used. Cost: `n`
    /// forward passes.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    fn jacobian(&self, x: &[T]) -> Result<Vec<T>> {
        stack(self).jacobian(x)
    }

    /// An evaluator of single rows that allocates nothing after this call.
    fn row_evaluator(&self) -> RowEvaluator<'_, T> {
        RowEvaluator::new(stack(self))
    }

    /// The x with `G(x) = y` for every row, each with a certified error.
    ///
    /// The stored numbers are converted, exactly, to `f64`, in which everything certified is
    /// computed.
    ///
    /// # Errors
    /// On a batch of the wrong size or with NaN or infinity, and on settings out of range. A row
    /// that does not reach the tolerance is no error: its [`Status`](crate::Status) says so.
    fn inverse(&self, y: &[f64], options: &InverseOptions) -> Result<Inverse> {
        with_f64(&self.layers(), |layers| {
            invert(&Stack::new(layers, None), y, options)
        })
    }

    /// `J(x)⁻ᵀ w` for every row of `x = G⁻¹(y)`: the vector–Jacobian product of the inverse, by one
    /// transposed solve.
    ///
    /// # Errors
    /// On batches of the wrong size or with NaN or infinity.
    fn inverse_vjp(&self, x: &[f64], cotangent: &[f64]) -> Result<Vec<f64>> {
        with_f64(&self.layers(), |layers| {
            crate::inverse::inverse_vjp(&Stack::new(layers, None), x, cotangent)
        })
    }

    /// `G(x)` in f64 for every row, and for every row a proved bound on the Euclidean rounding
    /// error of the result.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    fn forward_with_error(&self, x: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        with_f64(&self.layers(), |layers| {
            let stack = Stack::new(layers, None);
            let rows = check_batch("x", x, stack.n)?;
            stack.prepare();
            let parts = parallel::map_chunks(rows, stack.block_rows().min(32), |range| {
                evaluate(&stack, &x[range.start * stack.n..range.end * stack.n])
            });
            let (mut y, mut errors) = (Vec::new(), Vec::new());
            for (part, error) in parts {
                y.extend(part);
                errors.extend(error);
            }
            Ok((y, errors))
        })
    }

    /// What has been proved of the stored numbers, layer by layer and for the whole.
    fn certificate(&self) -> Certificate {
        Certificate::from_layers(
            self.layers().iter().map(|l| l.certificate().clone()).collect(),
            self.claim(),
        )
    }

    /// Proves the bounds of the stored weights again, without regard to any certificate they came
    /// with.
    fn verify(&self) -> Certificate {
        Certificate::from_layers(
            self.layers().iter().map(|l| l.layer().prove_again()).collect(),
            self.claim(),
        )
    }
}

/// The layers of a map as a stack without biases of its own.
pub(crate) fn stack<T: Real, M: BiLipschitz<T> + ?Sized>(map: &M) -> Stack<'_, T> {
    Stack::new(map.layers(), None)
}

macro_rules! single_layers {
    ($($layer:ident),*) => {$(
        impl<T: Real> sealed::Sealed for $layer<T> {}

        impl<T: Real> BiLipschitz<T> for $layer<T> {
            fn dim(&self) -> usize {
                self.size()
            }

            fn claim(&self) -> Claimed {
                self.claimed()
            }

            fn bounds(&self) -> Proved {
                self.proof().proved()
            }

            fn layers(&self) -> Vec<LayerRef<'_, T>> {
                vec![LayerRef::$layer(self)]
            }
        }
    )*};
}

single_layers!(Orthogonal, Scaling, MonLip, ChannelOrthogonal, ConvMonLip);

/// Evaluates single rows without allocating: for control loops and other tight places.
///
/// ```
/// # use bilip::{BiLipschitz, Orthogonal, faer::Mat};
/// # let layer = Orthogonal::<f64>::from_free(Mat::<f64>::zeros(2, 2).as_ref(), &[0.0, 0.0])?;
/// let mut evaluator = layer.row_evaluator();
/// let mut x = [3.0, 4.0];
/// evaluator.forward_in_place(&mut x)?;
/// assert_eq!(x, [3.0, 4.0]);
/// # Ok::<(), bilip::Error>(())
/// ```
pub struct RowEvaluator<'a, T> {
    stack: Stack<'a, T>,
    workspace: Workspace<T>,
}

impl<'a, T: Real> RowEvaluator<'a, T> {
    fn new(stack: Stack<'a, T>) -> Self {
        let mut workspace = Workspace::default();
        // One pass over zeros sizes every buffer.
        stack.forward_block(&mut vec![T::zero(); stack.n], &mut workspace);
        RowEvaluator { stack, workspace }
    }

    /// `x ← G(x)`.
    ///
    /// # Errors
    /// When `x` has another length than `n` or holds NaN or infinity.
    pub fn forward_in_place(&mut self, x: &mut [T]) -> Result<()> {
        if x.len() != self.stack.n {
            return Err(Error::shape("x", self.stack.n, x.len()));
        }
        check_finite("x", x)?;
        self.stack.forward_block(x, &mut self.workspace);
        check_finite("result (numbers out of range)", x)
    }
}
