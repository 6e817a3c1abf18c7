//! The quadratic potential `½‖G(x)‖² + c` on top of any network; on top of a bi-Lipschitz one it is
//! a PL network.

use bilip::{Bounds, Real};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

use super::bilipnet::BiLipNet;
use super::partial::PartialBiLipNet;
use super::predict::Predict;
use crate::base::{Columns, Error, Result, numbers, vector};
use crate::layers::{Mlp, MlpConfig};

/// `½‖G(x)‖² + c`, or `½‖G(x) − G(x₀)‖² + c` when the minimizer x₀ is known, to be trained.
#[derive(Module, Debug)]
pub struct Quadratic<B: Backend, M: Module<B>> {
    net: M,
    /// c, `[1]`.
    offset: Param<Tensor<B, 1>>,
    #[module(skip)]
    minimizer: Option<Vec<f64>>,
}

/// A PL network to be trained: the potential of a [`BiLipNet`].
pub type PlNet<B> = Quadratic<B, BiLipNet<B>>;

/// A partial PL network `½‖G(x; p)‖² + c` to be trained.
pub type PartialPlNet<B> = Quadratic<B, PartialBiLipNet<B>>;

impl<B: Backend, M: Module<B>> Quadratic<B, M> {
    /// The potential of a network, with offset 0.
    pub fn new(net: M) -> Self {
        let device = net.devices().into_iter().next().unwrap_or_default();
        let offset = vector(vec![0.0], &device, precision(&net));
        Quadratic {
            net,
            offset: Param::from_tensor(offset),
            minimizer: None,
        }
    }

    /// The network G.
    pub fn net(&self) -> &M {
        &self.net
    }

    fn offset_value(&self) -> f64 {
        numbers(self.offset.val())[0]
    }
}

impl<B: Backend, M: Module<B> + Predict<B>> Quadratic<B, M> {
    /// A potential whose minimum is known to be at x₀: whatever the parameters, it does.
    ///
    /// # Errors
    /// When x₀ has another dimension than the network, holds a number that is not finite, or the
    /// network is partial.
    pub fn with_minimizer(net: M, minimizer: Vec<f64>) -> Result<Self> {
        let Columns {
            inputs, parameters, ..
        } = net.columns();
        if parameters > 0 {
            return Err(Error::setting(
                "minimizer",
                &minimizer,
                "a partial network has another one for every p",
            ));
        }
        if inputs != minimizer.len() {
            return Err(Error::setting(
                "minimizer",
                &minimizer,
                format!("the network has {inputs} inputs"),
            ));
        }
        if minimizer.iter().any(|v| !v.is_finite()) {
            return Err(Error::setting("minimizer", &minimizer, "must be finite"));
        }
        Ok(Quadratic {
            minimizer: Some(minimizer),
            ..Self::new(net)
        })
    }

    /// The potential, of parameters where the network takes any.
    fn value(&self, x: Tensor<B, 2>, p: Option<Tensor<B, 2>>) -> Tensor<B, 1> {
        let [rows, n] = x.dims();
        let g = match &self.minimizer {
            None => self.net.predict(x, p),
            Some(x0) => {
                // x₀ goes through the network as one more row of the batch.
                let row = vector(x0.clone(), &x.device(), x.dtype()).reshape([1, n]);
                let g = self.net.predict(Tensor::cat(vec![x, row], 0), None);
                let [_, width] = g.dims();
                g.clone().slice([0..rows, 0..width]) - g.slice([rows..rows + 1, 0..width])
            }
        };
        // The sum of squares is differentiated, never a norm: no NaN at the minimum.
        let half = (g.clone() * g).sum_dim(1).mul_scalar(0.5);
        half.squeeze_dim::<1>(1) + self.offset.val()
    }
}

impl<B: Backend> PlNet<B> {
    /// `½‖G(x)‖² + c`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        self.value(x, None)
    }

    /// The certified explicit PL network.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::PlNet<T>> {
        let (net, offset) = (self.net.freeze()?, self.offset_value());
        Ok(match &self.minimizer {
            None => bilip::PlNet::new(net, offset)?,
            Some(x0) => {
                bilip::PlNet::with_minimizer(net, offset, x0.iter().map(|v| T::round_from(*v)).collect())?
            }
        })
    }
}

