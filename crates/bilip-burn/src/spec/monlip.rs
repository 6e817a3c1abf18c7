//! The parameters of a monotone layer.
//!
//! All but the hidden bias are in one flat vector φ, so that an optimizer step is one operation and
//! a layer is one node of the graph.

use std::ops::Range;

use bilip::faer::MatRef;
use bilip::{Activation, Real};

/// The shape of a layer and where its parameters are in φ.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    pub(crate) n: usize,
    pub(crate) units: Vec<usize>,
    pub(crate) offsets: Vec<usize>,
    pub(crate) activation: Activation,
    /// `F^q`, or `[F^p; F^q]` in the general form; rows × n, row-major.
    pub(crate) fq: Range<usize>,
    /// Rows of `F^p`: 0 or n.
    pub(crate) extra: usize,
    pub(crate) gain_q: usize,
    pub(crate) fab: Vec<Range<usize>>,
    pub(crate) gain_ab: Range<usize>,
    pub(crate) output_bias: Range<usize>,
    /// `d`, where the activation is not positively homogeneous.
    pub(crate) log_psi: Option<Range<usize>>,
    pub(crate) len: usize,
}

impl Layout {
    pub(crate) fn new(n: usize, units: &[usize], activation: Activation, general: bool) -> Self {
        let m: usize = units.iter().sum();
        let extra = if general { n } else { 0 };
        let mut at = 0;
        let mut take = |count: usize| {
            at += count;
            at - count..at
        };
        let fq = take((extra + m) * n);
        let gain_q = take(1).start;
        let mut fab = Vec::with_capacity(units.len());
        let mut before = 0;
        for &width in units {
            fab.push(take((width + before) * width));
            before = width;
        }
        let gain_ab = take(units.len());
        let output_bias = take(n);
        let log_psi = (!activation.is_homogeneous()).then(|| take(m));
        let offsets = units
            .iter()
            .scan(0, |sum, width| {
                *sum += width;
                Some(*sum - width)
            })
            .collect();
        Layout {
            n,
            units: units.to_vec(),
            offsets,
            activation,
            fq,
            extra,
            gain_q,
            fab,
            gain_ab,
            output_bias,
            log_psi,
            len: at,
        }
    }

    /// Number of hidden units.
    pub(crate) fn hidden(&self) -> usize {
        self.units.iter().sum()
    }

    pub(crate) fn before(&self, k: usize) -> usize {
        if k == 0 { 0 } else { self.units[k - 1] }
    }

    /// Free matrix `k` of φ: `F_k^{ab}`, `(m_k + m_{k−1}) × m_k`.
    pub(crate) fn fab<'a, T: Real>(&self, phi: &'a [T], k: usize) -> MatRef<'a, T> {
        let width = self.units[k];
        MatRef::from_row_major_slice(&phi[self.fab[k].clone()], width + self.before(k), width)
    }

    /// `F^q` or `[F^p; F^q]`.
    pub(crate) fn fq<'a, T: Real>(&self, phi: &'a [T]) -> MatRef<'a, T> {
        MatRef::from_row_major_slice(&phi[self.fq.clone()], self.extra + self.hidden(), self.n)
    }

    /// Multiply-adds of the transforms, roughly: what decides whether threads pay.
    pub(crate) fn transform_flops(&self) -> usize {
        self.units.iter().map(|m| 8 * m * m * m).sum()
    }
}
