//! One step of Adam in one launch.

use burn::tensor::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::memory::{Buffer, Gpu};
use crate::spec::AdamStep;

pub fn adam_step<R: Gpu>(tensors: [CubeTensor<R>; 4], step: AdamStep) -> [CubeTensor<R>; 3] {
    let shape = tensors[0].shape();
    let [w, g, m, v] = tensors.map(|t| Buffer::of(&t));
    let total = shape.num_elements();
    let correct = |beta: f64| 1.0 / (1.0 - beta.powi(step.time));
    let out = [0; 3].map(|_| w.shaped(shape.clone()));
    let (cubes, dim) = w.units(total);
    adam_kernel::launch::<R>(
        w.client(),
        cubes,
        dim,
        w.array(),
        g.array(),
        m.array(),
        v.array(),
        out[0].array(),
        out[1].array(),
        out[2].array(),
        total as u32,
        step.beta.0 as f32,
        step.beta.1 as f32,
        (step.rate * correct(step.beta.0)) as f32,
        correct(step.beta.1) as f32,
        (1.0 - step.rate * step.decay) as f32,
        step.epsilon as f32,
    );
    out.map(|b| b.0)
}

/// One number per unit, as `cpu::adam::step`.
#[cube(launch)]
fn adam_kernel(
    w: &Array<f32>,
    g: &Array<f32>,
    m: &Array<f32>,
    v: &Array<f32>,
    new_w: &mut Array<f32>,
    new_m: &mut Array<f32>,
    new_v: &mut Array<f32>,
    count: u32,
    beta1: f32,
    beta2: f32,
    rate: f32,
    correction: f32,
    keep: f32,
    epsilon: f32,
) {
    let at = ABSOLUTE_POS;
    if at >= count as usize {
        terminate!();
    }
    let gradient = g[at];
    let first = beta1 * m[at] + (1.0 - beta1) * gradient;
    let second = beta2 * v[at] + (1.0 - beta2) * gradient * gradient;
    new_m[at] = first;
    new_v[at] = second;
    new_w[at] = w[at] * keep - rate * first / ((second * correction).sqrt() + epsilon);
}
