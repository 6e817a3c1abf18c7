//! The monotone layer.

use std::sync::Arc;

use bilip::faer::MatRef;
use bilip::{Activation, Bounds, MonLipFree, Real, Rng, with_norm};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

use super::bounds::{BoundsMode, LayerBounds};
use crate::base::{Error, Result, numbers, vector};
use crate::ops;
use crate::spec::Layout;

/// Settings of a [`MonLip`] layer.
#[derive(Config, Debug, PartialEq)]
pub struct MonLipConfig {
    /// Number of inputs and outputs.
    pub n: usize,
    /// Hidden widths.
    pub units: Vec<usize>,
    /// The bounds.
    pub bounds: BoundsMode,
    /// The activation; ψ is learned where it matters.
    #[config(default = "Activation::Relu")]
    pub activation: Activation,
    /// Whether Q takes the general form `QᵀQ ⪯ I` instead of `QᵀQ = I`.
    #[config(default = false)]
    pub general: bool,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
    /// Precision of the parameters: `F32` for training, `F64` for checks.
    #[config(default = "DType::F32")]
    pub dtype: DType,
}

impl MonLipConfig {
    /// The layer with Glorot-normal matrices, their gains equal to their norms, and zero biases.
    ///
    /// # Errors
    /// On sizes of zero and bounds out of range.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<MonLip<B>> {
        let mut layer = self.init_without_bias(device)?;
        let hidden = layer.layout.hidden();
        layer.bias = Some(Param::from_tensor(
            vector(vec![0.0; hidden], device, self.dtype).unsqueeze(),
        ));
        Ok(layer)
    }

    /// As [`init`](Self::init), for a layer whose hidden biases come from elsewhere.
    pub(crate) fn init_without_bias<B: Backend>(&self, device: &B::Device) -> Result<MonLip<B>> {
        if self.n == 0 {
            return Err(Error::setting("n", self.n, "must be at least 1"));
        }
        if self.units.is_empty() || self.units.contains(&0) {
            return Err(Error::setting(
                "units",
                &self.units,
                "needs at least one layer, all of width at least 1",
            ));
        }
        self.bounds.check()?;
        let layout = Layout::new(self.n, &self.units, self.activation, self.general);
        let mut rng = Rng::new(self.seed);
        let mut phi = vec![0.0; layout.len];
        let mut place =
            |range: std::ops::Range<usize>, rows: usize, cols: usize, gain: usize, phi: &mut Vec<f64>| {
                let matrix = rng.glorot(rows, cols);
                for (k, slot) in phi[range].iter_mut().enumerate() {
                    *slot = matrix[(k / cols, k % cols)];
                }
                phi[gain] = matrix.norm_l2();
            };
        place(
            layout.fq.clone(),
            layout.extra + layout.hidden(),
            self.n,
            layout.gain_q,
            &mut phi,
        );
        let mut before = 0;
        for (k, &width) in self.units.iter().enumerate() {
            place(
                layout.fab[k].clone(),
                width + before,
                width,
                layout.gain_ab.start + k,
                &mut phi,
            );
            before = width;
        }
        Ok(MonLip {
            phi: Param::from_tensor(vector(phi, device, self.dtype)),
            bias: None,
            bounds: LayerBounds::new(self.bounds, device, self.dtype),
            layout: Arc::new(layout),
        })
    }
}

/// A μ-strongly monotone, ν-Lipschitz layer to be trained.
///
/// All matrices, gains and the output bias are in one flat parameter, so that the layer is one node
/// of the graph and one tensor for the optimizer.
#[derive(Module, Debug)]
pub struct MonLip<B: Backend> {
    phi: Param<Tensor<B, 1>>,
    /// Hidden biases, `[1, m]`; none in partial networks, which compute them.
    bias: Option<Param<Tensor<B, 2>>>,
    bounds: LayerBounds<B>,
    #[module(skip)]
    layout: Arc<Layout>,
}

impl<B: Backend> MonLip<B> {
    /// Number of inputs and outputs.
    pub fn dim(&self) -> usize {
        self.layout.n
    }

    /// Number of hidden units.
    pub fn hidden(&self) -> usize {
        self.layout.hidden()
    }

    /// The bounds now.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<Bounds> {
        self.bounds.value()
    }

    /// The free parameters in f64, as the core crate takes them.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn free(&self) -> Result<MonLipFree> {
        let phi = numbers(self.phi.val());
        let l = &self.layout;
        let scaled = |m: MatRef<'_, f64>, gain: usize| with_norm(m, phi[gain]);
        let stacked = scaled(l.fq(&phi), l.gain_q);
        Ok(MonLipFree {
            bounds: self.bounds.value()?,
            activation: l.activation,
            fq: stacked.subrows(l.extra, l.hidden()).to_owned(),
            fp: (l.extra > 0).then(|| stacked.subrows(0, l.extra).to_owned()),
            fab: (0..l.units.len())
                .map(|k| scaled(l.fab(&phi, k), l.gain_ab.start + k))
                .collect(),
            log_psi: l.log_psi.clone().map(|range| phi[range].to_vec()),
            hidden_bias: match &self.bias {
                Some(bias) => numbers(bias.val()),
                None => vec![0.0; l.hidden()],
            },
            output_bias: phi[l.output_bias.clone()].to_vec(),
        })
    }

    /// The certified explicit layer: weights computed in f64 from the parameters, bounds proved.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::MonLip<T>> {
        Ok(bilip::MonLip::from_free(&self.free()?)?)
    }

    /// `F(x)`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let bias = self.bias(&x);
        self.forward_with_bias(x, bias)
    }

    /// `F(x)` with hidden biases given for every row, as partial networks do.
    ///
    /// # Shapes
    /// `[batch, n]` and `[batch, m]` (or `[1, m]`) `→ [batch, n]`
    pub fn forward_with_bias(&self, x: Tensor<B, 2>, bias: Tensor<B, 2>) -> Tensor<B, 2> {
        let bounds = self.bounds.tensor(&x.device(), x.dtype());
        ops::monlip(x, self.phi.val(), bounds, bias, &self.layout)
    }

    fn bias(&self, x: &Tensor<B, 2>) -> Tensor<B, 2> {
        match &self.bias {
            Some(bias) => bias.val(),
            None => Tensor::zeros([1, self.hidden()], (&x.device(), x.dtype())),
        }
    }
}

#[cfg(test)]
mod access {
    //! What tests need to reach inside the module.

    use super::*;

    impl<B: Backend> MonLip<B> {
        pub(crate) fn with_parameters(mut self, phi: Tensor<B, 1>, bias: Option<Tensor<B, 2>>) -> Self {
            self.phi = Param::from_tensor(phi);
            self.bias = bias.map(Param::from_tensor);
            self
        }

        pub(crate) fn parameters(&self) -> (Tensor<B, 1>, Option<Tensor<B, 2>>) {
            (self.phi.val(), self.bias.as_ref().map(|b| b.val()))
        }
    }
}
