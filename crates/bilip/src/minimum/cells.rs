//! Bounds of `F(x) = ½‖G(x) − g‖²` over boxes in the space of inputs ("cells"), rounding included.
//!
//! For a cell `x = m + h∘ε`, `ε ∈ [−1, 1]ᵈ`, two passes.
//!
//! *Forward*: every hidden unit's argument is enclosed by an affine form, `u(x) ∈ c + aᵀε ± r`;
//! each activation is replaced by two parallel lines around it over the interval of its argument,
//! and what lies between them goes to the radius r.
//!
//! *Backward*, for any point of the cell and any vector R: `F ≥ Rᵀ(G − g) − ½‖R‖²`, and the linear
//! functional `RᵀG` is pulled back through the layers. A unit whose output has a positive weight is
//! replaced by a line below its activation, one with a negative weight by a line above, each close
//! to it at the point. What arrives at the inputs is an affine function below F on the whole cell:
//! a [`Cut`]. With `R = G(x) − g` it touches F at x but for the units whose weight has the wrong
//! sign for their curvature, and the error there is of second order in the size of the cell (zero
//! for ReLU units that do not change their sign in it). Convex combinations of cuts are cuts, which
//! is what closes the gap at a minimum on a kink: see [`Bundle`](super::bundle::Bundle).
//!
//! Rounding: the coefficients of a cut are computed in f64, so they differ from those of the exact
//! pull-back by at most `γ_k` times products of norms (Higham, §3.1); multiplied by bounds on the
//! states they apply to, this is subtracted from the constant.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use super::relax::{Segment, Unit};
use crate::base::error::{Error, Result};
use crate::base::rounding::{SAFETY, floor, gamma, norm};
use crate::certify::psd::frobenius_upper;
use crate::layers::layer::Layer;
use crate::layers::monlip::MonLip;
use crate::layers::stack::{LayerRef, Stack};

/// Columns of numbers, one after the other.
#[derive(Clone)]
pub(super) struct Block {
    rows: usize,
    data: Vec<f64>,
}

impl Block {
    pub(super) fn zeros(rows: usize, columns: usize) -> Self {
        Block {
            rows,
            data: vec![0.0; rows * columns],
        }
    }

    pub(super) fn from_columns<'a>(rows: usize, columns: impl Iterator<Item = &'a [f64]>) -> Self {
        Block {
            rows,
            data: columns.flatten().copied().collect(),
        }
    }

    pub(super) fn columns(&self) -> usize {
        self.data.len() / self.rows.max(1)
    }

    pub(super) fn col(&self, j: usize) -> &[f64] {
        &self.data[j * self.rows..(j + 1) * self.rows]
    }

    fn col_mut(&mut self, j: usize) -> &mut [f64] {
        &mut self.data[j * self.rows..(j + 1) * self.rows]
    }

    fn view(&self) -> MatRef<'_, f64> {
        MatRef::from_column_major_slice(&self.data, self.rows, self.columns())
    }

    /// `self += factor·A·b`.
    fn add_product(&mut self, factor: f64, a: MatRef<'_, f64>, b: &Block) {
        let (rows, columns) = (self.rows, self.columns());
        let to = MatMut::from_column_major_slice_mut(&mut self.data, rows, columns);
        matmul(to, Accum::Add, a, b.view(), factor, Par::Seq);
    }
}

/// An affine layer: orthogonal, or a change of variables.
struct Affine {
    matrix: Mat<f64>,
    absolute: Mat<f64>,
    bias: Vec<f64>,
    bias_error: f64,
    frobenius: f64,
}

/// A monotone layer.
struct Hidden<'a> {
    layer: &'a MonLip<f64>,
    absolute_v: Vec<Mat<f64>>,
    absolute_s: Mat<f64>,
    bias: Vec<f64>,
    bias_error: f64,
    units: Vec<Unit>,
}

enum Stage<'a> {
    Affine(Affine),
    Hidden(Hidden<'a>),
}

/// `F(x) = ½‖G(x) − g‖²`.
pub(super) struct Potential<'a> {
    stages: Vec<Stage<'a>>,
    n: usize,
    /// g, and a bound on its Euclidean error.
    pub(super) target: Vec<f64>,
    pub(super) target_error: f64,
}

