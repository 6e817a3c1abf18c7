//! Orthogonal layers.

use bilip::faer::{Mat, MatRef};
use bilip::{Real, Rng, with_norm};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::base::{Error, Result, numbers, vector};
use crate::ops;
use crate::spec::Transposed;

/// How an orthogonal layer is parameterized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrthogonalKind {
    /// By a Cayley transform: every rotation without an eigenvalue −1.
    Cayley,
    /// By a product of N Householder reflections: cheaper when there are few, every orthogonal
    /// matrix with n.
    Householder(usize),
}

/// Settings of an [`OrthogonalLayer`].
#[derive(Config, Debug, PartialEq)]
pub struct OrthogonalConfig {
    /// Number of inputs and outputs.
    pub n: usize,
    /// How it is parameterized.
    #[config(default = "OrthogonalKind::Cayley")]
    pub kind: OrthogonalKind,
    /// Whether it has a bias q.
    #[config(default = true)]
    pub bias: bool,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
    /// Precision of the parameters.
    #[config(default = "DType::F32")]
    pub dtype: DType,
}

impl OrthogonalConfig {
    /// The layer.
    ///
    /// # Errors
    /// When `n` or the number of reflections is zero.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<OrthogonalLayer<B>> {
        Ok(match self.kind {
            OrthogonalKind::Cayley => OrthogonalLayer::Cayley(self.init_cayley(device)?),
            OrthogonalKind::Householder(reflections) => {
                OrthogonalLayer::Householder(self.init_householder(reflections, device)?)
            }
        })
    }

    /// A Cayley transform of a Glorot-normal matrix, its gain equal to its norm, with zero bias,
    /// whatever the kind says.
    ///
    /// # Errors
    /// When `n` is zero.
    pub fn init_cayley<B: Backend>(&self, device: &B::Device) -> Result<CayleyOrthogonal<B>> {
        let (n, dtype) = (self.n, self.dtype);
        if n == 0 {
            return Err(Error::setting("n", n, "must be at least 1"));
        }
        let free = Rng::new(self.seed).glorot(n, n);
        let values: Vec<f64> = (0..n * n).map(|k| free[(k / n, k % n)]).collect();
        let data = TensorData::new(values, [n, n]).convert_dtype(dtype);
        Ok(CayleyOrthogonal {
            gain: Param::from_tensor(vector(vec![free.norm_l2()], device, dtype)),
            free: Param::from_tensor(Tensor::from_data(data, (device, dtype))),
            bias: self.zero_bias(device),
        })
    }

    /// Reflections along random directions, with zero bias, whatever the kind says.
    ///
    /// # Errors
    /// When `n` or `reflections` is zero.
    pub fn init_householder<B: Backend>(
        &self,
        reflections: usize,
        device: &B::Device,
    ) -> Result<HouseholderOrthogonal<B>> {
        let (n, dtype) = (self.n, self.dtype);
        for (name, value) in [("n", n), ("reflections", reflections)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        let values = Rng::new(self.seed).normals(reflections * n);
        let data = TensorData::new(values, [reflections, n]).convert_dtype(dtype);
        Ok(HouseholderOrthogonal {
            vectors: Param::from_tensor(Tensor::from_data(data, (device, dtype))),
            bias: self.zero_bias(device),
        })
    }

    fn zero_bias<B: Backend>(&self, device: &B::Device) -> Option<Param<Tensor<B, 1>>> {
        self.bias
            .then(|| Param::from_tensor(vector(vec![0.0; self.n], device, self.dtype)))
    }
}

/// An orthogonal layer `x Pᵀ + q` with `P` a Cayley transform.
#[derive(Module, Debug)]
pub struct CayleyOrthogonal<B: Backend> {
    /// The free matrix, `[n, n]`.
    free: Param<Tensor<B, 2>>,
    /// Its gain, `[1]`.
    gain: Param<Tensor<B, 1>>,
    /// The bias q, `[n]`; none in partial networks, which compute it.
    bias: Option<Param<Tensor<B, 1>>>,
}

