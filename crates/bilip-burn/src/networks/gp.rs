//! A feature map with a Gaussian process at its end.

use bilip::faer::Mat;
use bilip::{GpHead, Rng};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::predict::Predict;
use crate::base::{Columns, Dataset, Error, Loss, Result, numbers};
use crate::layers::{Accumulation, RandomFeatureGp, fixed, matrix};
use crate::ops;

/// A feature map with a Gaussian process at its end: `GP(G(Ax))` with a fixed matrix A, or without.
#[derive(Module, Debug)]
pub struct GpNet<B: Backend, M: Module<B>> {
    /// `[inputs, width]`, not trained.
    lift: Option<Param<Tensor<B, 2>>>,
    net: M,
    head: RandomFeatureGp<B>,
}

impl<B: Backend, M: Module<B> + Predict<B>> GpNet<B, M> {
    /// A head on a network.
    pub fn new(net: M, head: RandomFeatureGp<B>) -> Self {
        GpNet {
            lift: None,
            net,
            head,
        }
    }

    /// The same, inputs first multiplied by a fixed matrix of independent normal numbers of
    /// variance `2/(inputs + width)`: `[inputs, width]`, close to a multiple of an isometry when it
    /// is wide.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn with_random_lift(
        self,
        inputs: usize,
        width: usize,
        seed: u64,
        device: &B::Device,
    ) -> Result<Self> {
        for (name, value) in [("inputs", inputs), ("width", width)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        let deviation = (2.0 / (inputs + width) as f64).sqrt();
        let values: Vec<f64> = Rng::new(seed)
            .normals(inputs * width)
            .iter()
            .map(|v| deviation * v)
            .collect();
        Ok(GpNet {
            lift: Some(fixed(matrix(&values, [inputs, width], device))),
            ..self
        })
    }

    /// The fixed matrix in f64, `inputs × width`, where there is one.
    pub fn lift(&self) -> Option<Mat<f64>> {
        let lift = self.lift.as_ref()?.val();
        let [inputs, width] = lift.dims();
        let values = numbers(lift);
        Some(Mat::from_fn(inputs, width, |i, j| values[i * width + j]))
    }

    /// The feature map without lift and head.
    pub fn net(&self) -> &M {
        &self.net
    }

    /// What the head sees.
    ///
    /// # Shapes
    /// `[batch, inputs] → [batch, width]`
    pub fn hidden(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = match &self.lift {
            Some(lift) => ops::matmul(x, lift.val()),
            None => x,
        };
        self.net.predict(x, None)
    }

    /// What the head sees of rows, in blocks, as numbers.
    pub fn hidden_rows(&self, x: &[f64], columns: usize, device: &B::Device) -> Vec<f64> {
        in_blocks(x, columns, device, |x| self.hidden(x))
    }

    /// The feature map alone, of rows of its own inputs, in blocks, as numbers.
    pub fn mapped_rows(&self, h: &[f64], columns: usize, device: &B::Device) -> Vec<f64> {
        in_blocks(h, columns, device, |h| self.net.predict(h, None))
    }

    /// The head with its posterior given rows, as [`RandomFeatureGp::posterior`].
    ///
    /// # Errors
    /// On a ridge or momentum out of range, and when a number is not finite.
    pub fn posterior(
        &self,
        data: &Dataset,
        loss: Loss,
        ridge: f64,
        accumulation: Accumulation,
        device: &B::Device,
    ) -> Result<GpHead> {
        let h = self.hidden_rows(data.inputs(), data.columns().inputs, device);
        self.head.posterior(&h, loss, ridge, accumulation)
    }

    /// The head.
    pub fn head(&self) -> &RandomFeatureGp<B> {
        &self.head
    }
}

impl<B: Backend, M: Module<B> + Predict<B>> Predict<B> for GpNet<B, M> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.head.forward(self.hidden(x))
    }

    fn current_bounds(&self) -> Option<bilip::Bounds> {
        self.net.current_bounds()
    }

    fn columns(&self) -> Columns {
        let inputs = match &self.lift {
            Some(lift) => lift.val().dims()[0],
            None => self.net.columns().inputs,
        };
        Columns::new(inputs, self.head.outputs())
    }

    fn settle(self) -> Self {
        GpNet {
            net: self.net.settle(),
            ..self
        }
    }

    fn penalty(&self) -> Option<Tensor<B, 1>> {
        self.net.penalty()
    }
}

fn in_blocks<B: Backend>(
    x: &[f64],
    columns: usize,
    device: &B::Device,
    f: impl Fn(Tensor<B, 2>) -> Tensor<B, 2>,
) -> Vec<f64> {
    // Images are large rows, and grow on their way. Even numbers of rows suit GPUs.
    let most = ((1 << 22) / columns.max(1)).clamp(1, 2_048);
    let rows = if most > 64 { most / 64 * 64 } else { most };
    let mut found = Vec::new();
    // A device works on one block while the next one is made ready.
    let mut before = None;
    for block in x.chunks(rows * columns) {
        let this = f(matrix::<B>(block, [block.len() / columns, columns], device));
        if let Some(done) = before.replace(this) {
            found.extend(numbers(done));
        }
    }
    found.extend(before.map(numbers).unwrap_or_default());
    found
}
