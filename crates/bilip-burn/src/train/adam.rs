//! Adam and AdamW in one pass over each parameter.

use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{LearningRate, SimpleOptimizer};
use burn::record::Record;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::ops;
use crate::spec::AdamStep;

/// Adam (Kingma and Ba 2014), or AdamW with a weight decay (Loshchilov and Hutter 2019).
///
/// | setting | default |
/// |---|---|
/// | `beta` | (0.9, 0.999) |
/// | `epsilon` | 1e-8 |
/// | `decay` | 0 |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decays of the two moments.
    pub beta: (f64, f64),
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay; 0 is plain Adam.
    pub decay: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Adam {
            beta: (0.9, 0.999),
            epsilon: 1e-8,
            decay: 0.0,
        }
    }
}

/// The moments of one parameter and the number of steps taken.
#[derive(Record, Clone)]
pub struct AdamState<B: Backend, const D: usize> {
    first: Tensor<B, D>,
    second: Tensor<B, D>,
    time: usize,
}

impl Adam {
    /// An optimizer for a module.
    pub fn init<B, M>(self) -> OptimizerAdaptor<Adam, M, B>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        OptimizerAdaptor::from(self)
    }
}

impl<B: Backend> SimpleOptimizer<B> for Adam {
    type State<const D: usize> = AdamState<B, D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<B, D>,
        gradient: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let (first, second, time) = match state {
            Some(state) => (state.first, state.second, state.time + 1),
            None => (gradient.zeros_like(), gradient.zeros_like(), 1),
        };
        let step = AdamStep {
            rate,
            beta: self.beta,
            epsilon: self.epsilon,
            decay: self.decay,
            time: time.min(i32::MAX as usize) as i32,
        };
        let [w, first, second] = ops::adam_step([tensor, gradient, first, second], step);
        (w, Some(AdamState { first, second, time }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        AdamState {
            first: state.first.to_device(device),
            second: state.second.to_device(device),
            time: state.time,
        }
    }
}
