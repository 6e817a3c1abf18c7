//! The layers and networks as Burn modules.

use std::sync::Arc;

use bilip::faer::{Mat, MatRef};
use bilip::{Activation, BiLipNetFree, Bounds, MonLipFree, Real, Rng, with_norm};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::{BoundsMode, LayerBounds, vector};
use crate::error::{Error, Result};
use crate::kernel::monlip::Layout;
use crate::ops;

/// Settings of a [`MonLip`] layer.
#[derive(Clone, Debug)]
pub struct MonLipConfig {
    /// Number of inputs and outputs.
    pub n: usize,
    /// Hidden widths.
    pub units: Vec<usize>,
    /// The activation; ψ is learned where it matters.
    pub activation: Activation,
    /// The bounds.
    pub bounds: BoundsMode,
    /// Whether Q takes the general form `QᵀQ ⪯ I` instead of `QᵀQ = I`.
    pub general: bool,
    /// Seed of the initial parameters.
    pub seed: u64,
    /// Precision of the parameters: `F32` for training, `F64` for checks.
    pub dtype: DType,
}

impl MonLipConfig {
    /// A ReLU layer in f32 with the published form of Q and seed 0.
    pub fn new(n: usize, units: &[usize], bounds: BoundsMode) -> Self {
        MonLipConfig {
            n,
            units: units.to_vec(),
            activation: Activation::Relu,
            bounds,
            general: false,
            seed: 0,
            dtype: DType::F32,
        }
    }

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
/// All matrices, gains and the output bias lie in one flat parameter, so that the layer is one node of the graph and
/// one tensor for the optimiser.
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
        let phi: Vec<f64> = self.phi.val().to_data().iter::<f64>().collect();
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
                Some(bias) => bias.val().to_data().iter::<f64>().collect(),
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
}

impl<B: Backend> MonLip<B> {
    /// `F(x)`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let bias = match &self.bias {
            Some(bias) => bias.val(),
            None => Tensor::zeros([1, self.hidden()], (&x.device(), x.dtype())),
        };
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
    /// A layer with a Glorot-normal matrix, its gain equal to its norm, and zero bias.
    ///
    /// # Errors
    /// When `n` is zero.
    pub fn new(n: usize, seed: u64, device: &B::Device, dtype: DType) -> Result<Self> {
        if n == 0 {
            return Err(Error::setting("n", n, "must be at least 1"));
        }
        let free = Rng::new(seed).glorot(n, n);
        let values: Vec<f64> = (0..n * n).map(|k| free[(k / n, k % n)]).collect();
        let data = TensorData::new(values, [n, n]).convert_dtype(dtype);
        Ok(CayleyOrthogonal {
            gain: Param::from_tensor(vector(vec![free.norm_l2()], device, dtype)),
            free: Param::from_tensor(Tensor::from_data(data, (device, dtype))),
            bias: Some(Param::from_tensor(vector(vec![0.0; n], device, dtype))),
        })
    }

    /// The free matrix, with its gain applied, and the bias, in f64.
    pub fn free(&self) -> (Mat<f64>, Vec<f64>) {
        let [n, _] = self.free.val().dims();
        let values: Vec<f64> = self.free.val().to_data().iter::<f64>().collect();
        let gain = self.gain.val().to_data().iter::<f64>().next().unwrap_or(0.0);
        let matrix = with_norm(MatRef::from_row_major_slice(&values, n, n), gain);
        let bias = match &self.bias {
            Some(bias) => bias.val().to_data().iter::<f64>().collect(),
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
}

impl<B: Backend> CayleyOrthogonal<B> {
    /// `x Pᵀ + q`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let y = self.rotate(x);
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }

    /// `x Pᵀ`.
    pub(crate) fn rotate(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        x.matmul(ops::cayley(self.free.val(), self.gain.val()).transpose())
    }
}

/// An orthogonal layer `x Pᵀ + q` with `P` a product of Householder reflections, cheap when there are few of them.
#[derive(Module, Debug)]
pub struct HouseholderOrthogonal<B: Backend> {
    /// One vector a row, `[reflections, n]`.
    vectors: Param<Tensor<B, 2>>,
    /// The bias q, `[n]`.
    bias: Param<Tensor<B, 1>>,
}

