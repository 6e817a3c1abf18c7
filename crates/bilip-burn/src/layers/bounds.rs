//! The bounds of a layer: given, or learned within what can never be violated.

use bilip::Bounds;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

use serde::{Deserialize, Serialize};

use crate::base::{Error, Result, numbers, vector};

/// How the bounds (μ, ν) of a network come about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum BoundsMode {
    /// Both given; every block takes the K-th root.
    Fixed(Bounds),
    /// The distortion `τ = ν/μ` given, ν learned (as its logarithm) from a start of 2 in every
    /// block.
    Distortion(f64),
    /// `ln μ` and `ln γ` learned in every block, so that `ν = μ + γ > μ` always; the start is
    /// given.
    Learned(Bounds),
}

impl BoundsMode {
    /// Whether the bounds are in range.
    ///
    /// # Errors
    /// When they are not; the message says which.
    pub fn check(&self) -> Result<()> {
        match self {
            BoundsMode::Distortion(tau) if !(*tau > 1.0 && *tau <= 1e100) => Err(Error::setting(
                "distortion",
                format!("{tau:e}"),
                "must be larger than 1, and at most 1e100",
            )),
            BoundsMode::Fixed(b) | BoundsMode::Learned(b) if b.gap() <= 0.0 => Err(Error::setting(
                "nu",
                b.nu(),
                format!("must be larger than mu = {}", b.mu()),
            )),
            _ => Ok(()),
        }
    }

    /// The share of one of `blocks` equal blocks.
    ///
    /// # Errors
    /// When a root leaves the range of numbers.
    pub fn share(&self, blocks: usize) -> Result<Self> {
        let root = |v: f64| v.powf(1.0 / blocks.max(1) as f64);
        let split = |b: &Bounds| Bounds::new(root(b.mu()), root(b.nu()));
        Ok(match self {
            BoundsMode::Fixed(b) => BoundsMode::Fixed(split(b)?),
            BoundsMode::Distortion(tau) => BoundsMode::Distortion(root(*tau)),
            BoundsMode::Learned(b) => BoundsMode::Learned(split(b)?),
        })
    }
}

/// The bounds of one monotone layer as a module: a parameter where something is learned.
#[derive(Module, Debug)]
pub struct LayerBounds<B: Backend> {
    /// `[ln ν]` for a given distortion, `[ln μ, ln γ]` when both are learned, nothing when both are
    /// given.
    parameter: Option<Param<Tensor<B, 1>>>,
    #[module(skip)]
    mode: BoundsMode,
}

impl<B: Backend> LayerBounds<B> {
    /// The module, at the start of its mode.
    pub fn new(mode: BoundsMode, device: &B::Device, dtype: DType) -> Self {
        let start = match mode {
            BoundsMode::Fixed(_) => None,
            BoundsMode::Distortion(_) => Some(vec![2f64.ln()]),
            BoundsMode::Learned(b) => Some(vec![b.mu().ln(), b.gap().ln()]),
        };
        LayerBounds {
            parameter: start.map(|v| Param::from_tensor(vector(v, device, dtype))),
            mode,
        }
    }

    /// (μ, γ) as a tensor, `[2]`.
    pub fn tensor(&self, device: &B::Device, dtype: DType) -> Tensor<B, 1> {
        match (&self.parameter, self.mode) {
            (None, BoundsMode::Fixed(b)) => vector(vec![b.mu(), b.gap()], device, dtype),
            (Some(p), BoundsMode::Distortion(tau)) => {
                let nu = p.val().exp();
                nu * vector(vec![1.0 / tau, 1.0 - 1.0 / tau], device, dtype)
            }
            (Some(p), _) => p.val().exp(),
            // A mode without its parameter cannot be constructed; a record never changes the mode.
            (None, mode) => vector(
                match mode {
                    BoundsMode::Distortion(tau) => vec![2.0 / tau, 2.0 - 2.0 / tau],
                    BoundsMode::Fixed(b) | BoundsMode::Learned(b) => vec![b.mu(), b.gap()],
                },
                device,
                dtype,
            ),
        }
    }

    /// The bounds as numbers, now.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn value(&self) -> Result<Bounds> {
        let learned = |p: &Param<Tensor<B, 1>>| numbers(p.val());
        Ok(match (&self.parameter, self.mode) {
            (None, BoundsMode::Fixed(b) | BoundsMode::Learned(b)) => b,
            (None, BoundsMode::Distortion(tau)) => Bounds::new(2.0 / tau, 2.0)?,
            (Some(p), BoundsMode::Distortion(tau)) => {
                let nu = learned(p)[0].exp();
                Bounds::new(nu / tau, nu)?
            }
            (Some(p), _) => {
                let v = learned(p);
                Bounds::new(v[0].exp(), v[0].exp() + v[1].exp())?
            }
        })
    }
}