/// Affine forms of all components of a state: `c + aᵀε ± r` for every cell.
struct Forms {
    center: Block,
    /// `inputs` columns for every cell.
    slopes: Block,
    radius: Block,
}

/// What is known of one stage over every cell.
enum Known {
    /// A bound on the norm of the stage's input.
    Affine {
        input: Vec<f64>,
    },
    Hidden(HiddenKnown),
}

struct HiddenKnown {
    input: Vec<f64>,
    /// `[m, cells]`.
    segments: Vec<Segment>,
    /// |a| of every argument, `[m, inputs·cells]`.
    slopes: Block,
    /// Norms of the arguments and of the outputs of all units.
    arguments: Vec<f64>,
    outputs: Vec<f64>,
}

/// What the forward pass finds over some cells.
pub(super) struct Enclosure {
    mid: Block,
    half: Block,
    free: Vec<usize>,
    known: Vec<Known>,
    /// G at the middle, by the affine form.
    pub(super) center: Block,
    /// Its slopes: column j of a cell is `∂G/∂εⱼ`.
    pub(super) slopes: Block,
}

/// An affine function below F on a cell: `F(x) ≥ constant + gradientᵀε`.
#[derive(Clone)]
pub(super) struct Cut {
    pub(super) constant: f64,
    pub(super) gradient: Vec<f64>,
}

/// A cut, and what was found at the point that it was made for.
pub(super) struct Touch {
    pub(super) cut: Cut,
    /// F there as computed.
    pub(super) value: f64,
    /// How much each free input contributes to what the cut gives away.
    pub(super) scores: Vec<f64>,
}

impl<'a> Potential<'a> {
    /// The layers of a stack with the biases of its only row.
    ///
    /// # Errors
    /// On layers of images.
    pub(super) fn new(stack: &Stack<'a, f64>, target: Vec<f64>, target_error: f64) -> Result<Self> {
        let mut stages = Vec::new();
        for (k, layer) in stack.layers.iter().enumerate() {
            let bias = stack.bias(k).column(0).to_vec();
            let bias_error = stack.biases.as_ref().map_or(0.0, |b| b.errors[k][0]);
            let affine = |matrix: Mat<f64>, bias: Vec<f64>| {
                Stage::Affine(Affine {
                    absolute: absolute(matrix.as_ref()),
                    frobenius: frobenius_upper(matrix.as_ref()),
                    matrix,
                    bias,
                    bias_error,
                })
            };
            stages.push(match *layer {
                LayerRef::Orthogonal(layer) => affine(layer.matrix().to_owned(), bias),
                LayerRef::Scaling(layer) => {
                    let n = layer.size();
                    let scale = |i: usize, j: usize| if i == j { layer.scale()[i] } else { 0.0 };
                    affine(Mat::from_fn(n, n, scale), bias)
                }
                LayerRef::MonLip(layer) => Stage::Hidden(Hidden {
                    layer,
                    absolute_v: layer.v().iter().map(|v| absolute(v.as_ref())).collect(),
                    absolute_s: absolute(layer.s()),
                    units: (0..layer.hidden())
                        .map(|i| Unit::new(layer.activation(), layer.psi().map_or(1.0, |p| p[i])))
                        .collect(),
                    bias,
                    bias_error,
                }),
                _ => {
                    return Err(Error::setting(
                        "minimize_in",
                        "a layer of images",
                        "minima in boxes are those of dense networks",
                    ));
                }
            });
        }
        Ok(Potential {
            stages,
            n: stack.n,
            target,
            target_error,
        })
    }

