//! Bi-Lipschitz networks: monotone layers between orthogonal ones.

use bilip::{Bounds, Real};
use burn::config::Config;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::base::{Error, Result};
use crate::layers::{BoundsMode, MonLip, MonLipConfig, OrthogonalConfig, OrthogonalKind, OrthogonalLayer};

/// Settings of a [`BiLipNet`] and of the [`PlNet`](crate::PlNet) on top of one.
#[derive(Config, Debug, PartialEq)]
pub struct BiLipNetConfig {
    /// Number of monotone layers, K.
    pub blocks: usize,
    /// Every monotone layer, except for its bounds and seed: the bounds here are the whole
    /// network's, and the layers' seeds follow from this one.
    pub layer: MonLipConfig,
    /// The orthogonal layers between them.
    #[config(default = "OrthogonalKind::Cayley")]
    pub orthogonal: OrthogonalKind,
}

impl BiLipNetConfig {
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
        // Every part its own stream: seeds that differ in the high bits cannot meet for neighboring
        // networks.
        let seed = |part: u64| self.layer.seed ^ (part << 48);
        Ok(BiLipNet {
            fixed: match self.layer.bounds {
                BoundsMode::Fixed(bounds) => Some(bounds),
                _ => None,
            },
            orthogonal: (0..=self.blocks)
                .map(|k| {
                    OrthogonalConfig::new(self.layer.n)
                        .with_kind(self.orthogonal)
                        .with_bias(biased)
                        .with_seed(seed(2 * k as u64 + 1))
                        .with_dtype(self.layer.dtype)
                        .init(device)
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
    pub(crate) orthogonal: Vec<OrthogonalLayer<B>>,
    pub(crate) monotone: Vec<MonLip<B>>,
    /// The bounds asked for, where they are fixed: the product of the layers' roots would be off by
    /// roundings.
    #[module(skip)]
    fixed: Option<Bounds>,
}

impl<B: Backend> BiLipNet<B> {
    /// Number of inputs and outputs.
    pub fn dim(&self) -> usize {
        self.orthogonal[0].dim()
    }

    /// The orthogonal layers, the first that x meets first.
    pub fn orthogonal(&self) -> &[OrthogonalLayer<B>] {
        &self.orthogonal
    }

    /// The monotone layers between them.
    pub fn monotone(&self) -> &[MonLip<B>] {
        &self.monotone
    }

    /// The bounds now: the products of the layers'.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<Bounds> {
        if let Some(bounds) = self.fixed {
            return Ok(bounds);
        }
        let (mut mu, mut nu) = (1.0, 1.0);
        for layer in &self.monotone {
            let b = layer.bounds()?;
            mu *= b.mu();
            nu *= b.nu();
        }
        Ok(Bounds::new(mu, nu)?)
    }

    /// The certified explicit network: weights computed in f64 from the parameters, bounds proved.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::BiLipNet<T>> {
        let orthogonal = self
            .orthogonal
            .iter()
            .map(|l| l.freeze())
            .collect::<Result<_>>()?;
        let monotone = self
            .monotone
            .iter()
            .map(|l| l.free())
            .collect::<Result<Vec<_>>>()?;
        Ok(bilip::BiLipNet::with_orthogonal(
            orthogonal,
            &monotone,
            self.bounds()?,
        )?)
    }

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
