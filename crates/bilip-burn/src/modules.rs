//! The layers as Burn modules.

use std::sync::Arc;

use bilip::faer::{Mat, MatRef};
use bilip::{Activation, Bounds, MonLipFree, Real, Rng, with_norm};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::{BoundsMode, LayerBounds, vector};
use crate::error::{Error, Result};
use crate::kernel::monlip::Layout;
use crate::ops;
use crate::portable;

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
/// one tensor for the optimizer.
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

    /// As [`forward`](Self::forward), with other rows of Q: the first that each hidden layer takes.
    pub(crate) fn forward_with_rows_of_q(&self, x: Tensor<B, 2>, rows: &[usize]) -> Tensor<B, 2> {
        let bounds = self.bounds.tensor(&x.device(), x.dtype());
        let bias = self.bias(&x);
        portable::monlip_with(x, self.phi.val(), bounds, bias, &self.layout, rows)
    }

    /// The hidden widths.
    pub(crate) fn units(&self) -> &[usize] {
        &self.layout.units
    }

    fn bias(&self, x: &Tensor<B, 2>) -> Tensor<B, 2> {
        match &self.bias {
            Some(bias) => bias.val(),
            None => Tensor::zeros([1, self.hidden()], (&x.device(), x.dtype())),
        }
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
        shifted(self.rotate(x), &self.bias)
    }

    /// `x Pᵀ`.
    fn rotate(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        ops::matmul(x, ops::cayley(self.free.val(), self.gain.val()).transpose())
    }
}

/// An orthogonal layer `x Pᵀ + q` with `P` a product of Householder reflections, cheap when there are few of them.
#[derive(Module, Debug)]
pub struct HouseholderOrthogonal<B: Backend> {
    /// One vector a row, `[reflections, n]`.
    vectors: Param<Tensor<B, 2>>,
    /// The bias q, `[n]`; none in partial networks, which compute it.
    bias: Option<Param<Tensor<B, 1>>>,
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
            bias: Some(Param::from_tensor(vector(vec![0.0; n], device, dtype))),
        })
    }

    /// `x Pᵀ + q`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        shifted(self.rotate(x), &self.bias)
    }

    /// `P`, `[n, n]`: all reflections at once.
    ///
    /// With unit vectors as the rows of `U`, `H_1 ⋯ H_r = I − UᵀTU` with `T⁻¹ = ½I +` the part of `UUᵀ` above its diagonal (Schreiber and Van Loan 1989).
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
        let y = ops::rough(matrix, x, ops::Order::Plain).reshape([groups, n, images, pixels]);
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
        let values: Vec<f64> = self.vectors.val().to_data().iter::<f64>().collect();
        let bias = match &self.bias {
            Some(bias) => bias.val().to_data().iter::<f64>().collect(),
            None => vec![0.0; n],
        };
        let vectors = MatRef::from_row_major_slice(&values, count, n);
        Ok(bilip::Orthogonal::from_householder(vectors, &bias)?)
    }
}

/// How the orthogonal layers of a network are parameterized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrthogonalKind {
    /// By Cayley transforms: every rotation without an eigenvalue −1.
    Cayley,
    /// By products of N Householder reflections: cheaper when there are few, every orthogonal matrix with n.
    Householder(usize),
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
    pub(crate) fn new(
        kind: OrthogonalKind,
        n: usize,
        seed: u64,
        device: &B::Device,
        dtype: DType,
        biased: bool,
    ) -> Result<Self> {
        Ok(match kind {
            OrthogonalKind::Cayley => {
                let mut layer = CayleyOrthogonal::new(n, seed, device, dtype)?;
                layer.bias = layer.bias.filter(|_| biased);
                OrthogonalLayer::Cayley(layer)
            }
            OrthogonalKind::Householder(reflections) => {
                let mut layer = HouseholderOrthogonal::new(n, reflections, seed, device, dtype)?;
                layer.bias = layer.bias.filter(|_| biased);
                OrthogonalLayer::Householder(layer)
            }
        })
    }

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
