//! Sequences of layers: forward pass, linearization and products with the Jacobian, written once
//! for any layers.

use std::ops::Range;

use faer::Mat;

use crate::base::error::{Result, check_batch, check_finite, check_rows};
use crate::base::parallel;
use crate::base::real::Real;
use crate::certify::{LayerCertificate, Proved};
use crate::layers::bias::{Bias, RowBiases};
use crate::layers::channels::ChannelOrthogonal;
use crate::layers::conv::ConvMonLip;
use crate::layers::layer::{BLOCK_ROWS, Buffers, Direction, Evaluate, Layer};
use crate::layers::monlip::MonLip;
use crate::layers::monotone::Monotone;
use crate::layers::orthogonal::Orthogonal;
use crate::layers::scaling::Scaling;

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
    /// An orthogonal map of the channels of images.
    ChannelOrthogonal(&'a ChannelOrthogonal<T>),
    /// A monotone and Lipschitz layer on images.
    ConvMonLip(&'a ConvMonLip<T>),
}

impl<'a, T: Real> LayerRef<'a, T> {
    pub(crate) fn layer(&self) -> &'a dyn Layer<T> {
        match *self {
            LayerRef::Orthogonal(layer) => layer,
            LayerRef::MonLip(layer) => layer,
            LayerRef::Scaling(layer) => layer,
            LayerRef::ChannelOrthogonal(layer) => layer,
            LayerRef::ConvMonLip(layer) => layer,
        }
    }

    pub(crate) fn certificate(&self) -> &'a LayerCertificate {
        self.layer().proof()
    }

    pub(crate) fn bounds(&self) -> Proved {
        self.certificate().proved()
    }
}

impl<'a> LayerRef<'a, f64> {
    pub(crate) fn evaluate(&self) -> &'a dyn Evaluate {
        match *self {
            LayerRef::Orthogonal(layer) => layer,
            LayerRef::MonLip(layer) => layer,
            LayerRef::Scaling(layer) => layer,
            LayerRef::ChannelOrthogonal(layer) => layer,
            LayerRef::ConvMonLip(layer) => layer,
        }
    }

    /// The layer, if its inverse takes an iteration.
    pub(crate) fn monotone(&self) -> Option<&'a dyn Monotone> {
        match *self {
            LayerRef::MonLip(layer) => Some(layer),
            LayerRef::ConvMonLip(layer) => Some(layer),
            _ => None,
        }
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
        ChannelOrthogonal(ChannelOrthogonal<f64>),
        ConvMonLip(ConvMonLip<f64>),
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
            LayerRef::ChannelOrthogonal(l) => (*l as &dyn std::any::Any)
                .downcast_ref::<ChannelOrthogonal<f64>>()
                .map(LayerRef::ChannelOrthogonal),
            LayerRef::ConvMonLip(l) => (*l as &dyn std::any::Any)
                .downcast_ref::<ConvMonLip<f64>>()
                .map(LayerRef::ConvMonLip),
        }
    }
    if let Some(layers) = layers.iter().map(same).collect::<Option<Vec<_>>>() {
        return work(layers);
    }
    // What is computed once on the original travels with the copy.
    layers.iter().for_each(|layer| layer.layer().prepare());
    let owned: Vec<Owned> = layers
        .iter()
        .map(|layer| match layer {
            LayerRef::Orthogonal(l) => Owned::Orthogonal(l.to_f64()),
            LayerRef::MonLip(l) => Owned::MonLip(l.to_f64()),
            LayerRef::Scaling(l) => Owned::Scaling(l.to_f64()),
            LayerRef::ChannelOrthogonal(l) => Owned::ChannelOrthogonal(l.to_f64()),
            LayerRef::ConvMonLip(l) => Owned::ConvMonLip(l.to_f64()),
        })
        .collect();
    work(
        owned
            .iter()
            .map(|layer| match layer {
                Owned::Orthogonal(l) => LayerRef::Orthogonal(l),
                Owned::MonLip(l) => LayerRef::MonLip(l),
                Owned::Scaling(l) => LayerRef::Scaling(l),
                Owned::ChannelOrthogonal(l) => LayerRef::ChannelOrthogonal(l),
                Owned::ConvMonLip(l) => LayerRef::ConvMonLip(l),
            })
            .collect(),
    )
}

