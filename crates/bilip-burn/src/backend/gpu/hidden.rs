//! The hidden layers, one after the other: a kernel for each layer of many rows, one for all layers
//! of a few.

// A condition of the compiler's and one of the running kernel's are two conditions.
#![allow(clippy::collapsible_if)]

use std::sync::Arc;

use bilip::Activation;
use cubecl::prelude::*;

use super::memory::UNITS;
use super::plan::{Plan, unit_of, width_of};
use super::product::{Four, Place, Tile, accumulate, zeros};

/// The activation, as kernels are compiled for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivationKernel {
    Relu,
    /// With the bits of its slope.
    Leaky(u32),
    Tanh,
    Sigmoid,
    Arctan,
    Softplus,
    Elu,
    Identity,
}

impl From<Activation> for ActivationKernel {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Relu => ActivationKernel::Relu,
            Activation::LeakyRelu(slope) => ActivationKernel::Leaky((slope.get() as f32).to_bits()),
            Activation::Tanh => ActivationKernel::Tanh,
            Activation::Sigmoid => ActivationKernel::Sigmoid,
            Activation::Arctan => ActivationKernel::Arctan,
            Activation::Softplus => ActivationKernel::Softplus,
            Activation::Elu => ActivationKernel::Elu,
            Activation::Identity => ActivationKernel::Identity,
        }
    }
}

impl ActivationKernel {
    fn slope(self) -> f32 {
        match self {
            ActivationKernel::Leaky(bits) => f32::from_bits(bits),
            _ => 0.0,
        }
    }

    fn is_leaky(self) -> bool {
        matches!(self, ActivationKernel::Leaky(_))
    }
}

#[cube]
fn sigmoid(v: f32) -> f32 {
    1.0 / (1.0 + (-v).exp())
}

#[cube]
fn value_of(v: f32, #[comptime] kind: ActivationKernel) -> f32 {
    if comptime!(kind == ActivationKernel::Relu) {
        max(v, 0.0f32)
    } else if comptime!(kind.is_leaky()) {
        max(v, 0.0f32) + comptime!(kind.slope()) * min(v, 0.0f32)
    } else if comptime!(kind == ActivationKernel::Tanh) {
        v.tanh()
    } else if comptime!(kind == ActivationKernel::Sigmoid) {
        sigmoid(v)
    } else if comptime!(kind == ActivationKernel::Arctan) {
        v.atan()
    } else if comptime!(kind == ActivationKernel::Softplus) {
        max(v, 0.0f32) + (-v.abs()).exp().log1p()
    } else if comptime!(kind == ActivationKernel::Elu) {
        max(v, 0.0f32) + (min(v, 0.0f32).exp() - 1.0)
    } else {
        v
    }
}

#[cube]
fn slope_of(v: f32, #[comptime] kind: ActivationKernel) -> f32 {
    if comptime!(kind == ActivationKernel::Relu) {
        select(v > 0.0, 1.0f32, 0.0f32)
    } else if comptime!(kind.is_leaky()) {
        select(v > 0.0, 1.0f32, comptime!(kind.slope()).runtime())
    } else if comptime!(kind == ActivationKernel::Tanh) {
        let t = v.tanh();
        1.0 - t * t
    } else if comptime!(kind == ActivationKernel::Sigmoid) {
        let s = sigmoid(v);
        s * (1.0 - s)
    } else if comptime!(kind == ActivationKernel::Arctan) {
        1.0 / (1.0 + v * v)
    } else if comptime!(kind == ActivationKernel::Softplus) {
        sigmoid(v)
    } else if comptime!(kind == ActivationKernel::Elu) {
        min(v, 0.0f32).exp()
    } else {
        1.0f32.runtime()
    }
}