    /// Encloses every unit over the cells with these middles and half widths; only the `free`
    /// inputs get a variable of their own.
    pub(super) fn enclose(&self, mid: Block, half: Block, free: &[usize]) -> Enclosure {
        let (cells, d) = (mid.columns(), free.len());
        let mut forms = Forms {
            center: mid.clone(),
            slopes: Block::zeros(self.n, cells * d),
            radius: half.clone(),
        };
        for c in 0..cells {
            for (j, &i) in free.iter().enumerate() {
                forms.slopes.col_mut(c * d + j)[i] = half.col(c)[i];
                forms.radius.col_mut(c)[i] = 0.0;
            }
        }
        let mut known = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let input = forms.sizes(d);
            match stage {
                Stage::Affine(stage) => {
                    forms = stage.forms(&forms, d);
                    known.push(Known::Affine { input });
                }
                Stage::Hidden(stage) => {
                    let found;
                    (forms, found) = stage.forms(&forms, d, input);
                    known.push(Known::Hidden(found));
                }
            }
        }
        Enclosure {
            mid,
            half,
            free: free.to_vec(),
            known,
            center: forms.center,
            slopes: forms.slopes,
        }
    }

    /// F at points, one per column, and a cut of the cell `cells[k]` of an enclosure for point k.
    pub(super) fn touch(&self, enclosure: &Enclosure, cells: &[usize], points: &Block) -> Vec<Touch> {
        let columns = cells.len();
        let mut state = points.clone();
        let mut arguments = Vec::new();
        for stage in &self.stages {
            match stage {
                Stage::Affine(stage) => state = stage.forward(&state),
                Stage::Hidden(stage) => {
                    let pre;
                    (state, pre) = stage.forward(&state);
                    arguments.push(pre);
                }
            }
        }
        // R, which becomes the weights of the functional.
        for k in 0..columns {
            for (r, g) in state.col_mut(k).iter_mut().zip(&self.target) {
                *r -= g;
            }
        }
        let residual = state.clone();
        let mut weights = state;
        let mut sums = vec![Sum::default(); columns];
        let mut scores = Block::zeros(enclosure.free.len().max(1), columns);
        for (stage, known) in self.stages.iter().zip(&enclosure.known).rev() {
            match (stage, known) {
                (Stage::Affine(stage), Known::Affine { input }) => {
                    weights = stage.pull_back(&weights, input, cells, &mut sums);
                }
                (Stage::Hidden(stage), Known::Hidden(known)) => {
                    let pre = arguments.pop().unwrap_or_else(|| Block::zeros(1, 0));
                    weights = stage.pull_back(&weights, known, &pre, cells, &mut sums, &mut scores);
                }
                _ => {}
            }
        }
        (0..columns)
            .map(|k| {
                let (r, w) = (residual.col(k), weights.col(k));
                let (mid, half) = (enclosure.mid.col(cells[k]), enclosure.half.col(cells[k]));
                self.finish(r, w, mid, half, &enclosure.free, &sums[k], scores.col(k))
            })
            .collect()
    }

    #[allow(clippy::too_many_arguments)]
    fn finish(
        &self,
        r: &[f64],
        w: &[f64],
        mid: &[f64],
        half: &[f64],
        free: &[usize],
        sum: &Sum,
        scores: &[f64],
    ) -> Touch {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let size = norm(r);
        let value = 0.5 * dot(r, r);
        let mut constant = sum.constant + dot(w, mid) - dot(r, &self.target) - value;
        // Inputs without a variable of their own: fixed, but for the rounding of a change of
        // variables.
        let fixed = (0..w.len()).filter(|i| !free.contains(i));
        constant -= fixed.map(|i| w[i].abs() * half[i]).sum::<f64>() * SAFETY;
        let rounding = gamma(self.n + 64)
            * (sum.size
                + norm(w) * (norm(mid) + norm(half))
                + size * norm(&self.target)
                + value
                + constant.abs());
        constant -= (sum.loss + rounding + size * self.target_error) * SAFETY + floor(self.n);
        Touch {
            cut: Cut {
                constant,
                gradient: free.iter().map(|&i| w[i] * half[i]).collect(),
            },
            value,
            scores: scores[..free.len()].to_vec(),
        }
    }
}

/// What a functional has gathered on its way back.
#[derive(Clone, Copy, Default)]
struct Sum {
    constant: f64,
    /// Bounds of the terms in the constant.
    size: f64,
    /// What rounding may have taken.
    loss: f64,
}

impl Forms {
    /// A bound on the norm of the state over every cell.
    fn sizes(&self, d: usize) -> Vec<f64> {
        (0..self.center.columns())
            .map(|c| {
                let slopes: f64 = (0..d).map(|j| norm(self.slopes.col(c * d + j))).sum();
                (norm(self.center.col(c)) + slopes + norm(self.radius.col(c))) * SAFETY
            })
            .collect()
    }
}