impl<B: Backend> HouseholderOrthogonal<B> {
    /// A layer of reflections along random directions, with zero bias.
    ///
    /// # Errors
    /// When `n` or `reflections` is zero.
    pub fn new(n: usize, reflections: usize, seed: u64, device: &B::Device, dtype: DType) -> Result<Self> {
        for (name, value) in [("n", n), ("reflections", reflections)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        let data =
            TensorData::new(Rng::new(seed).normals(reflections * n), [reflections, n]).convert_dtype(dtype);
        Ok(HouseholderOrthogonal {
            vectors: Param::from_tensor(Tensor::from_data(data, (device, dtype))),
            bias: Param::from_tensor(vector(vec![0.0; n], device, dtype)),
        })
    }

    /// `x Pᵀ + q`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let vectors = self.vectors.val();
        let [count, n] = vectors.dims();
        let mut x = x;
        // x Pᵀ = x H_r ⋯ H_1, each H symmetric: the last reflection meets the rows first.
        for k in (0..count).rev() {
            let v = vectors.clone().slice([k..k + 1, 0..n]);
            let square = (v.clone() * v.clone()).sum_dim(1);
            let along = x.clone().matmul(v.clone().transpose()) / square;
            x = x - along.matmul(v).mul_scalar(2.0);
        }
        x + self.bias.val().unsqueeze()
    }

    /// The certified explicit layer.
    ///
    /// # Errors
    /// When a vector has become zero or a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::Orthogonal<T>> {
        let [count, n] = self.vectors.val().dims();
        let values: Vec<f64> = self.vectors.val().to_data().iter::<f64>().collect();
        let bias: Vec<f64> = self.bias.val().to_data().iter::<f64>().collect();
        let vectors = MatRef::from_row_major_slice(&values, count, n);
        Ok(bilip::Orthogonal::from_householder(vectors, &bias)?)
    }
}

/// Settings of a [`BiLipNet`] and of the [`PlNet`] on top of one.
#[derive(Clone, Debug)]
pub struct BiLipNetConfig {
    /// Number of monotone layers, K.
    pub blocks: usize,
    /// Every monotone layer, except for its bounds and seed: the bounds here are the whole network's, and the layers'
    /// seeds follow from this one.
    pub layer: MonLipConfig,
}

impl BiLipNetConfig {
    /// `blocks` monotone layers between orthogonal ones.
    pub fn new(blocks: usize, layer: MonLipConfig) -> Self {
        BiLipNetConfig { blocks, layer }
    }

    /// The network.
    ///
    /// # Errors
    /// On sizes of zero and bounds out of range.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<BiLipNet<B>> {
        self.build(device, true)
    }

    pub(crate) fn build<B: Backend>(&self, device: &B::Device, biased: bool) -> Result<BiLipNet<B>> {
        if self.blocks == 0 {
            return Err(Error::setting("blocks", self.blocks, "must be at least 1"));
        }
        self.layer.bounds.check()?;
        let share = self.layer.bounds.share(self.blocks)?;
        // Every part its own stream: seeds that differ in the high bits cannot meet for neighbouring networks.
        let seed = |part: u64| self.layer.seed ^ (part << 48);
        Ok(BiLipNet {
            orthogonal: (0..=self.blocks)
                .map(|k| {
                    let layer = CayleyOrthogonal::new(
                        self.layer.n,
                        seed(2 * k as u64 + 1),
                        device,
                        self.layer.dtype,
                    )?;
                    Ok(if biased {
                        layer
                    } else {
                        CayleyOrthogonal { bias: None, ..layer }
                    })
                })
                .collect::<Result<_>>()?,
            monotone: (0..self.blocks)
                .map(|k| {
                    let config = MonLipConfig {
                        bounds: share,
                        seed: seed(2 * k as u64 + 2),
                        ..self.layer.clone()
                    };
                    if biased {
                        config.init(device)
                    } else {
                        config.init_without_bias(device)
                    }
                })
                .collect::<Result<_>>()?,
        })
    }
}

