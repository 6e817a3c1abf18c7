//! The input-convex network.

use bilip::{Activation, Rng};
use bilip_burn::ops::{activate, matmul};
use bilip_burn::{Columns, Predict};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::error::{Error, Result};

/// Settings of an [`Icnn`].
#[derive(Config, Debug, PartialEq)]
pub struct IcnnConfig {
    /// Number of inputs.
    pub n: usize,
    /// Hidden widths.
    pub hidden: Vec<usize>,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
    /// Precision of the parameters.
    #[config(default = "DType::F32")]
    pub dtype: DType,
}

impl IcnnConfig {
    /// The network. Its positive weights start around `1/width`, so that the signal keeps its size
    /// through the layers.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<Icnn<B>> {
        let IcnnConfig {
            n,
            hidden,
            seed,
            dtype,
        } = self;
        let dtype = *dtype;
        if *n == 0 || hidden.is_empty() || hidden.contains(&0) {
            return Err(Error::config(
                "convex network",
                "needs inputs and hidden layers, all of width at least 1",
            ));
        }
        let mut rng = Rng::new(*seed);
        let matrix = |values: Vec<f64>, shape: [usize; 2]| {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Param::from_tensor(Tensor::<B, 2>::from_data(data, (device, dtype)))
        };
        let (mut positive, mut skip, mut bias) = (Vec::new(), Vec::new(), Vec::new());
        let mut before = None;
        for &width in hidden.iter().chain([&1]) {
            let u = rng.glorot(*n, width);
            let values = (0..*n * width).map(|k| u[(k / width, k % width)]).collect();
            skip.push(matrix(values, [*n, width]));
            bias.push(Param::from_tensor(Tensor::zeros([width], (device, dtype))));
            if let Some(before) = before {
                let values = rng
                    .normals(before * width)
                    .into_iter()
                    .map(|r| ((0.5 * r).exp() / before as f64).exp_m1().ln())
                    .collect();
                positive.push(matrix(values, [before, width]));
            }
            before = Some(width);
        }
        Ok(Icnn { positive, skip, bias })
    }
}

/// An input-convex network (Amos et al. 2017): `z ← elu(z softplus(W) + x U + b)`, a scalar that is
/// convex in x because every weight on z is positive and ELU is convex and nondecreasing.
#[derive(Module, Debug)]
pub struct Icnn<B: Backend> {
    /// `ln(eʷ − 1)` of the positive weights w, `[before, width]`, of all layers but the first.
    positive: Vec<Param<Tensor<B, 2>>>,
    /// U, `[n, width]`.
    skip: Vec<Param<Tensor<B, 2>>>,
    bias: Vec<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Icnn<B> {
    /// The convex function.
    ///
    /// # Shapes
    /// `[batch, n] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let mut z: Option<Tensor<B, 2>> = None;
        for (k, (skip, bias)) in self.skip.iter().zip(&self.bias).enumerate() {
            let mut v = matmul(x.clone(), skip.val()) + bias.val().unsqueeze();
            if let Some(z) = z {
                // ELU before each use, so that the output itself is linear in the last layer.
                let weight = activate(Activation::Softplus, self.positive[k - 1].val());
                v = v + matmul(activate(Activation::Elu, z), weight);
            }
            z = Some(v);
        }
        // There is always a last layer.
        z.unwrap_or(x).squeeze_dim::<1>(1)
    }
}

impl<B: Backend> Predict<B> for Icnn<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x).unsqueeze_dim(1)
    }

    fn columns(&self) -> Columns {
        Columns::new(self.skip[0].val().dims()[0], 1)
    }
}
