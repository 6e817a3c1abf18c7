//! A dataset in the memory of a device, and the loss on it.

use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, ElementConversion, Int, Tensor, TensorData};

use crate::base::{Dataset, Loss};
use crate::networks::Predict;

/// Rows as a tensor in single precision.
fn rows<B: Backend>(values: &[f64], columns: usize, device: &B::Device) -> Tensor<B, 2> {
    let data: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_data(
        TensorData::new(data, [values.len() / columns, columns]),
        (device, DType::F32),
    )
}

/// Rows in the memory of the device; the targets are numbers or classes.
pub(super) struct Resident<B: Backend> {
    pub inputs: Tensor<B, 2>,
    parameters: Option<Tensor<B, 2>>,
    targets: Targets<B>,
    /// Weights of the rows, `[rows, 1]`.
    weights: Option<Tensor<B, 2>>,
}

enum Targets<B: Backend> {
    Numbers(Tensor<B, 2>),
    Classes(Tensor<B, 2, Int>),
}

impl<B: Backend> Resident<B> {
    pub fn new(data: &Dataset, loss: Loss, device: &B::Device) -> Self {
        let columns = data.columns();
        let targets = match loss {
            Loss::HalfMse => Targets::Numbers(rows(data.targets(), columns.targets, device)),
            Loss::CrossEntropy => {
                let classes: Vec<i32> = data.targets().iter().map(|v| *v as i32).collect();
                let count = classes.len();
                Targets::Classes(Tensor::from_data(TensorData::new(classes, [count, 1]), device))
            }
        };
        Resident {
            inputs: rows(data.inputs(), columns.inputs, device),
            parameters: (columns.parameters > 0).then(|| rows(data.parameters(), columns.parameters, device)),
            targets,
            weights: data.weights().map(|w| rows(w, 1, device)),
        }
    }

    pub fn indices(&self, order: &[usize], device: &B::Device) -> Tensor<B, 1, Int> {
        let order: Vec<i32> = order.iter().map(|r| *r as i32).collect();
        let count = order.len();
        Tensor::from_data(TensorData::new(order, [count]), device)
    }

    pub fn select(&self, rows: Tensor<B, 1, Int>) -> Self {
        Resident {
            inputs: self.inputs.clone().select(0, rows.clone()),
            parameters: self.parameters.clone().map(|p| p.select(0, rows.clone())),
            targets: match &self.targets {
                Targets::Numbers(t) => Targets::Numbers(t.clone().select(0, rows.clone())),
                Targets::Classes(t) => Targets::Classes(t.clone().select(0, rows.clone())),
            },
            weights: self.weights.clone().map(|w| w.select(0, rows)),
        }
    }

    fn slice(&self, rows: std::ops::Range<usize>) -> Self {
        Resident {
            inputs: self.inputs.clone().slice(rows.clone()),
            parameters: self.parameters.clone().map(|p| p.slice(rows.clone())),
            targets: match &self.targets {
                Targets::Numbers(t) => Targets::Numbers(t.clone().slice(rows.clone())),
                Targets::Classes(t) => Targets::Classes(t.clone().slice(rows.clone())),
            },
            weights: self.weights.clone().map(|w| w.slice(rows)),
        }
    }

    fn rows(&self) -> usize {
        self.inputs.dims()[0]
    }
}

/// The loss of a batch.
pub(super) fn loss<B: Backend, M: Predict<B>>(model: &M, batch: Resident<B>) -> Tensor<B, 1> {
    let predicted = model.predict(batch.inputs, batch.parameters);
    let (losses, factor) = match batch.targets {
        Targets::Numbers(targets) => {
            let error = predicted - targets;
            (error.clone() * error, 0.5)
        }
        Targets::Classes(classes) => (log_softmax(predicted, 1).gather(1, classes), -1.0),
    };
    match batch.weights {
        None => losses.mean().mul_scalar(factor),
        Some(weights) => (losses * weights).mean().mul_scalar(factor),
    }
}

/// The loss over all rows, in blocks.
pub(super) fn evaluate<B: Backend, M: Predict<B>>(model: &M, data: &Resident<B>) -> f64 {
    let count = data.rows();
    let sum: f64 = (0..count)
        .step_by(2_048)
        .map(|start| {
            let rows = start..(start + 2_048).min(count);
            let size = rows.len() as f64;
            let value: f64 = loss(model, data.slice(rows)).into_scalar().elem();
            value * size
        })
        .sum();
    sum / count as f64
}
