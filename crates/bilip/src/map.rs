//! What every bi-Lipschitz map here can do, written once for any sequence of layers.

use std::ops::Range;

use faer::{Mat, MatMut, MatRef};

use crate::bias::{Bias, RowBiases};
use crate::bounds::Claimed;
use crate::certificate::{Certificate, LayerCertificate, Proved};
use crate::error::{Error, Result, check_batch, check_finite, check_rows};
use crate::inverse::{Inverse, InverseOptions, invert};
use crate::monlip::{Buffers, MonLip};
use crate::orthogonal::Orthogonal;
use crate::parallel;
use crate::real::Real;
use crate::scaling::Scaling;

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A layer of a network, by reference.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LayerRef<'a, T> {
    /// An orthogonal layer.
    Orthogonal(&'a Orthogonal<T>),
    /// A monotone and Lipschitz layer.
    MonLip(&'a MonLip<T>),
    /// A change of variables.
    Scaling(&'a Scaling<T>),
}

impl<'a, T: Real> LayerRef<'a, T> {
    pub(crate) fn own_bias(&self) -> &'a [T] {
        match self {
            LayerRef::Orthogonal(layer) => layer.bias(),
            LayerRef::MonLip(layer) => layer.hidden_bias(),
            LayerRef::Scaling(layer) => layer.shift(),
        }
    }

    pub(crate) fn layer_certificate(&self) -> &'a LayerCertificate {
        match self {
            LayerRef::Orthogonal(layer) => layer.layer_certificate(),
            LayerRef::MonLip(layer) => layer.layer_certificate(),
            LayerRef::Scaling(layer) => layer.layer_certificate(),
        }
    }

    pub(crate) fn bounds(&self) -> Proved {
        self.layer_certificate().proved()
    }

    /// Computes what a pass with error bounds needs of the layer, on all cores: ahead of a parallel region, inside of
    /// which every thread would compute it for itself.
    fn prepare(&self) {
        self.layer_certificate();
        if let LayerRef::MonLip(layer) = self {
            layer.norms();
        }
    }

    fn hidden(&self) -> usize {
        match self {
            LayerRef::Orthogonal(_) | LayerRef::Scaling(_) => 0,
            LayerRef::MonLip(layer) => layer.hidden(),
        }
    }
}

/// A map `Rⁿ → Rⁿ` with proved bounds `μ‖Δx‖ ≤ ‖ΔG‖ ≤ ν‖Δx‖`: evaluated, differentiated, inverted.
///
/// Batches are row-major `[batch, n]` slices; a single row is a batch of one, an empty slice a batch of none.
/// Batches are evaluated in parallel over blocks of rows. This trait is sealed.
pub trait BiLipschitz<T: Real>: sealed::Sealed + Sync {
    /// The dimension `n`.
    fn dim(&self) -> usize;

    /// Proved bounds (μ, ν) of the stored weights. For weights from a file the proof is made when it is first asked for.
    fn bounds(&self) -> Proved;

    /// The bounds the network was designed for; [`bounds`](Self::bounds) equal them whenever they are proved.
    fn claim(&self) -> Claimed;

    /// The layers, in the order of application.
    fn layers(&self) -> Vec<LayerRef<'_, T>>;

