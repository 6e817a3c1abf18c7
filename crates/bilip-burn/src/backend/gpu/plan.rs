//! Where the numbers of a monotone layer are, as kernels see it.
//!
//! Hidden layers are padded to one width, so that all of them go through one batched product; what
//! pads them is zero and stays zero.

// A condition of the compiler's and one of the running kernel's are two conditions.
#![allow(clippy::collapsible_if)]

use std::sync::Arc;

use cubecl::prelude::*;

use crate::spec::Layout;

/// Rows of Q in one piece of the products that sum over them.
pub const PIECE: usize = 256;

/// The width that a matrix is padded to.
pub fn padded(width: usize) -> usize {
    if width <= 32 {
        32
    } else {
        width.next_multiple_of(64)
    }
}

/// Where the free parameters of a hidden layer are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HiddenLayer {
    /// The first number of its free matrix, `(width + before) × width`.
    pub free: usize,
    /// The number of its gain.
    pub gain: usize,
    pub width: usize,
    pub before: usize,
    /// Its first hidden unit.
    pub unit: usize,
}

/// Where the free parameters of Q are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    pub free: usize,
    pub gain: usize,
    /// Rows of the free matrix, those without a hidden unit first.
    pub rows: usize,
    pub extra: usize,
    /// Rows of the padded matrix.
    pub padded: usize,
}

/// The layout of a layer as the kernels see it; part of what they are compiled for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Plan {
    pub n: usize,
    /// The common width of the padded layers.
    pub size: usize,
    pub layers: Vec<HiddenLayer>,
    pub outer: Option<Outer>,
    pub output_bias: usize,
    pub log_psi: Option<usize>,
    /// Hidden units, numbers in φ.
    pub hidden: usize,
    pub len: usize,
}

impl Plan {
    /// Numbers of the padded matrices of the hidden layers.
    pub fn inner_len(&self) -> usize {
        self.layers.len() * 2 * self.size * self.size
    }

    /// Numbers of all padded free matrices.
    pub fn packed_len(&self) -> usize {
        self.inner_len() + self.outer.map_or(0, |o| o.padded * self.n)
    }

    pub fn matrices(&self) -> usize {
        self.layers.len() + usize::from(self.outer.is_some())
    }

    pub fn each(&self, what: impl Fn(&HiddenLayer) -> usize) -> Vec<usize> {
        self.layers.iter().map(what).collect()
    }

    pub fn outer_or_none(&self) -> Outer {
        self.outer.unwrap_or(Outer {
            free: 0,
            gain: 0,
            rows: 0,
            extra: 0,
            padded: 0,
        })
    }
}

/// One number of a hidden layer's description, the layer known only when the kernel runs.
#[cube]
pub fn of_layer(layer: usize, #[comptime] numbers: Vec<usize>) -> usize {
    let mut value = comptime!(numbers[0]).runtime();
    #[unroll]
    for i in 1..comptime!(numbers.len()) {
        if layer == i {
            value = comptime!(numbers[i]).runtime();
        }
    }
    value
}

#[cube]
pub fn width_of(layer: usize, #[comptime] plan: Arc<Plan>) -> usize {
    of_layer(layer, comptime!(plan.each(|l| l.width)))
}

#[cube]
pub fn unit_of(layer: usize, #[comptime] plan: Arc<Plan>) -> usize {
    of_layer(layer, comptime!(plan.each(|l| l.unit)))
}

/// The padded place of a hidden unit.
#[cube]
pub fn place_of(unit: usize, #[comptime] plan: Arc<Plan>) -> usize {
    let mut layer = 0usize;
    #[unroll]
    for l in 1..comptime!(plan.layers.len()) {
        if unit >= comptime!(plan.layers[l].unit) {
            layer = l.runtime();
        }
    }
    layer * comptime!(plan.size) + unit - unit_of(layer, comptime!(plan.clone()))
}

/// The plan of a layer.
pub fn plan_of(layout: &Layout) -> Arc<Plan> {
    let widest = layout.units.iter().copied().max().unwrap_or(1).max(layout.n);
    let rows = layout.extra + layout.hidden();
    let layers = (0..layout.units.len()).map(|k| HiddenLayer {
        free: layout.fab[k].start,
        gain: layout.gain_ab.start + k,
        width: layout.units[k],
        before: if k == 0 { 0 } else { layout.units[k - 1] },
        unit: layout.offsets[k],
    });
    Arc::new(Plan {
        n: layout.n,
        size: padded(widest),
        layers: layers.collect(),
        outer: Some(Outer {
            free: layout.fq.start,
            gain: layout.gain_q,
            rows,
            extra: layout.extra,
            padded: layout.n + rows.div_ceil(PIECE) * PIECE,
        }),
        output_bias: layout.output_bias.start,
        log_psi: layout.log_psi.as_ref().map(|range| range.start),
        hidden: layout.hidden(),
        len: layout.len,
    })
}

/// The plan of one square matrix alone.
pub fn square_plan(n: usize) -> Arc<Plan> {
    Arc::new(Plan {
        n,
        size: padded(n),
        layers: vec![HiddenLayer {
            free: 0,
            gain: 0,
            width: n,
            before: 0,
            unit: 0,
        }],
        outer: None,
        output_bias: n * n,
        log_psi: None,
        hidden: n,
        len: n * n,
    })
}
