//! What the training loop asks of a model.

use bilip::Bounds;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::bilipnet::BiLipNet;
use super::partial::PartialBiLipNet;
use crate::base::Columns;
use crate::layers::{Mlp, MonLip};

/// A model that predicts targets from inputs and, if it is partial, parameters.
pub trait Predict<B: Backend> {
    /// Predictions, `[batch, n]` (and `[batch, p]`) `→ [batch, t]`.
    fn predict(&self, x: Tensor<B, 2>, p: Option<Tensor<B, 2>>) -> Tensor<B, 2>;

    /// The bounds that the model claims, where it claims any: shown while training.
    fn current_bounds(&self) -> Option<Bounds> {
        None
    }

    /// Columns that the model takes.
    fn columns(&self) -> Columns;

    /// What is added to the loss while training, if anything.
    fn penalty(&self) -> Option<Tensor<B, 1>> {
        None
    }

    /// The model after an optimizer step, with what it carries along besides parameters brought up
    /// to date.
    fn settle(self) -> Self
    where
        Self: Sized,
    {
        self
    }
}

impl<B: Backend> Predict<B> for MonLip<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x)
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.bounds().ok()
    }

    fn columns(&self) -> Columns {
        Columns::new(self.dim(), self.dim())
    }
}

impl<B: Backend> Predict<B> for BiLipNet<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x)
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.bounds().ok()
    }

    fn columns(&self) -> Columns {
        Columns::new(self.dim(), self.dim())
    }
}

impl<B: Backend> Predict<B> for PartialBiLipNet<B> {
    fn predict(&self, x: Tensor<B, 2>, p: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        let p =
            p.unwrap_or_else(|| Tensor::zeros([x.dims()[0], self.parameters()], (&x.device(), x.dtype())));
        self.forward(x, p)
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.bounds().ok()
    }

    fn columns(&self) -> Columns {
        Columns {
            parameters: self.parameters(),
            ..Columns::new(self.net.dim(), self.net.dim())
        }
    }
}

impl<B: Backend> Predict<B> for Mlp<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x)
    }

    fn columns(&self) -> Columns {
        Columns::new(self.inputs(), self.outputs())
    }
}