impl Affine {
    fn forms(&self, x: &Forms, d: usize) -> Forms {
        let (n, cells) = (self.bias.len(), x.center.columns());
        let mut y = Forms {
            center: Block::zeros(n, cells),
            slopes: Block::zeros(n, cells * d),
            radius: Block::zeros(n, cells),
        };
        y.center.add_product(1.0, self.matrix.as_ref(), &x.center);
        y.slopes.add_product(1.0, self.matrix.as_ref(), &x.slopes);
        y.radius.add_product(1.0, self.absolute.as_ref(), &x.radius);
        let sizes = x.sizes(d);
        let bias = norm(&self.bias);
        for (c, size) in sizes.iter().enumerate() {
            let error = rounding(n + 8, self.frobenius * size + bias) + floor(n) + self.bias_error;
            add(y.center.col_mut(c), &self.bias);
            for r in y.radius.col_mut(c) {
                *r = (*r + error) * SAFETY;
            }
        }
        y
    }

    fn forward(&self, x: &Block) -> Block {
        let mut y = Block::zeros(self.bias.len(), x.columns());
        y.add_product(1.0, self.matrix.as_ref(), x);
        for k in 0..y.columns() {
            add(y.col_mut(k), &self.bias);
        }
        y
    }

    fn pull_back(&self, w: &Block, input: &[f64], cells: &[usize], sums: &mut [Sum]) -> Block {
        let n = self.bias.len();
        let mut out = Block::zeros(n, w.columns());
        out.add_product(1.0, self.matrix.transpose(), w);
        for (k, sum) in sums.iter_mut().enumerate() {
            let w = w.col(k);
            let size = norm(w);
            sum.constant += w.iter().zip(&self.bias).map(|(w, b)| w * b).sum::<f64>();
            let bias = size * norm(&self.bias);
            sum.size += bias;
            sum.loss += rounding(n + 16, size * self.frobenius * input[cells[k]] + bias)
                + size * self.bias_error
                + floor(n);
        }
        out
    }
}

