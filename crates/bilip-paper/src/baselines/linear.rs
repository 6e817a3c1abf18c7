//! Linear layers of norm at most one.

use bilip::faer::{Mat, MatRef};
use bilip::{Rng, spectral_norm_bound};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use bilip_burn::ops::matmul;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a weight is divided by so that its norm is at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Normalization {
    /// `max(1, ‖W‖₂)`, the norm from a power iteration carried from step to step.
    Spectral,
    /// `‖W‖_F`, as some published code does under the name of the former: `‖W‖₂ ≤ 1` holds, with
    /// much to spare.
    Frobenius,
}

/// `x ↦ x W/norm + b`.
#[derive(Module, Debug)]
pub struct NormalizedLinear<B: Backend> {
    /// `[inputs, outputs]`.
    weight: Param<Tensor<B, 2>>,
    /// `[outputs]`.
    bias: Param<Tensor<B, 1>>,
    /// The left singular vector as known so far, `[1, inputs]`; not trained.
    vector: Param<Tensor<B, 2>>,
    #[module(skip)]
    normalization: Normalization,
}

impl<B: Backend> NormalizedLinear<B> {
    /// A layer with Glorot-normal weights and zero bias, its singular vector found to high
    /// accuracy.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn new(
        [inputs, outputs]: [usize; 2],
        normalization: Normalization,
        seed: u64,
        device: &B::Device,
        dtype: DType,
    ) -> Result<Self> {
        if inputs == 0 || outputs == 0 {
            return Err(Error::config("linear layer", "needs inputs and outputs"));
        }
        let mut rng = Rng::new(seed);
        let weight = rng.glorot(inputs, outputs);
        let matrix = |values: Vec<f64>, shape: [usize; 2]| {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Tensor::<B, 2>::from_data(data, (device, dtype))
        };
        let values = (0..inputs * outputs)
            .map(|k| weight[(k / outputs, k % outputs)])
            .collect();
        let start = matrix(rng.normals(inputs), [1, inputs]);
        let mut layer = NormalizedLinear {
            weight: Param::from_tensor(matrix(values, [inputs, outputs])),
            bias: Param::from_tensor(Tensor::zeros([outputs], (device, dtype))),
            vector: Param::from_tensor(start).set_require_grad(false),
            normalization,
        };
        for _ in 0..100 {
            layer = layer.settle();
        }
        Ok(layer)
    }

    /// Number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.val().dims()[1]
    }

    /// `x W/norm + b`.
    ///
    /// # Shapes
    /// `[batch, inputs] → [batch, outputs]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let weight = self.weight.val();
        let norm = match self.normalization {
            Normalization::Frobenius => (weight.clone() * weight.clone())
                .sum()
                .add_scalar(1e-30)
                .sqrt()
                .unsqueeze(),
            Normalization::Spectral => {
                // σ = u W vᵀ with both vectors held fixed: the derivative of a simple singular
                // value.
                let row = matmul(self.vector.val(), weight.clone());
                let v = unit(row.clone().detach());
                (row * v).sum_dim(1).clamp_min(1.0)
            }
        };
        matmul(x, weight / norm) + self.bias.val().unsqueeze()
    }

    /// The layer after one more step of the power iteration.
    pub(crate) fn settle(self) -> Self {
        if self.normalization == Normalization::Frobenius {
            return self;
        }
        let weight = self.weight.val().detach();
        let vector = self.vector.map(|u| {
            let v = unit(matmul(u, weight.clone()));
            unit(matmul(v, weight.transpose())).detach()
        });
        NormalizedLinear { vector, ..self }
    }

    /// A proved bound on the norm of the normalized weight, computed from the parameters in f64.
    pub fn certified_norm(&self) -> f64 {
        let [inputs, outputs] = self.weight.val().dims();
        let numbers = |t: Tensor<B, 2>| -> Vec<f64> { t.to_data().iter::<f64>().collect() };
        let values = numbers(self.weight.val());
        let weight = MatRef::from_row_major_slice(&values, inputs, outputs);
        let norm = match self.normalization {
            Normalization::Frobenius => weight.norm_l2(),
            Normalization::Spectral => {
                let u = numbers(self.vector.val());
                let row = MatRef::from_row_major_slice(&u, 1, inputs) * weight;
                row.norm_l2().max(1.0)
            }
        };
        if norm == 0.0 {
            return 0.0;
        }
        let normalized = Mat::from_fn(inputs, outputs, |i, j| weight[(i, j)] / norm);
        spectral_norm_bound(normalized.as_ref()) * (1.0 + 1e-12)
    }
}

/// A row of length one, or zero if it was.
fn unit<B: Backend>(row: Tensor<B, 2>) -> Tensor<B, 2> {
    let norm = (row.clone() * row.clone()).sum_dim(1).add_scalar(1e-30).sqrt();
    row / norm
}