/// A sequence of layers with the biases that go with a batch: the layers' own, or one per row.
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
    pub(crate) fn new(layers: Vec<LayerRef<'a, T>>, biases: Option<RowBiases<T>>) -> Self {
        let n = layers.first().map_or(0, |layer| layer.layer().size());
        Stack { layers, biases, n }
    }

    /// See [`Layer::prepare`].
    pub(crate) fn prepare(&self) {
        self.layers.iter().for_each(|layer| layer.layer().prepare());
    }

    /// Rows of a block.
    pub(crate) fn block_rows(&self) -> usize {
        (self.layers.iter().map(|layer| layer.layer().block_rows()))
            .min()
            .unwrap_or(BLOCK_ROWS)
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
            None => Bias::Shared(self.layers[k].layer().own_bias()),
        }
    }

    /// `G` on the columns of a block, in place in `x`.
    pub(crate) fn forward_block(&self, x: &mut [T], workspace: &mut Workspace<T>) {
        let Workspace {
            hidden,
            columns: [scratch, _],
        } = workspace;
        if scratch.len() < x.len() {
            scratch.resize(x.len(), T::zero());
        }
        let scratch = &mut scratch[..x.len()];
        for (k, layer) in self.layers.iter().enumerate() {
            layer.layer().forward_cols(x, scratch, self.bias(k), hidden, None);
            x.copy_from_slice(scratch);
        }
    }

    pub(crate) fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        let rows = check_batch("x", x, self.n)?;
        let n = self.n;
        let parts = parallel::map_chunks(rows, self.block_rows(), |range| {
            let mut block = x[range.start * n..range.end * n].to_vec();
            self.rows(range.clone())
                .forward_block(&mut block, &mut Workspace::default());
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
        let scratch = &mut scratch[..x.len()];
        let mut slopes: Vec<Mat<T>> = (self.layers.iter())
            .map(|layer| Mat::zeros(layer.layer().slopes(), columns))
            .collect();
        for (k, layer) in self.layers.iter().enumerate() {
            let record = Some(slopes[k].as_mut());
            layer
                .layer()
                .forward_cols(x, scratch, self.bias(k), hidden, record);
            x.copy_from_slice(scratch);
        }
        slopes
    }

    /// `J w` or `Jᵀ w` in place, `directions` columns of `w` for every column the slopes were
    /// recorded for.
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
        let scratch = &mut scratch[..w.len()];
        let count = self.layers.len();
        for step in 0..count {
            let k = match direction {
                Direction::Forward => step,
                Direction::Reverse => count - 1 - step,
            };
            let layer = self.layers[k].layer();
            layer.linear_cols(slopes[k].as_ref(), w, scratch, directions, direction, hidden);
            w.copy_from_slice(scratch);
        }
    }

    pub(crate) fn product(&self, x: &[T], w: &[T], direction: Direction) -> Result<Vec<T>> {
        let n = self.n;
        let rows = check_batch("x", x, n)?;
        check_rows("tangent or cotangent", w, rows, n)?;
        let parts = parallel::map_chunks(rows, self.block_rows(), |range| {
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
        let parts = parallel::map_chunks(rows, (self.block_rows() / n).max(1), |range| {
            let stack = self.rows(range.clone());
            let mut workspace = Workspace::default();
            let mut block = x[range.start * n..range.end * n].to_vec();
            // The cotangent pass of eᵢ is row i of J, which is how it is stored.
            stack.jacobian_rows(&mut block, range.len(), Direction::Reverse, &mut workspace)
        });
        Ok(parts.concat())
    }

    /// For every column of the block, `n` columns `J eⱼ` (forward) or `Jᵀ eᵢ` (reverse); `x`
    /// becomes `G(x)`.
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
