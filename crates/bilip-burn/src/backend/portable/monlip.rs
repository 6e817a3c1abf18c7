//! The monotone layer by tensor operations.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::{activate, cayley};
use crate::spec::Layout;

/// `F(x)` of a monotone layer; shapes as in `ops::monlip`.
pub(crate) fn monlip<B: Backend>(
    x: Tensor<B, 2>,
    phi: Tensor<B, 1>,
    bounds: Tensor<B, 1>,
    bias: Tensor<B, 2>,
    layout: &Layout,
) -> Tensor<B, 2> {
    let (n, m) = (layout.n, layout.hidden());
    let part = |range: std::ops::Range<usize>| phi.clone().slice(range);
    let one = |at: usize| part(at..at + 1);
    let free_q = part(layout.fq.clone()).reshape([layout.extra + m, n]);
    let q = if layout.extra + m < n {
        cayley(free_q.transpose(), one(layout.gain_q)).transpose()
    } else {
        cayley(free_q, one(layout.gain_q)).slice([layout.extra..layout.extra + m, 0..n])
    };
    let mu = bounds.clone().slice(0..1).unsqueeze::<2>();
    let gain_in = bounds.slice(1..2).mul_scalar(2.0).sqrt().unsqueeze::<2>();
    let mut y = x.clone() * mu + part(layout.output_bias.clone()).unsqueeze();
    let [bias_rows, _] = bias.dims();
    let mut before: Option<Before<B>> = None;
    for (k, &width) in layout.units.iter().enumerate() {
        let offset = layout.offsets[k];
        let rows = layout.fab[k].len() / width;
        let free = part(layout.fab[k].clone()).reshape([rows, width]);
        let j = cayley(free, one(layout.gain_ab.start + k));
        // J = [Aᵀ; Bᵀ].
        let at = j.clone().slice([0..width, 0..width]);
        let q_k = q.clone().slice([offset..offset + width, 0..n]);
        let mut s = at.clone().transpose().matmul(q_k.clone());
        let mut v = bias.clone().slice([0..bias_rows, offset..offset + width]);
        if let Some(before) = &before {
            let b = j.slice([width..rows, 0..width]).transpose();
            s = s - b.clone().matmul(before.q.clone());
            // ẑ Vᵀ with V = 2 B Aᵀ₋₁.
            let weight = b.matmul(before.at.clone()).mul_scalar(2.0);
            v = v + before.z.clone().matmul(weight.transpose());
        }
        v = v + x.clone().matmul(s.clone().transpose()) * gain_in.clone();
        let z = match &layout.log_psi {
            None => activate(layout.activation, v),
            Some(range) => {
                let start = range.start + offset;
                let psi = part(start..start + width).exp().unsqueeze::<2>();
                activate(layout.activation, v / psi.clone()) * psi
            }
        };
        y = y + z.clone().matmul(s) * gain_in.clone().div_scalar(2.0);
        before = Some(Before { at, q: q_k, z });
    }
    y
}

/// What a hidden layer leaves to the next: Aᵀ, its rows of Q, and ẑ.
struct Before<B: Backend> {
    at: Tensor<B, 2>,
    q: Tensor<B, 2>,
    z: Tensor<B, 2>,
}