    /// `G(x)` for every row of `x`, `[batch, n] → [batch, n]`.
    ///
    /// # Errors
    /// On a batch whose size is no multiple of `n` or that holds NaN or infinity.
    fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        Stack::of(self).forward(x)
    }

    /// `J(x) dx` for every row: `[batch, n]` twice, `→ [batch, n]`.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward), and when the two batches differ in size.
    fn jvp(&self, x: &[T], dx: &[T]) -> Result<Vec<T>> {
        Stack::of(self).product(x, dx, Direction::Forward)
    }

    /// `J(x)ᵀ w` for every row: `[batch, n]` twice, `→ [batch, n]`.
    ///
    /// # Errors
    /// As for [`jvp`](Self::jvp).
    fn vjp(&self, x: &[T], cotangent: &[T]) -> Result<Vec<T>> {
        Stack::of(self).product(x, cotangent, Direction::Reverse)
    }

    /// The exact Jacobian at every row, `[batch, n] → [batch, n, n]`, entry `[b, i, j] = ∂G_i/∂x_j`.
    ///
    /// Where a kinked activation has no derivative, the one from the left is used. Cost: `n` forward passes.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    fn jacobian(&self, x: &[T]) -> Result<Vec<T>> {
        Stack::of(self).jacobian(x)
    }

    /// An evaluator of single rows that allocates nothing after this call.
    fn row_evaluator(&self) -> RowEvaluator<'_, T> {
        RowEvaluator::new(Stack::of(self))
    }

    /// The x with `G(x) = y` for every row, each with a certified error.
    ///
    /// The stored numbers are converted, exactly, to `f64`, in which everything certified is computed.
    ///
    /// # Errors
    /// On a batch of the wrong size or with NaN or infinity, and on settings out of range. A row that does not reach
    /// the tolerance is no error: its [`Status`](crate::Status) says so.
    fn inverse(&self, y: &[f64], options: &InverseOptions) -> Result<Inverse> {
        with_f64(&self.layers(), |layers| {
            invert(&Stack::new(layers, None), y, options)
        })
    }

    /// `J(x)⁻ᵀ w` for every row of `x = G⁻¹(y)`: the vector–Jacobian product of the inverse, by one transposed solve.
    ///
    /// # Errors
    /// On batches of the wrong size or with NaN or infinity.
    fn inverse_vjp(&self, x: &[f64], cotangent: &[f64]) -> Result<Vec<f64>> {
        with_f64(&self.layers(), |layers| {
            crate::inverse::inverse_vjp(&Stack::new(layers, None), x, cotangent)
        })
    }

    /// `G(x)` in f64 for every row, and for every row a proved bound on the Euclidean rounding error of the result.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    fn forward_with_error(&self, x: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        with_f64(&self.layers(), |layers| {
            let stack = Stack::new(layers, None);
            let rows = check_batch("x", x, stack.n)?;
            stack.prepare();
            let parts = parallel::map_chunks(rows, 32, |range| {
                crate::rounding::evaluate(&stack, &x[range.start * stack.n..range.end * stack.n])
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
        Certificate::of_layers(&self.layers(), self.claim())
    }

    /// Proves the bounds of the stored numbers anew, without regard to any certificate they came with.
    fn verify(&self) -> Certificate {
        Certificate::verify_layers(&self.layers(), self.claim())
    }
}

/// Runs `work` on the layers converted to `f64`; free of cost when they are already.
pub(crate) fn with_f64<T: Real, R>(
    layers: &[LayerRef<'_, T>],
    work: impl FnOnce(Vec<LayerRef<'_, f64>>) -> R,
) -> R {
    enum Owned {
        Orthogonal(Orthogonal<f64>),
        MonLip(MonLip<f64>),
        Scaling(Scaling<f64>),
    }
    fn same<'a, T: Real>(layer: &LayerRef<'a, T>) -> Option<LayerRef<'a, f64>> {
        // A downcast through `Any`: the only safe way to notice that T is f64.
        match layer {
            LayerRef::Orthogonal(l) => (*l as &dyn std::any::Any)
                .downcast_ref::<Orthogonal<f64>>()
                .map(LayerRef::Orthogonal),
            LayerRef::MonLip(l) => (*l as &dyn std::any::Any)
                .downcast_ref::<MonLip<f64>>()
                .map(LayerRef::MonLip),
            LayerRef::Scaling(l) => (*l as &dyn std::any::Any)
                .downcast_ref::<Scaling<f64>>()
                .map(LayerRef::Scaling),
        }
    }
    if let Some(layers) = layers.iter().map(same).collect::<Option<Vec<_>>>() {
        return work(layers);
    }
    // What is computed once on the original travels with the copy.
    layers.iter().for_each(LayerRef::prepare);
    let owned: Vec<Owned> = layers
        .iter()
        .map(|layer| match layer {
            LayerRef::Orthogonal(l) => Owned::Orthogonal(l.to_f64()),
            LayerRef::MonLip(l) => Owned::MonLip(l.to_f64()),
            LayerRef::Scaling(l) => Owned::Scaling(l.to_f64()),
        })
        .collect();
    work(
        owned
            .iter()
            .map(|layer| match layer {
                Owned::Orthogonal(l) => LayerRef::Orthogonal(l),
                Owned::MonLip(l) => LayerRef::MonLip(l),
                Owned::Scaling(l) => LayerRef::Scaling(l),
            })
            .collect(),
    )
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Direction {
    Forward,
    Reverse,
}

/// Rows a block of a forward pass holds: large enough for GEMM to run at its rate, small enough that the hidden
/// state of a 256-wide layer stays in a 1 MiB second-level cache.
const BLOCK_ROWS: usize = 128;

/// A sequence of layers with the biases that go with a batch: the layers' own, or one a row.
pub(crate) struct Stack<'a, T> {
    pub(crate) layers: Vec<LayerRef<'a, T>>,
    pub(crate) biases: Option<RowBiases<T>>,
    pub(crate) n: usize,
}