/// The hidden unit `unit` of a row: its activation and slope into place, from the sum of what comes
/// from the layer before. Returns the activation; what pads a layer stays zero.
#[cube]
fn activate(
    sum: f32,
    row: usize,
    layer: usize,
    unit: usize,
    inputs: &Array<f32>,
    bias: &Array<f32>,
    phi: &Array<f32>,
    gain: f32,
    z: &mut Array<f32>,
    slopes: &mut Array<f32>,
    pre: &mut Array<f32>,
    #[comptime] bias_per_row: bool,
    #[comptime] kind: ActivationKernel,
    #[comptime] plan: Arc<Plan>,
) -> f32 {
    let at = row * comptime!(plan.size * plan.layers.len()) + layer * comptime!(plan.size) + unit;
    let mut out = 0.0f32;
    let mut slope = 0.0f32;
    let mut v = 0.0f32;
    if unit < width_of(layer, comptime!(plan.clone())) {
        let here = unit_of(layer, comptime!(plan.clone())) + unit;
        let mut b = here;
        if comptime!(bias_per_row) {
            b += row * comptime!(plan.hidden);
        }
        v = sum + gain * inputs[at] + bias[b];
        let mut psi = 1.0f32;
        if comptime!(plan.log_psi.is_some()) {
            psi = phi[comptime!(plan.log_psi.unwrap_or_default()) + here].exp();
        }
        out = psi * value_of(v / psi, kind);
        slope = slope_of(v / psi, kind);
    }
    z[at] = out;
    slopes[at] = slope;
    if comptime!(plan.log_psi.is_some()) {
        pre[at] = v;
    }
    out
}

