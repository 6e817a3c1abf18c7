//! Rigorous norms of a layer's weights, and what they say about perturbations inside the layer.

use faer::{Mat, MatRef};

use super::psd::{frobenius_upper, norm2_upper};
use crate::base::parallel;

/// Upper bounds on norms of the stored `V` and `S`.
#[derive(Clone, Debug)]
pub(crate) struct Norms {
    /// `‖V_k‖₂` for `k = 2 … L`.
    pub(crate) v2: Vec<f64>,
    /// `max ‖V_k‖_F`.
    pub(crate) v_frobenius: f64,
    /// `‖S_k‖₂` for every hidden layer.
    pub(crate) s_blocks: Vec<f64>,
    /// `‖S‖₂`.
    pub(crate) s2: f64,
    /// `‖S‖_F`.
    pub(crate) s_frobenius: f64,
    /// `‖w‖ ≤ amplification·‖e‖` for every solution of `w = D(Vw + e)` with a diagonal `0 ⪯ D ⪯ I`.
    pub(crate) amplification: f64,
}

impl Norms {
    pub(crate) fn new(v: &[Mat<f64>], s: MatRef<'_, f64>, units: &[usize]) -> Self {
        let offsets: Vec<usize> = units
            .iter()
            .scan(0, |at, m| {
                *at += m;
                Some(*at - m)
            })
            .collect();
        let mut norms = parallel::map(v.len() + units.len(), |job| match v.get(job) {
            Some(v) => norm2_upper(v.as_ref()),
            None => {
                let k = job - v.len();
                norm2_upper(s.subrows(offsets[k], units[k]))
            }
        });
        let s_blocks = norms.split_off(v.len());
        let v2 = norms;
        Norms {
            v_frobenius: v.iter().map(|v| frobenius_upper(v.as_ref())).fold(0.0, f64::max),
            s2: norm2_upper(s),
            s_frobenius: frobenius_upper(s),
            amplification: amplification(&v2),
            v2,
            s_blocks,
        }
    }

    /// Entry by entry the largest of several: norms of a matrix that is block-diagonal in an
    /// orthonormal basis (Frobenius norms of its largest block).
    pub(crate) fn largest(all: Vec<Norms>) -> Self {
        let entries = |of: fn(&Norms) -> &Vec<f64>| -> Vec<f64> {
            let count = all.first().map_or(0, |n| of(n).len());
            (0..count)
                .map(|k| all.iter().map(|n| of(n)[k]).fold(0.0, f64::max))
                .collect()
        };
        let one = |of: fn(&Norms) -> f64| all.iter().map(of).fold(0.0, f64::max);
        let v2 = entries(|n| &n.v2);
        Norms {
            amplification: amplification(&v2),
            s_blocks: entries(|n| &n.s_blocks),
            v_frobenius: one(|n| n.v_frobenius),
            s2: one(|n| n.s2),
            s_frobenius: one(|n| n.s_frobenius),
            v2,
        }
    }
}

/// `‖w_k‖ ≤ ‖e_k‖ + ‖V_k‖‖w_{k−1}‖`: the Frobenius norm of the matrix of products of the `‖V_k‖`.
///
/// Row k of it has the squared norm `r_k = 1 + ‖V_k‖² r_{k−1}`.
fn amplification(v2: &[f64]) -> f64 {
    let mut row = 1.0;
    let mut square = 1.0;
    for v in v2 {
        row = 1.0 + v * v * row;
        square += row;
    }
    // One rounding in 2⁵³ for every operation, for as many layers as memory holds.
    f64::sqrt(square) * (1.0 + 1e-12 + 1e-15 * v2.len() as f64)
}