/// Buffers of one thread's passes through a stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workspace<T> {
    hidden: Buffers<T>,
    columns: [Vec<T>; 2],
}

impl<'a, T: Real> Stack<'a, T> {
    pub(crate) fn of<M: BiLipschitz<T> + ?Sized>(map: &'a M) -> Self {
        Stack {
            layers: map.layers(),
            biases: None,
            n: map.dim(),
        }
    }

    pub(crate) fn new(layers: Vec<LayerRef<'a, T>>, biases: Option<RowBiases<T>>) -> Self {
        let n = layers.first().map_or(0, |layer| match layer {
            LayerRef::Orthogonal(l) => l.dim(),
            LayerRef::MonLip(l) => l.dim(),
            LayerRef::Scaling(l) => l.dim(),
        });
        Stack { layers, biases, n }
    }

    /// See [`LayerRef::prepare`].
    pub(crate) fn prepare(&self) {
        self.layers.iter().for_each(LayerRef::prepare);
    }

    /// The same layers for some rows of the batch.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Stack<'a, T> {
        Stack {
            layers: self.layers.clone(),
            biases: self.biases.as_ref().map(|b| b.slice(rows)),
            n: self.n,
        }
    }

    pub(crate) fn bias(&self, k: usize) -> Bias<'_, T> {
        match &self.biases {
            Some(biases) => biases.layer(k),
            None => Bias::Shared(self.layers[k].own_bias()),
        }
    }

    /// `G` on the columns of a block, in place in `x`.
    pub(crate) fn forward_block(&self, x: &mut [T], columns: usize, workspace: &mut Workspace<T>) {
        let Workspace {
            hidden,
            columns: [scratch, _],
        } = workspace;
        if scratch.len() < x.len() {
            scratch.resize(x.len(), T::zero());
        }
        for (k, layer) in self.layers.iter().enumerate() {
            {
                let from = MatRef::from_column_major_slice(&*x, self.n, columns);
                let to = MatMut::from_column_major_slice_mut(&mut scratch[..x.len()], self.n, columns);
                match layer {
                    LayerRef::Orthogonal(l) => l.forward_cols(from, to, self.bias(k)),
                    LayerRef::MonLip(l) => l.forward_cols(from, to, self.bias(k), hidden, Default::default()),
                    LayerRef::Scaling(l) => l.forward_cols(from, to, self.bias(k)),
                }
            }
            x.copy_from_slice(&scratch[..x.len()]);
        }
    }

    pub(crate) fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        let rows = check_batch("x", x, self.n)?;
        let n = self.n;
        let parts = parallel::map_chunks(rows, BLOCK_ROWS, |range| {
            let mut block = x[range.start * n..range.end * n].to_vec();
            self.rows(range.clone())
                .forward_block(&mut block, range.len(), &mut Workspace::default());
            block
        });
        let mut y = Vec::with_capacity(x.len());
        for part in parts {
            y.extend_from_slice(&part);
        }
        check_finite("result (numbers out of range)", &y)?;
        Ok(y)
    }

    /// Forward pass that keeps the slopes of every layer; `x` becomes `G(x)`.
    pub(crate) fn linearize(&self, x: &mut [T], columns: usize, workspace: &mut Workspace<T>) -> Vec<Mat<T>> {
        let Workspace {
            hidden,
            columns: [scratch, _],
        } = workspace;
        if scratch.len() < x.len() {
            scratch.resize(x.len(), T::zero());
        }
        let mut slopes: Vec<Mat<T>> = self
            .layers
            .iter()
            .map(|layer| Mat::zeros(layer.hidden(), columns))
            .collect();
        for (k, layer) in self.layers.iter().enumerate() {
            {
                let from = MatRef::from_column_major_slice(&*x, self.n, columns);
                let to = MatMut::from_column_major_slice_mut(&mut scratch[..x.len()], self.n, columns);
                match layer {
                    LayerRef::Orthogonal(l) => l.forward_cols(from, to, self.bias(k)),
                    LayerRef::MonLip(l) => l.forward_cols(
                        from,
                        to,
                        self.bias(k),
                        hidden,
                        crate::monlip::Record {
                            slopes: Some(slopes[k].as_mut()),
                            hidden_norm2: None,
                        },
                    ),
                    LayerRef::Scaling(l) => l.forward_cols(from, to, self.bias(k)),
                }
            }
            x.copy_from_slice(&scratch[..x.len()]);
        }
        slopes
    }

    /// `J w` or `Jᵀ w` in place, `directions` columns of `w` for every column the slopes were recorded for.
    pub(crate) fn apply_linear(
        &self,
        slopes: &[Mat<T>],
        w: &mut [T],
        directions: usize,
        direction: Direction,
        workspace: &mut Workspace<T>,
    ) {
        let Workspace {
            hidden,
            columns: [_, scratch],
        } = workspace;
        if scratch.len() < w.len() {
            scratch.resize(w.len(), T::zero());
        }
        let columns = w.len() / self.n;
        let forward = direction == Direction::Forward;
        for step in 0..self.layers.len() {
            let k = if forward {
                step
            } else {
                self.layers.len() - 1 - step
            };
            {
                let from = MatRef::from_column_major_slice(&*w, self.n, columns);
                let to = MatMut::from_column_major_slice_mut(&mut scratch[..w.len()], self.n, columns);
                match &self.layers[k] {
                    LayerRef::Orthogonal(l) => l.linear_cols(from, to, !forward),
                    LayerRef::Scaling(l) => l.linear_cols(from, to),
                    LayerRef::MonLip(l) if forward => {
                        l.jvp_cols(slopes[k].as_ref(), from, to, directions, hidden)
                    }
                    LayerRef::MonLip(l) => l.vjp_cols(slopes[k].as_ref(), from, to, directions, hidden),
                }
            }
            w.copy_from_slice(&scratch[..w.len()]);
        }
    }

    pub(crate) fn product(&self, x: &[T], w: &[T], direction: Direction) -> Result<Vec<T>> {
        let n = self.n;
        let rows = check_batch("x", x, n)?;
        check_rows("tangent or cotangent", w, rows, n)?;
        let parts = parallel::map_chunks(rows, BLOCK_ROWS, |range| {
            let stack = self.rows(range.clone());
            let mut workspace = Workspace::default();
            let slice = range.start * n..range.end * n;
            let mut block = x[slice.clone()].to_vec();
            let slopes = stack.linearize(&mut block, range.len(), &mut workspace);
            block.copy_from_slice(&w[slice]);
            stack.apply_linear(&slopes, &mut block, 1, direction, &mut workspace);
            block
        });
        Ok(parts.concat())
    }

    pub(crate) fn jacobian(&self, x: &[T]) -> Result<Vec<T>> {
        let n = self.n;
        let rows = check_batch("x", x, n)?;
        let parts = parallel::map_chunks(rows, (BLOCK_ROWS / n).max(1), |range| {
            let stack = self.rows(range.clone());
            let mut workspace = Workspace::default();
            let mut block = x[range.start * n..range.end * n].to_vec();
            // The cotangent pass of eᵢ is row i of J, which is how it is stored.
            stack.jacobian_rows(&mut block, range.len(), Direction::Reverse, &mut workspace)
        });
        Ok(parts.concat())
    }

    /// For every column of the block, `n` columns `J eⱼ` (forward) or `Jᵀ eᵢ` (reverse); `x` becomes `G(x)`.
    pub(crate) fn jacobian_rows(
        &self,
        x: &mut [T],
        columns: usize,
        direction: Direction,
        workspace: &mut Workspace<T>,
    ) -> Vec<T> {
        let n = self.n;
        let slopes = self.linearize(x, columns, workspace);
        let mut basis = vec![T::zero(); columns * n * n];
        for j in 0..columns {
            for i in 0..n {
                basis[j * n * n + i * n + i] = T::one();
            }
        }
        self.apply_linear(&slopes, &mut basis, n, direction, workspace);
        basis
    }
}

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
        stack.forward_block(&mut vec![T::zero(); stack.n], 1, &mut workspace);
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
        self.stack.forward_block(x, 1, &mut self.workspace);
        check_finite("result (numbers out of range)", x)
    }
}