impl Hidden<'_> {
    fn forms(&self, x: &Forms, d: usize, input: Vec<f64>) -> (Forms, HiddenKnown) {
        let (layer, cells) = (self.layer, x.center.columns());
        let (n, m) = (layer.size(), layer.hidden());
        let (gain_in, gain_out) = layer.gains();
        let mu = layer.design().mu();
        let norms = layer.norms();
        let mut y = Forms {
            center: Block::zeros(n, cells),
            slopes: Block::zeros(n, cells * d),
            radius: Block::zeros(n, cells),
        };
        let scaled = |to: &mut Block, from: &Block| {
            for (y, x) in to.data.iter_mut().zip(&from.data) {
                *y = mu * x;
            }
        };
        scaled(&mut y.center, &x.center);
        scaled(&mut y.slopes, &x.slopes);
        scaled(&mut y.radius, &x.radius);
        let mut known = HiddenKnown {
            input,
            segments: vec![Segment::default(); m * cells],
            slopes: Block::zeros(m, cells * d),
            arguments: vec![0.0; cells],
            outputs: vec![0.0; cells],
        };
        let mut before: Option<Forms> = None;
        let mut before_sizes = vec![0.0; cells];
        let mut outputs = vec![0.0; cells];
        let mut all_sizes = vec![0.0; cells];
        for (k, &width) in layer.units().iter().enumerate() {
            let offset = layer.weights.offsets[k];
            let s = layer.s().subrows(offset, width);
            let s_abs = self.absolute_s.as_ref().subrows(offset, width);
            let mut z = Forms {
                center: Block::zeros(width, cells),
                slopes: Block::zeros(width, cells * d),
                radius: Block::zeros(width, cells),
            };
            z.center.add_product(gain_in, s, &x.center);
            z.slopes.add_product(gain_in, s, &x.slopes);
            z.radius.add_product(gain_in, s_abs, &x.radius);
            if let Some(before) = &before {
                let (v, v_abs) = (layer.v()[k - 1].as_ref(), self.absolute_v[k - 1].as_ref());
                z.center.add_product(1.0, v, &before.center);
                z.slopes.add_product(1.0, v, &before.slopes);
                z.radius.add_product(1.0, v_abs, &before.radius);
            }
            let bias = &self.bias[offset..offset + width];
            let widest = layer.units().iter().copied().max().unwrap_or(0);
            for c in 0..cells {
                let terms = norms.v_frobenius * before_sizes[c]
                    + gain_in * norms.s_frobenius * known.input[c]
                    + norm(bias);
                let error = rounding(widest + n + 32, terms) + floor(widest + n) + self.bias_error;
                add(z.center.col_mut(c), bias);
                let mut reach: Vec<f64> = z.radius.col(c).iter().map(|r| (r + error) * SAFETY).collect();
                z.radius.col_mut(c).copy_from_slice(&reach);
                for j in 0..d {
                    let from = z.slopes.col(c * d + j);
                    let to = &mut known.slopes.col_mut(c * d + j)[offset..offset + width];
                    for i in 0..width {
                        to[i] = from[i].abs();
                        reach[i] += to[i];
                    }
                }
                let (mut arguments, mut squares) = (0.0, 0.0);
                for i in 0..width {
                    let center = z.center.col(c)[i];
                    let reach = reach[i] * SAFETY;
                    let (low, high) = ((center - reach).next_down(), (center + reach).next_up());
                    let unit = &self.units[offset + i];
                    let segment = match low.is_finite() && high.is_finite() {
                        true => unit.over(low, high),
                        false => Segment::unknown(low, high),
                    };
                    known.segments[c * m + offset + i] = segment;
                    let middle = 0.5 * (segment.below + segment.above);
                    let spread = 0.5 * (segment.above - segment.below);
                    let shifted = segment.slope * center + middle;
                    z.center.col_mut(c)[i] = shifted;
                    // A few roundings of the line and of what is between.
                    let own = 8.0 * f64::EPSILON * (center.abs() + middle.abs() + spread);
                    let radius = &mut z.radius.col_mut(c)[i];
                    *radius = (segment.slope * *radius + spread + own) * SAFETY;
                    for j in 0..d {
                        z.slopes.col_mut(c * d + j)[i] *= segment.slope;
                    }
                    let argument = low.abs().max(high.abs());
                    arguments += argument * argument;
                    // The lines as well as the activation are within these.
                    let output = argument + segment.below.abs().max(segment.above.abs());
                    squares += output * output;
                }
                known.arguments[c] += arguments;
                outputs[c] += squares;
            }
            y.center.add_product(gain_out, s.transpose(), &z.center);
            y.slopes.add_product(gain_out, s.transpose(), &z.slopes);
            y.radius.add_product(gain_out, s_abs.transpose(), &z.radius);
            before_sizes = z.sizes(d);
            add(&mut all_sizes, &before_sizes);
            before = Some(z);
        }
        for c in 0..cells {
            known.arguments[c] = known.arguments[c].sqrt() * SAFETY;
            known.outputs[c] = outputs[c].sqrt() * SAFETY;
            let terms =
                mu * known.input[c] + gain_out * norms.s_frobenius * all_sizes[c] + norm(layer.output_bias());
            let error = rounding(m + n + 32, terms) + floor(m + n);
            add(y.center.col_mut(c), layer.output_bias());
            for r in y.radius.col_mut(c) {
                *r = (*r + error) * SAFETY;
            }
        }
        (y, known)
    }

    /// The layer at the columns of `x`, and the arguments of its units.
    fn forward(&self, x: &Block) -> (Block, Block) {
        let (layer, columns) = (self.layer, x.columns());
        let (n, m) = (layer.size(), layer.hidden());
        let (gain_in, gain_out) = layer.gains();
        let mu = layer.design().mu();
        let mut y = Block::zeros(n, columns);
        let mut all = Block::zeros(m, columns);
        for k in 0..columns {
            for i in 0..n {
                y.col_mut(k)[i] = mu * x.col(k)[i] + layer.output_bias()[i];
            }
        }
        let mut before: Option<Block> = None;
        for (k, &width) in layer.units().iter().enumerate() {
            let offset = layer.weights.offsets[k];
            let s = layer.s().subrows(offset, width);
            let mut z = Block::zeros(width, columns);
            z.add_product(gain_in, s, x);
            if let Some(before) = &before {
                z.add_product(1.0, layer.v()[k - 1].as_ref(), before);
            }
            for j in 0..columns {
                let range = offset..offset + width;
                let z = z.col_mut(j);
                add(z, &self.bias[range.clone()]);
                all.col_mut(j)[range.clone()].copy_from_slice(z);
                for (z, unit) in z.iter_mut().zip(&self.units[range]) {
                    *z = unit.value(*z);
                }
            }
            y.add_product(gain_out, s.transpose(), &z);
            before = Some(z);
        }
        (y, all)
    }

    fn pull_back(
        &self,
        w: &Block,
        known: &HiddenKnown,
        arguments: &Block,
        cells: &[usize],
        sums: &mut [Sum],
        scores: &mut Block,
    ) -> Block {
        let (layer, columns) = (self.layer, w.columns());
        let (n, m) = (layer.size(), layer.hidden());
        let (gain_in, gain_out) = layer.gains();
        let mu = layer.design().mu();
        let norms = layer.norms();
        let d = known.slopes.columns() / known.input.len().max(1);
        let mut out = Block::zeros(n, columns);
        for (out, w) in out.data.iter_mut().zip(&w.data) {
            *out = mu * w;
        }
        // Squares of norms: weights of the outputs, of the arguments, offsets of the lines.
        let mut squares = vec![[0.0; 3]; columns];
        let mut after: Option<Block> = None;
        for (k, &width) in layer.units().iter().enumerate().rev() {
            let offset = layer.weights.offsets[k];
            let s = layer.s().subrows(offset, width);
            let mut weights = Block::zeros(width, columns);
            weights.add_product(gain_out, s, w);
            if let Some(after) = &after {
                weights.add_product(1.0, layer.v()[k].transpose(), after);
            }
            for j in 0..columns {
                let cell = cells[j];
                let segments = &known.segments[cell * m + offset..][..width];
                let arguments = &arguments.col(j)[offset..offset + width];
                let mut constant = 0.0;
                for (i, weight) in weights.col_mut(j).iter_mut().enumerate() {
                    let (unit, segment, v) = (&self.units[offset + i], &segments[i], arguments[i]);
                    let output = *weight;
                    let line = unit.line(segment, v, output >= 0.0);
                    *weight = output * line.slope;
                    constant += output * line.offset + *weight * self.bias[offset + i];
                    squares[j][0] += output * output;
                    squares[j][1] += *weight * *weight;
                    squares[j][2] += line.offset * line.offset;
                    let height = segment.above - segment.below;
                    if height > 0.0 && d > 0 {
                        let share = output.abs() * height;
                        let slope = |a: usize| known.slopes.col(cell * d + a)[offset + i];
                        let total: f64 = (0..d).map(slope).sum::<f64>() + f64::MIN_POSITIVE;
                        for a in 0..d {
                            scores.col_mut(j)[a] += share * slope(a) / total;
                        }
                    }
                }
                sums[j].constant += constant;
            }
            out.add_product(gain_in, s.transpose(), &weights);
            after = Some(weights);
        }
        for j in 0..columns {
            let cell = cells[j];
            let size = norm(w.col(j));
            let [outputs, arguments, offsets] = squares[j].map(f64::sqrt);
            let bias = layer.output_bias();
            sums[j].constant += w.col(j).iter().zip(bias).map(|(w, b)| w * b).sum::<f64>();
            let terms = outputs * offsets + arguments * norm(&self.bias) + size * norm(bias);
            sums[j].size += terms;
            let loss = (mu * size + gain_in * norms.s_frobenius * arguments) * known.input[cell]
                + (gain_out * norms.s_frobenius * size + norms.v_frobenius * arguments) * known.outputs[cell]
                + outputs * known.arguments[cell]
                + terms;
            sums[j].loss += rounding(m + n + 64, loss) + arguments * self.bias_error * SAFETY + floor(m + n);
        }
        out
    }
}

/// `γ_k · size`.
fn rounding(k: usize, size: f64) -> f64 {
    gamma(k) * size * SAFETY
}

fn absolute(matrix: MatRef<'_, f64>) -> Mat<f64> {
    Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(i, j)].abs())
}

fn add(to: &mut [f64], other: &[f64]) {
    for (a, b) in to.iter_mut().zip(other) {
        *a += b;
    }
}