impl<B: Backend> PartialPlNet<B> {
    /// `½‖G(x; p)‖² + c`.
    ///
    /// # Shapes
    /// `[batch, n]` and `[batch, parameters] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>, p: Tensor<B, 2>) -> Tensor<B, 1> {
        self.value(x, Some(p))
    }

    /// The certified explicit partial PL network.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::PartialPlNet<T>> {
        Ok(bilip::PartialPlNet::new(self.net.freeze()?, self.offset_value())?)
    }
}

/// A partial PL network with an offset of its own for every p, `½‖G(x; p)‖² + c + c(p)` with a
/// perceptron `c(p)`, to be trained. The guarantee in x is that of [`PartialPlNet`].
///
/// A module of its own, so that checkpoints of networks without one stay as they are.
#[derive(Module, Debug)]
pub struct OffsetPlNet<B: Backend> {
    potential: PartialPlNet<B>,
    offset_network: Mlp<B>,
}

impl<B: Backend> PartialPlNet<B> {
    /// The same network plus a perceptron of p with these hidden widths, which starts at zero.
    ///
    /// # Errors
    /// On widths of zero.
    pub fn with_offset_network(self, widths: &[usize], seed: u64) -> Result<OffsetPlNet<B>> {
        let device = self.net.devices().into_iter().next().unwrap_or_default();
        let sizes = widths.iter().copied().chain([1]).collect();
        let mut offset_network = MlpConfig::new(self.net.parameters(), sizes)
            .with_seed(seed)
            .with_dtype(precision(&self.net))
            .init(&device)?;
        if let Some(last) = offset_network.layers.last_mut() {
            // Nothing is added until training says what.
            last.weight = Param::from_tensor(last.weight.val().zeros_like());
        }
        Ok(OffsetPlNet {
            potential: self,
            offset_network,
        })
    }
}

impl<B: Backend> OffsetPlNet<B> {
    /// The network without its offset `c(p)`.
    pub fn potential(&self) -> &PartialPlNet<B> {
        &self.potential
    }

    /// `½‖G(x; p)‖² + c + c(p)`.
    ///
    /// # Shapes
    /// `[batch, n]` and `[batch, parameters] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>, p: Tensor<B, 2>) -> Tensor<B, 1> {
        let offset = self.offset_network.forward(p.clone()).squeeze_dim::<1>(1);
        self.potential.forward(x, p) + offset
    }

    /// The certified explicit partial PL network.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::PartialPlNet<T>> {
        Ok((self.potential.freeze::<T>()?).with_offset_network(self.offset_network.freeze()?)?)
    }
}

impl<B: Backend> Predict<B> for OffsetPlNet<B> {
    fn predict(&self, x: Tensor<B, 2>, p: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        let parameters = self.potential.net.parameters();
        let p = p.unwrap_or_else(|| Tensor::zeros([x.dims()[0], parameters], (&x.device(), x.dtype())));
        self.forward(x, p).unsqueeze_dim(1)
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.potential.current_bounds()
    }

    fn columns(&self) -> Columns {
        self.potential.columns()
    }

    fn settle(self) -> Self {
        OffsetPlNet {
            potential: self.potential.settle(),
            ..self
        }
    }
}

impl<B: Backend, M: Module<B> + Predict<B>> Predict<B> for Quadratic<B, M> {
    fn predict(&self, x: Tensor<B, 2>, p: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.value(x, p).unsqueeze_dim(1)
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.net.current_bounds()
    }

    fn columns(&self) -> Columns {
        Columns {
            targets: 1,
            ..self.net.columns()
        }
    }

    fn settle(self) -> Self {
        Quadratic {
            net: self.net.settle(),
            ..self
        }
    }
}

/// The precision of a module's parameters.
fn precision<B: Backend, M: Module<B>>(module: &M) -> DType {
    struct First(Option<DType>);
    impl<B: Backend> ModuleVisitor<B> for First {
        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<B, D>>) {
            self.0.get_or_insert(parameter.val().dtype());
        }
    }
    let mut first = First(None);
    module.visit(&mut first);
    first.0.unwrap_or(DType::F32)
}

#[cfg(test)]
mod access {
    use super::*;

    impl<B: Backend, M: Module<B>> Quadratic<B, M> {
        pub(crate) fn with_offset(mut self, offset: Tensor<B, 1>) -> Self {
            self.offset = Param::from_tensor(offset);
            self
        }
    }
}