/// A bi-Lipschitz network `O_{K+1} ∘ F_K ∘ O_K ∘ ⋯ ∘ F_1 ∘ O_1` to be trained.
#[derive(Module, Debug)]
pub struct BiLipNet<B: Backend> {
    pub(crate) orthogonal: Vec<CayleyOrthogonal<B>>,
    pub(crate) monotone: Vec<MonLip<B>>,
}

impl<B: Backend> BiLipNet<B> {
    /// Number of inputs and outputs.
    pub fn dim(&self) -> usize {
        self.orthogonal[0].free.val().dims()[0]
    }

    /// The offset 0 of a potential, on the device and in the precision of the network.
    pub(crate) fn zero_offset(&self) -> Tensor<B, 1> {
        let gain = self.orthogonal[0].gain.val();
        vector(vec![0.0], &gain.device(), gain.dtype())
    }

    /// The bounds now: the products of the layers'.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<Bounds> {
        let (mut mu, mut nu) = (1.0, 1.0);
        for layer in &self.monotone {
            let b = layer.bounds()?;
            mu *= b.mu();
            nu *= b.nu();
        }
        Ok(Bounds::new(mu, nu)?)
    }

    /// The free parameters in f64, as the core crate takes them.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn free(&self) -> Result<BiLipNetFree> {
        Ok(BiLipNetFree {
            bounds: self.bounds()?,
            orthogonal: self.orthogonal.iter().map(|l| l.free()).collect(),
            monotone: self.monotone.iter().map(|l| l.free()).collect::<Result<_>>()?,
        })
    }

    /// The certified explicit network: weights computed in f64 from the parameters, bounds proved.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::BiLipNet<T>> {
        Ok(bilip::BiLipNet::from_free(&self.free()?)?)
    }
}

impl<B: Backend> BiLipNet<B> {
    /// `G(x)`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = x;
        for (k, orthogonal) in self.orthogonal.iter().enumerate() {
            x = orthogonal.forward(x);
            if let Some(layer) = self.monotone.get(k) {
                x = layer.forward(x);
            }
        }
        x
    }
}

/// A PL network `½‖G(x)‖² + c` to be trained.
#[derive(Module, Debug)]
pub struct PlNet<B: Backend> {
    net: BiLipNet<B>,
    /// c, `[1]`.
    offset: Param<Tensor<B, 1>>,
}

impl<B: Backend> PlNet<B> {
    /// A PL network with offset 0 on top of a network.
    pub fn new(net: BiLipNet<B>) -> Self {
        let offset = net.zero_offset();
        PlNet {
            net,
            offset: Param::from_tensor(offset),
        }
    }

    /// The network G.
    pub fn net(&self) -> &BiLipNet<B> {
        &self.net
    }

    /// The certified explicit PL network.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::PlNet<T>> {
        let offset = self.offset.val().to_data().iter::<f64>().next().unwrap_or(0.0);
        Ok(bilip::PlNet::new(self.net.freeze()?, offset)?)
    }
}

impl<B: Backend> PlNet<B> {
    /// `½‖G(x)‖² + c`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        potential(self.net.forward(x), self.offset.val())
    }
}

/// `½‖g‖² + c` for every row. The sum of squares is differentiated, never a norm: no NaN at the minimum.
pub(crate) fn potential<B: Backend>(g: Tensor<B, 2>, offset: Tensor<B, 1>) -> Tensor<B, 1> {
    let half = (g.clone() * g).sum_dim(1).mul_scalar(0.5);
    half.squeeze_dim::<1>(1) + offset
}

#[cfg(test)]
mod access {
    //! What tests need to reach inside the modules.

    use super::*;

    type CayleyParameters<B> = (Tensor<B, 2>, Tensor<B, 1>, Option<Tensor<B, 1>>);

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

    impl<B: Backend> PlNet<B> {
        pub(crate) fn with_offset(mut self, offset: Tensor<B, 1>) -> Self {
            self.offset = Param::from_tensor(offset);
            self
        }
    }
}