/// One hidden layer: `v = √(2γ)·Sx + b + V·ẑ₋`, `ẑ = ψσ(v/ψ)`, and its slopes.
#[cube(launch)]
pub fn forward_layer(
    weights: &Array<f32>,
    weights_at: &Place,
    inputs: &Array<f32>,
    bias: &Array<f32>,
    phi: &Array<f32>,
    bounds: &Array<f32>,
    z: &mut Array<f32>,
    z_at: &Place,
    slopes: &mut Array<f32>,
    pre: &mut Array<f32>,
    rows: u32,
    layer: u32,
    #[comptime] first: bool,
    #[comptime] bias_per_row: bool,
    #[comptime] kind: ActivationKernel,
    #[comptime] tile: Tile,
    #[comptime] plan: Arc<Plan>,
) {
    let rows = rows as usize;
    let layer = layer as usize;
    let size = comptime!(plan.size);
    let blocks = comptime!(tile.blocks);
    let first_row = CUBE_POS_Y as usize * comptime!(tile.size());
    let first_col = CUBE_POS_X as usize * comptime!(tile.size());
    let mut sums = zeros(tile);
    if comptime!(!first) {
        accumulate(
            z, z_at, weights, weights_at, rows, size, size, first_row, first_col, 0usize, &mut sums, tile,
        );
    }
    let gain = (2.0 * bounds[1]).sqrt();
    #[unroll]
    for bi in 0..blocks {
        #[unroll]
        for i in 0..4usize {
            let row = first_row + bi * 64 + UNIT_POS_Y as usize * 4 + i;
            if row < rows {
                #[unroll]
                for bj in 0..blocks {
                    let values = sums[comptime!((bi * 4 + i) * blocks + bj)];
                    #[unroll]
                    for j in 0..4usize {
                        let unit = first_col + bj * 64 + UNIT_POS_X as usize * 4 + j;
                        if unit < size {
                            activate(
                                values[j],
                                row,
                                layer,
                                unit,
                                inputs,
                                bias,
                                phi,
                                gain,
                                z,
                                slopes,
                                pre,
                                bias_per_row,
                                kind,
                                comptime!(plan.clone()),
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Backward through one hidden layer: the cotangent of ẑ, `√(γ/2)·S·ȳ + V₊ᵀδ₊`, times the slopes.
#[cube(launch)]
pub fn backward_layer(
    weights: &Array<f32>,
    weights_at: &Place,
    slopes: &Array<f32>,
    bounds: &Array<f32>,
    delta: &mut Array<f32>,
    delta_at: &Place,
    cotangent: &mut Array<f32>,
    rows: u32,
    layer: u32,
    #[comptime] last: bool,
    #[comptime] tile: Tile,
    #[comptime] plan: Arc<Plan>,
) {
    let rows = rows as usize;
    let layer = layer as usize;
    let size = comptime!(plan.size);
    let blocks = comptime!(tile.blocks);
    let stride = comptime!(plan.size * plan.layers.len());
    let first_row = CUBE_POS_Y as usize * comptime!(tile.size());
    let first_col = CUBE_POS_X as usize * comptime!(tile.size());
    let mut sums = zeros(tile);
    if comptime!(!last) {
        accumulate(
            delta, delta_at, weights, weights_at, rows, size, size, first_row, first_col, 0usize, &mut sums,
            tile,
        );
    }
    let gain = (0.5 * bounds[1]).sqrt();
    #[unroll]
    for bi in 0..blocks {
        #[unroll]
        for i in 0..4usize {
            let row = first_row + bi * 64 + UNIT_POS_Y as usize * 4 + i;
            if row < rows {
                #[unroll]
                for bj in 0..blocks {
                    let values = sums[comptime!((bi * 4 + i) * blocks + bj)];
                    #[unroll]
                    for j in 0..4usize {
                        let unit = first_col + bj * 64 + UNIT_POS_X as usize * 4 + j;
                        if unit < size {
                            let at = row * stride + layer * size + unit;
                            let value = values[j] + gain * delta[at];
                            if comptime!(plan.log_psi.is_some()) {
                                cotangent[at] = value;
                            }
                            delta[at] = value * slopes[at];
                        }
                    }
                }
            }
        }
    }
}

/// Which columns and rows a unit of a chain works on: 4 rows, one column at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Chain {
    /// Columns worked on at the same time.
    pub columns: usize,
    /// Groups of 4 rows in a cube.
    pub groups: usize,
}

impl Chain {
    /// The largest width that leaves room for two layers' states in shared memory.
    const WIDEST: usize = 512;
    /// Past this, reading all weights for every few rows costs more than a product for each layer.
    const MOST: usize = 1 << 17;

    /// For layers of one width, where it pays.
    pub fn choose(size: usize, rows: usize) -> Option<Self> {
        let units = UNITS as usize;
        (size <= Self::WIDEST && rows * size <= Self::MOST).then(|| Chain {
            columns: size.min(units),
            groups: (units / size).max(1),
        })
    }

    /// Rows of a cube.
    pub fn rows(&self) -> usize {
        4 * self.groups
    }
}

/// Loads of a unit on their way at once; padded widths are multiples of it.
const AHEAD: usize = 16;

/// Row `along` of the weights against the states of the layer before (`from` on): the unit's 4 rows
/// of one column.
#[cube]
fn chain_sum(
    weights: &Array<f32>,
    start: usize,
    states: &SharedMemory<Four>,
    from: usize,
    column: usize,
    group: usize,
    #[comptime] size: usize,
    #[comptime] groups: usize,
) -> Four {
    let mut sum = Four::new(0.0);
    // Several loads on their way at once: each takes longer than all arithmetic on it.
    let mut loaded = Array::<f32>::new(AHEAD);
    for block in 0..comptime!(size / AHEAD) {
        let first = block * AHEAD;
        #[unroll]
        for i in 0..AHEAD {
            loaded[i] = weights[start + (first + i) * size + column];
        }
        #[unroll]
        for i in 0..AHEAD {
            sum = fma(
                Four::new(loaded[i]),
                states[from + (first + i) * groups + group],
                sum,
            );
        }
    }
    sum
}

/// All hidden layers of a few rows in one cube, their states in shared memory: as
/// [`forward_layer`], with the weights transposed.
#[cube(launch)]
pub fn forward_chain(
    weights: &Array<f32>,
    inputs: &Array<f32>,
    bias: &Array<f32>,
    phi: &Array<f32>,
    bounds: &Array<f32>,
    z: &mut Array<f32>,
    slopes: &mut Array<f32>,
    pre: &mut Array<f32>,
    rows: u32,
    #[comptime] bias_per_row: bool,
    #[comptime] kind: ActivationKernel,
    #[comptime] chain: Chain,
    #[comptime] plan: Arc<Plan>,
) {
    let rows = rows as usize;
    let size = comptime!(plan.size);
    let layers = comptime!(plan.layers.len());
    let (columns, groups) = comptime!((chain.columns, chain.groups));
    let set = comptime!(size * groups);
    let mut states = SharedMemory::<Four>::new(comptime!(2 * set));
    let unit = UNIT_POS as usize;
    let group = unit / columns;
    let first_row = (CUBE_POS_X as usize * groups + group) * 4;
    let gain = (2.0 * bounds[1]).sqrt();
    for layer in 0..layers {
        let (from, to) = ((layer % 2) * set, ((layer + 1) % 2) * set);
        if group < groups {
            let mut column = unit % columns;
            while column < size {
                let mut sum = Four::new(0.0);
                // With one layer there is none before it, and no code that could ask for one.
                if comptime!(layers > 1) {
                    if layer > 0 {
                        let weights_at = (layer - 1) * comptime!(size * size);
                        sum = chain_sum(weights, weights_at, &states, from, column, group, size, groups);
                    }
                }
                let mut state = Four::new(0.0);
                #[unroll]
                for i in 0..4usize {
                    let row = first_row + i;
                    if row < rows {
                        state[i] = activate(
                            sum[i],
                            row,
                            layer,
                            column,
                            inputs,
                            bias,
                            phi,
                            gain,
                            z,
                            slopes,
                            pre,
                            bias_per_row,
                            kind,
                            comptime!(plan.clone()),
                        );
                    }
                }
                states[to + column * groups + group] = state;
                column += columns;
            }
        }
        sync_cube();
    }
}

/// All hidden layers of a few rows, backward: as [`backward_layer`].
#[cube(launch)]
pub fn backward_chain(
    weights: &Array<f32>,
    slopes: &Array<f32>,
    bounds: &Array<f32>,
    delta: &mut Array<f32>,
    cotangent: &mut Array<f32>,
    rows: u32,
    #[comptime] chain: Chain,
    #[comptime] plan: Arc<Plan>,
) {
    let rows = rows as usize;
    let size = comptime!(plan.size);
    let layers = comptime!(plan.layers.len());
    let (columns, groups) = comptime!((chain.columns, chain.groups));
    let set = comptime!(size * groups);
    let mut states = SharedMemory::<Four>::new(comptime!(2 * set));
    let unit = UNIT_POS as usize;
    let group = unit / columns;
    let first_row = (CUBE_POS_X as usize * groups + group) * 4;
    let gain = (0.5 * bounds[1]).sqrt();
    for step in 0..layers {
        let layer = layers - 1 - step;
        let (from, to) = ((step % 2) * set, ((step + 1) % 2) * set);
        if group < groups {
            let mut column = unit % columns;
            while column < size {
                let mut sum = Four::new(0.0);
                if step > 0 {
                    let weights_at = layer * comptime!(size * size);
                    sum = chain_sum(weights, weights_at, &states, from, column, group, size, groups);
                }
                let mut state = Four::new(0.0);
                #[unroll]
                for i in 0..4usize {
                    let row = first_row + i;
                    if row < rows {
                        let at = row * comptime!(size * layers) + layer * size + column;
                        let value = sum[i] + gain * delta[at];
                        if comptime!(plan.log_psi.is_some()) {
                            cotangent[at] = value;
                        }
                        let out = value * slopes[at];
                        delta[at] = out;
                        state[i] = out;
                    }
                }
                states[to + column * groups + group] = state;
                column += columns;
            }
        }
        sync_cube();
    }
}