impl<B: Backend> CayleyOrthogonal<B> {
    /// The free matrix, with its gain applied, and the bias, in f64.
    pub fn free(&self) -> (Mat<f64>, Vec<f64>) {
        let [n, _] = self.free.val().dims();
        let values = numbers(self.free.val());
        let gain = numbers(self.gain.val())[0];
        let matrix = with_norm(MatRef::from_row_major_slice(&values, n, n), gain);
        let bias = match &self.bias {
            Some(bias) => numbers(bias.val()),
            None => vec![0.0; n],
        };
        (matrix, bias)
    }

    /// The certified explicit layer.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::Orthogonal<T>> {
        let (matrix, bias) = self.free();
        Ok(bilip::Orthogonal::from_free(matrix.as_ref(), &bias)?)
    }

    /// `x Pᵀ + q`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        shifted(self.rotate(x), &self.bias)
    }

    /// `x Pᵀ`.
    fn rotate(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        ops::matmul(x, ops::cayley(self.free.val(), self.gain.val()).transpose())
    }
}

/// An orthogonal layer `x Pᵀ + q` with `P` a product of Householder reflections, cheap when there
/// are few of them.
#[derive(Module, Debug)]
pub struct HouseholderOrthogonal<B: Backend> {
    /// One vector per row, `[reflections, n]`.
    vectors: Param<Tensor<B, 2>>,
    /// The bias q, `[n]`; none in partial networks, which compute it.
    bias: Option<Param<Tensor<B, 1>>>,
}

impl<B: Backend> HouseholderOrthogonal<B> {
    /// `x Pᵀ + q`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        shifted(self.rotate(x), &self.bias)
    }

    /// `P`, `[n, n]`: all reflections at once.
    ///
    /// With unit vectors as the rows of `U`, `H_1 ⋯ H_r = I − UᵀTU` with `T⁻¹ = ½I +` the part of
    /// `UUᵀ` above its diagonal (Schreiber and Van Loan 1989).
    pub(crate) fn matrix(&self) -> Tensor<B, 2> {
        let v = self.vectors.val();
        let [count, n] = v.dims();
        let (device, dtype) = (v.device(), v.dtype());
        let eye = |size: usize| Tensor::<B, 2>::eye(size, &device).cast(dtype);
        let norms = (v.clone() * v.clone()).sum_dim(1).sqrt();
        let u = v / norms;
        let above = Tensor::<B, 2>::ones([count, count], (&device, dtype)).triu(1);
        let gram = ops::matmul(u.clone(), u.clone().transpose()) * above;
        let inverse = ops::inverse((gram + eye(count).mul_scalar(0.5)).unsqueeze::<3>());
        let t = inverse.reshape([count, count]);
        eye(n) - ops::matmul(u.clone().transpose(), ops::matmul(t, u))
    }

    /// `P x + q` of images in groups, pixel by pixel.
    ///
    /// # Shapes
    /// `[groups, n, images, pixels] → [groups, n, images, pixels]`
    pub(crate) fn on_groups(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [groups, n, images, pixels] = x.dims();
        let matrix = self.matrix().unsqueeze::<3>().repeat_dim(0, groups);
        let x = x.reshape([groups, n, images * pixels]);
        let y = ops::rough(matrix, x, Transposed::Neither).reshape([groups, n, images, pixels]);
        match &self.bias {
            Some(bias) => y + bias.val().reshape([1, n, 1, 1]),
            None => y,
        }
    }

    /// `x Pᵀ`.
    fn rotate(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let vectors = self.vectors.val();
        let [count, n] = vectors.dims();
        let mut x = x;
        // x Pᵀ = x H_r ⋯ H_1, each H symmetric: the last reflection meets the rows first.
        for k in (0..count).rev() {
            let v = vectors.clone().slice([k..k + 1, 0..n]);
            let square = (v.clone() * v.clone()).sum_dim(1);
            let along = ops::matmul(x.clone(), v.clone().transpose()) / square;
            x = x - ops::matmul(along, v).mul_scalar(2.0);
        }
        x
    }

    /// The certified explicit layer.
    ///
    /// # Errors
    /// When a vector has become zero or a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::Orthogonal<T>> {
        let [count, n] = self.vectors.val().dims();
        let values = numbers(self.vectors.val());
        let bias = match &self.bias {
            Some(bias) => numbers(bias.val()),
            None => vec![0.0; n],
        };
        let vectors = MatRef::from_row_major_slice(&values, count, n);
        Ok(bilip::Orthogonal::from_householder(vectors, &bias)?)
    }
}

/// An orthogonal layer of either kind.
#[derive(Module, Debug)]
pub enum OrthogonalLayer<B: Backend> {
    /// A Cayley transform.
    Cayley(CayleyOrthogonal<B>),
    /// A product of Householder reflections.
    Householder(HouseholderOrthogonal<B>),
}

impl<B: Backend> OrthogonalLayer<B> {
    /// Number of inputs and outputs.
    pub fn dim(&self) -> usize {
        match self {
            OrthogonalLayer::Cayley(layer) => layer.free.val().dims()[1],
            OrthogonalLayer::Householder(layer) => layer.vectors.val().dims()[1],
        }
    }

    /// `x Pᵀ + q`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            OrthogonalLayer::Cayley(layer) => layer.forward(x),
            OrthogonalLayer::Householder(layer) => layer.forward(x),
        }
    }

    /// The certified explicit layer.
    ///
    /// # Errors
    /// When a vector has become zero or a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::Orthogonal<T>> {
        match self {
            OrthogonalLayer::Cayley(layer) => layer.freeze(),
            OrthogonalLayer::Householder(layer) => layer.freeze(),
        }
    }
}

fn shifted<B: Backend>(y: Tensor<B, 2>, bias: &Option<Param<Tensor<B, 1>>>) -> Tensor<B, 2> {
    match bias {
        Some(bias) => y + bias.val().unsqueeze(),
        None => y,
    }
}

#[cfg(test)]
mod access {
    //! What tests need to reach inside the modules.

    use super::*;

    type CayleyParameters<B> = (Tensor<B, 2>, Tensor<B, 1>, Option<Tensor<B, 1>>);

    impl<B: Backend> CayleyOrthogonal<B> {
        pub(crate) fn with_parameters(
            mut self,
            free: Tensor<B, 2>,
            gain: Tensor<B, 1>,
            bias: Option<Tensor<B, 1>>,
        ) -> Self {
            self.free = Param::from_tensor(free);
            self.gain = Param::from_tensor(gain);
            self.bias = bias.map(Param::from_tensor);
            self
        }

        pub(crate) fn parameters(&self) -> CayleyParameters<B> {
            (
                self.free.val(),
                self.gain.val(),
                self.bias.as_ref().map(|b| b.val()),
            )
        }
    }

    impl<B: Backend> OrthogonalLayer<B> {
        pub(crate) fn with_parameters(
            self,
            free: Tensor<B, 2>,
            gain: Tensor<B, 1>,
            bias: Option<Tensor<B, 1>>,
        ) -> Self {
            match self {
                OrthogonalLayer::Cayley(layer) => {
                    OrthogonalLayer::Cayley(layer.with_parameters(free, gain, bias))
                }
                OrthogonalLayer::Householder(_) => panic!("not a Cayley layer"),
            }
        }

        pub(crate) fn parameters(&self) -> CayleyParameters<B> {
            match self {
                OrthogonalLayer::Cayley(layer) => layer.parameters(),
                OrthogonalLayer::Householder(_) => panic!("not a Cayley layer"),
            }
        }
    }
}
