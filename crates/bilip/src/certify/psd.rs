//! Proofs that a symmetric matrix has no eigenvalue below a given number, with all rounding
//! accounted for.
//!
//! The matrix is factored as `A − sI ≈ LLᵀ` in floating point. Whatever `L` came out, `LLᵀ` is
//! positive semidefinite *exactly*, so with `E = (A − sI) − LLᵀ` we have `λmin(A) ≥ s − ‖E‖`. How
//! `L` was computed does not matter; only `E` has to be bounded, and it is, a posteriori, far more
//! sharply than the classical a-priori constant (about `n²u/2`; Rump, "Verification of positive
//! definiteness", 2006) would allow:
//!
//! * Split `L = L₁ + L₂` with `L₁` on the grid `2⁻²⁶ℤ`. The rows of `L` have norm about one, so
//!   every partial sum of `L₁L₁ᵀ` is a multiple of `2⁻⁵²` below 2 and therefore exact, in whatever
//!   order a GEMM adds it up.
//! * `LLᵀ − L₁L₁ᵀ = L₁L₂ᵀ + L₂Lᵀ` has entries below `√K·2⁻²⁶`; its rounding error is `γ_K` times
//!   that, about 1e-20.
//!
//! Three GEMMs at full speed give `E` to about 1e-19 per entry. This lets certified rounding get
//! away with a relative change of 1e-14 to 1e-12 where the classical constant would need 1e-10 and
//! more.

use faer::linalg::cholesky::llt::factor::{LltParams, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, Mat, MatRef, Spec};

use crate::base::parallel::par_for;
use crate::base::rounding::{gamma, sum_up};

/// A symmetric matrix, block tridiagonal with a border:
/// ```text
/// ⎡ D₁  B₁ᵀ         C₁ᵀ ⎤
/// ⎢ B₁  D₂  B₂ᵀ     C₂ᵀ ⎥      blocks B_k = sub[k], C_k = border[k]
/// ⎢     B₂  ⋱       ⋮   ⎥
/// ⎣ C₁  C₂  ⋯       D_b ⎦
/// ```
/// Diagonal entries must not exceed one (scale by a power of two beforehand, which is exact).
///
/// # Cost
/// The blocks off the diagonal are what a file stores, `N` numbers in all. A diagonal block that is
/// a multiple of the identity and much wider than the blocks beside it is eliminated first, which
/// takes no factorization of its own, so every block that is factored has a side of at most `2√N`
/// or 64: a proof takes memory for a multiple of `N` numbers and a multiple of `N√N` operations,
/// whatever the widths are. (A forward pass takes `2N`.)
pub(crate) struct Arrow {
    pub(crate) diagonal: Vec<Diagonal>,
    pub(crate) sub: Vec<Mat<f64>>,
    pub(crate) border: Vec<Mat<f64>>,
    pub(crate) corner: Option<Diagonal>,
}

/// A block on the diagonal.
#[derive(Clone)]
pub(crate) enum Diagonal {
    /// A multiple of the identity.
    Scalar {
        size: usize,
        value: f64,
    },
    Dense(Mat<f64>),
}

impl Diagonal {
    pub(super) fn size(&self) -> usize {
        match self {
            Diagonal::Scalar { size, .. } => *size,
            Diagonal::Dense(block) => block.nrows(),
        }
    }

    /// The block minus a multiple of the identity.
    pub(super) fn shifted(&self, shift: f64) -> Mat<f64> {
        let mut dense = self.dense();
        for i in 0..dense.nrows() {
            dense[(i, i)] -= shift;
        }
        dense
    }

    fn dense(&self) -> Mat<f64> {
        match self {
            Diagonal::Scalar { size, value } => {
                Mat::from_fn(*size, *size, |i, j| if i == j { *value } else { 0.0 })
            }
            Diagonal::Dense(block) => block.clone(),
        }
    }
}

/// A factor `M` with its grid part: `M = grid + rest`.
pub(super) struct Split {
    grid: Mat<f64>,
    rest: Mat<f64>,
    full: Mat<f64>,
}

/// `2²⁶`: the grid has 26 bits after the point, products of two such numbers have 52.
const GRID: f64 = (1u64 << 26) as f64;

impl Split {
    pub(super) fn new(full: Mat<f64>) -> Self {
        let grid = Mat::from_fn(full.nrows(), full.ncols(), |i, j| {
            (full[(i, j)] * GRID).round_ties_even() / GRID
        });
        // Exact: the difference of a number and its rounding to a grid is representable.
        let rest = &full - &grid;
        Split { grid, rest, full }
    }
}

impl Arrow {
    pub(super) fn length(&self) -> usize {
        self.diagonal.iter().map(Diagonal::size).sum::<usize>() + self.width()
    }

    /// The width of the border.
    pub(super) fn width(&self) -> usize {
        self.corner.as_ref().map_or(0, Diagonal::size)
    }

    /// A proved lower bound on the smallest eigenvalue, or `None` when it is below `shift` as far
    /// as can be seen.
    pub(crate) fn eigenvalue_bound(&self, shift: f64) -> Option<f64> {
        let residual = self.factorization_residual(shift)?;
        Some((shift - residual).next_down())
    }

    /// A proved positive lower bound on the smallest eigenvalue: the proof that the matrix is
    /// positive definite.
    ///
    /// `None` means that no proof was found: the smallest eigenvalue is negative, or too close to
    /// zero to tell.
    pub(crate) fn prove_positive(&self) -> Option<f64> {
        let mut shift = self.resolution();
        for _ in 0..4 {
            let residual = self.factorization_residual(shift)?;
            if residual < shift {
                return Some((shift - residual).next_down());
            }
            if !residual.is_finite() {
                return None;
            }
            shift = power_of_two_at_least(1.25 * residual);
        }
        None
    }

    /// The shift to try first: what the residual of a factorization of this size usually comes to.
    pub(crate) fn resolution(&self) -> f64 {
        let widest = self.diagonal.iter().map(Diagonal::size).max().unwrap_or(1);
        power_of_two_at_least((3 * widest + self.width()) as f64 * f64::EPSILON / 8.0)
    }

    /// Whether `A − shift·I` can be factored: a guess at whether it is positive definite, at a
    /// tenth of a proof's cost.
    pub(crate) fn seems_positive(&self, shift: f64) -> bool {
        match self.reduce(shift) {
            None => false,
            Some(Some((reduced, _))) => reduced.factor(0.0).is_some(),
            Some(None) => self.factor(shift).is_some(),
        }
    }

    /// Some r with `A − shift·I + rI ⪰ 0`: a bound on `‖(A − shift·I) − LLᵀ‖₂` for the computed
    /// factor `L`; `None` when the factorization breaks down.
    fn factorization_residual(&self, shift: f64) -> Option<f64> {
        match self.reduce(shift)? {
            Some((reduced, error)) => {
                let factors = reduced.factor(0.0)?;
                Some((reduced.residual_of(&factors, 0.0)? + error).next_up())
            }
            None => self.residual_of(&self.factor(shift)?, shift),
        }
    }

    fn factor(&self, shift: f64) -> Option<Factors> {
        let blocks = self.diagonal.len();
        let width = self.width();
        let mut lower: Vec<Split> = Vec::with_capacity(blocks);
        let mut below: Vec<Split> = Vec::with_capacity(blocks);
        let mut bottom: Vec<Split> = Vec::with_capacity(blocks);
        for k in 0..blocks {
            let mut d = self.diagonal[k].shifted(shift);
            let m = d.nrows();
            if k > 0 {
                let b = &below[k - 1].full;
                matmul(
                    d.as_mut(),
                    Accum::Add,
                    b.transpose(),
                    b.as_ref(),
                    -1.0,
                    par_for(m * m * b.nrows()),
                );
            }
            let l = cholesky(d)?;
            if k + 1 < blocks {
                let mut x = self.sub[k].transpose().to_owned();
                solve_lower_triangular_in_place(l.as_ref(), x.as_mut(), par_for(m * m * self.sub[k].nrows()));
                below.push(Split::new(x));
            }
            if self.corner.is_some() {
                let mut c = self.border[k].transpose().to_owned();
                if k > 0 {
                    let (b, before) = (&below[k - 1].full, &bottom[k - 1].full);
                    matmul(
                        c.as_mut(),
                        Accum::Add,
                        b.transpose(),
                        before.as_ref(),
                        -1.0,
                        par_for(m * width * b.nrows()),
                    );
                }
                solve_lower_triangular_in_place(l.as_ref(), c.as_mut(), par_for(m * m * width));
                bottom.push(Split::new(c));
            }
            lower.push(Split::new(l.transpose().to_owned()));
        }
        let corner = match &self.corner {
            None => None,
            Some(corner) => {
                let mut d = corner.shifted(shift);
                for c in &bottom {
                    let c = &c.full;
                    matmul(
                        d.as_mut(),
                        Accum::Add,
                        c.transpose(),
                        c.as_ref(),
                        -1.0,
                        par_for(width * width * c.nrows()),
                    );
                }
                Some(Split::new(cholesky(d)?.transpose().to_owned()))
            }
        };
        Some(Factors {
            lower,
            below,
            bottom,
            corner,
        })
    }

    /// A bound on `‖(A − shift·I) − LLᵀ‖₂`.
    fn residual_of(&self, factors: &Factors, shift: f64) -> Option<f64> {
        let Factors {
            lower,
            below,
            bottom,
            corner,
        } = factors;
        let blocks = self.diagonal.len();
        let mut rows = RowSums::new(self.length());
        let mut at = 0;
        let end = self.length() - self.width();
        for k in 0..blocks {
            let diagonal = self.diagonal[k].dense();
            let m = diagonal.nrows();
            let mut pairs = vec![(&lower[k], &lower[k])];
            if k > 0 {
                pairs.push((&below[k - 1], &below[k - 1]));
            }
            rows.add_diagonal(residual(diagonal.as_ref(), shift, &pairs)?, at);
            if k + 1 < blocks {
                let e = residual(self.sub[k].as_ref(), 0.0, &[(&below[k], &lower[k])])?;
                rows.add_off_diagonal(e, at + m, at);
            }
            if self.corner.is_some() {
                let mut pairs = vec![(&bottom[k], &lower[k])];
                if k > 0 {
                    pairs.push((&bottom[k - 1], &below[k - 1]));
                }
                rows.add_off_diagonal(residual(self.border[k].as_ref(), 0.0, &pairs)?, end, at);
            }
            at += m;
        }
        if let (Some(matrix), Some(factor)) = (&self.corner, corner) {
            let mut pairs: Vec<_> = bottom.iter().map(|c| (c, c)).collect();
            pairs.push((factor, factor));
            rows.add_diagonal(residual(matrix.dense().as_ref(), shift, &pairs)?, end);
        }
        Some(rows.norm_bound())
    }
}

/// Transposed factors: `lower[k] = L_kkᵀ`, `below[k] = L_{k+1,k}ᵀ`, `bottom[k] = L_{b,k}ᵀ`, `corner
/// = L_bbᵀ`.
struct Factors {
    lower: Vec<Split>,
    below: Vec<Split>,
    bottom: Vec<Split>,
    corner: Option<Split>,
}

/// A residual block with a bound on the error of each of its entries.
pub(super) struct Residual {
    pub(super) block: Mat<f64>,
    pub(super) entry_error: f64,
}

/// `(A − shift·I) − Σ PᵀQ` over the pairs, with the accuracy described at the top of this file.
///
/// `None` when a row of the factors has norm above √1.5, so that exactness of the grid part could
/// not be argued.
pub(super) fn residual(a: MatRef<'_, f64>, shift: f64, pairs: &[(&Split, &Split)]) -> Option<Residual> {
    let (r, c) = a.shape();
    let inner: usize = pairs.iter().map(|(p, _)| p.full.nrows()).sum();
    let par = par_for(r * c * inner);
    let mut exact = Mat::<f64>::zeros(r, c);
    let mut small = Mat::<f64>::zeros(r, c);
    for (p, q) in pairs {
        matmul(
            exact.as_mut(),
            Accum::Add,
            p.grid.transpose(),
            q.grid.as_ref(),
            1.0,
            par,
        );
        matmul(
            small.as_mut(),
            Accum::Add,
            p.grid.transpose(),
            q.rest.as_ref(),
            1.0,
            par,
        );
        matmul(
            small.as_mut(),
            Accum::Add,
            p.rest.transpose(),
            q.full.as_ref(),
            1.0,
            par,
        );
    }
    let is_diagonal = pairs.iter().all(|(p, q)| std::ptr::eq(*p, *q));
    if is_diagonal {
        // If the exact sum of squares reached 2, rounding being monotone, the computed one would
        // have too. Below that, Cauchy–Schwarz bounds every partial sum of every entry of every
        // block by 2.
        for i in 0..r {
            if exact[(i, i)].is_nan() || exact[(i, i)] > 1.5 {
                return None;
            }
        }
    }
    let mut block = Mat::<f64>::zeros(r, c);
    for j in 0..c {
        for i in 0..r {
            // In this order the large numbers cancel first, without error, and the shift meets only
            // small ones.
            let shift = if is_diagonal && i == j { shift } else { 0.0 };
            block[(i, j)] = ((a[(i, j)] - exact[(i, j)]) - shift) - small[(i, j)];
        }
    }
    // Entries of `small` are at most 2·√1.5·√K·2⁻²⁷ in size; the three subtractions add a few
    // roundings of numbers no larger than that, than the shift, and than the residual itself (the
    // caller's inflation).
    let size = 3.0 * (inner as f64).sqrt() / (2.0 * GRID);
    Some(Residual {
        block,
        entry_error: gamma(2 * inner + 2 * pairs.len() + 16) * (size + shift) + f64::MIN_POSITIVE,
    })
}

/// Row sums of absolute values of a symmetric matrix given by its lower blocks; their maximum
/// bounds its norm.
struct RowSums {
    sums: Vec<f64>,
    counts: Vec<usize>,
    entry_error: f64,
}

impl RowSums {
    fn new(length: usize) -> Self {
        RowSums {
            sums: vec![0.0; length],
            counts: vec![0; length],
            entry_error: 0.0,
        }
    }

    fn add(&mut self, i: usize, value: f64) {
        self.sums[i] += value.abs();
        self.counts[i] += 1;
    }

    fn add_diagonal(&mut self, e: Residual, at: usize) {
        self.entry_error = self.entry_error.max(e.entry_error);
        for j in 0..e.block.ncols() {
            for i in 0..e.block.nrows() {
                self.add(at + i, e.block[(i, j)]);
            }
        }
    }

    fn add_off_diagonal(&mut self, e: Residual, row: usize, column: usize) {
        self.entry_error = self.entry_error.max(e.entry_error);
        for j in 0..e.block.ncols() {
            for i in 0..e.block.nrows() {
                self.add(row + i, e.block[(i, j)]);
                self.add(column + j, e.block[(i, j)]);
            }
        }
    }

    fn norm_bound(&self) -> f64 {
        self.sums
            .iter()
            .zip(&self.counts)
            .map(|(sum, count)| {
                let total = sum_up(*sum, *count + 8) + *count as f64 * self.entry_error * 1.001;
                if total.is_nan() { f64::INFINITY } else { total }
            })
            .fold(0.0, f64::max)
            .next_up()
    }
}

/// `‖PᵀP − I‖₂` bounded from above, for a matrix with columns of norm about one; `None` when they
/// are not.
pub(crate) fn orthogonality_defect(p: MatRef<'_, f64>) -> Option<f64> {
    let n = p.ncols();
    let split = Split::new(p.to_owned());
    let e = residual(Mat::<f64>::identity(n, n).as_ref(), 0.0, &[(&split, &split)])?;
    let mut rows = RowSums::new(n);
    rows.add_diagonal(e, 0);
    let bound = rows.norm_bound();
    bound.is_finite().then_some(bound)
}

/// A proved upper bound on the spectral norm `‖A‖₂` of a matrix of finite numbers, usually within
/// 0.2 per cent of it.
///
/// ```
/// let a = bilip::faer::mat![[3.0, 0.0], [0.0, -4.0]];
/// let bound = bilip::spectral_norm_bound(a.as_ref());
/// assert!(bound >= 4.0 && bound < 4.02);
/// ```
pub fn norm2_upper(a: MatRef<'_, f64>) -> f64 {
    let a = if a.nrows() < a.ncols() { a.transpose() } else { a };
    let (rows, n) = a.shape();
    let frobenius = frobenius_upper(a);
    let largest = a.norm_max();
    if n == 0 || largest == 0.0 {
        return 0.0;
    }
    // Entries brought to size one by a power of two, so that the Gram matrix neither overflows nor
    // vanishes.
    let unit = power_of_two_at_least(largest);
    if !(1e-290..1e290).contains(&unit) {
        return frobenius;
    }
    let scaled = Mat::from_fn(rows, n, |i, j| a[(i, j)] / unit);
    unit * norm2_of_unit_size(scaled.as_ref(), frobenius / unit)
}

fn norm2_of_unit_size(a: MatRef<'_, f64>, frobenius: f64) -> f64 {
    let (rows, n) = a.shape();
    let mut gram = Mat::<f64>::zeros(n, n);
    matmul(
        gram.as_mut(),
        Accum::Replace,
        a.transpose(),
        a,
        1.0,
        par_for(n * n * rows),
    );
    let estimate = power_iteration(gram.as_ref());
    let forming = gamma(rows + 4) * frobenius * frobenius;
    for slack in [1.002, 1.02, 1.2, 2.0] {
        let t = estimate * slack;
        let scale = 1.0 / power_of_two_at_least(t);
        let arrow = Arrow {
            diagonal: vec![Diagonal::Dense(Mat::from_fn(n, n, |i, j| {
                let (i, j) = (i.max(j), i.min(j));
                (if i == j { t - gram[(i, j)] } else { -gram[(i, j)] }) * scale
            }))],
            sub: vec![],
            border: vec![],
            corner: None,
        };
        if let Some(bound) = arrow.eigenvalue_bound(0.0) {
            // λmax(G) ≤ t − λmin(tI − G); forming tI − G rounds each diagonal entry once.
            let square = (t - bound / scale + 4.0 * f64::EPSILON * t + forming) * (1.0 + 1e-14);
            return square.sqrt().next_up().min(frobenius);
        }
    }
    frobenius
}

/// An upper bound on the Frobenius norm.
pub(crate) fn frobenius_upper(a: MatRef<'_, f64>) -> f64 {
    let largest = a.norm_max();
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    // Scaled, so that squares neither overflow nor vanish.
    let mut sum = 0.0;
    for j in 0..a.ncols() {
        for i in 0..a.nrows() {
            let v = a[(i, j)] / largest;
            sum += v * v;
        }
    }
    largest * sum_up(sum, a.nrows() * a.ncols() + 8).sqrt() * (1.0 + 4.0 * f64::EPSILON) + f64::MIN_POSITIVE
}

/// An estimate (no bound) of the largest eigenvalue of a positive semidefinite matrix.
fn power_iteration(gram: MatRef<'_, f64>) -> f64 {
    let n = gram.nrows();
    let mut x = Mat::<f64>::from_fn(n, 1, |i, _| 1.0 + 0.5 * ((i as f64) * 2.399_963).sin());
    let mut y = Mat::<f64>::zeros(n, 1);
    let mut value = 0.0;
    for _ in 0..60 {
        let norm = x.norm_l2();
        if norm == 0.0 {
            break;
        }
        matmul(
            y.as_mut(),
            Accum::Replace,
            gram,
            x.as_ref(),
            1.0 / norm,
            par_for(n * n),
        );
        let next = y.norm_l2();
        std::mem::swap(&mut x, &mut y);
        if (next - value).abs() <= 1e-5 * next {
            value = next;
            break;
        }
        value = next;
    }
    // Never below the largest diagonal entry, whatever the start vector missed.
    (0..n).fold(value, |v, i| v.max(gram[(i, i)]))
}

fn cholesky(mut a: Mat<f64>) -> Option<Mat<f64>> {
    let n = a.nrows();
    let par = par_for(n * n * n / 3);
    let params = Spec::<LltParams, f64>::default();
    let mut memory = faer::dyn_stack::MemBuffer::new(cholesky_in_place_scratch::<f64>(n, par, params));
    cholesky_in_place(
        a.as_mut(),
        Default::default(),
        par,
        faer::dyn_stack::MemStack::new(&mut memory),
        params,
    )
    .ok()?;
    for j in 1..n {
        for i in 0..j {
            a[(i, j)] = 0.0;
        }
    }
    Some(a)
}

/// The smallest normal power of two that is at least `x`; `x` itself where there is none.
pub(crate) fn power_of_two_at_least(x: f64) -> f64 {
    if x.is_nan() || x > 2f64.powi(1023) {
        return x;
    }
    if x <= f64::MIN_POSITIVE {
        return f64::MIN_POSITIVE;
    }
    let mut p = 2f64.powi(x.log2().ceil() as i32);
    while p < x {
        p *= 2.0;
    }
    while p * 0.5 >= x {
        p *= 0.5;
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    fn single(a: Mat<f64>) -> Arrow {
        Arrow {
            diagonal: vec![Diagonal::Dense(a)],
            sub: vec![],
            border: vec![],
            corner: None,
        }
    }

    #[test]
    fn the_proved_bound_is_below_the_true_smallest_eigenvalue_and_close_to_it() {
        let mut rng = Rng::new(11);
        for n in [1, 2, 5, 30, 100] {
            for gap in [1e-3, 1e-9, 1e-12] {
                // A matrix with a known spectrum: QΛQᵀ with smallest eigenvalue `gap`, up to
                // rounding.
                let q = crate::layers::cayley::cayley(rng.matrix(n, n, 1.0).as_ref()).unwrap();
                let lambda = |i: usize| {
                    if i == 0 {
                        gap
                    } else {
                        0.1 + 0.4 * i as f64 / n as f64
                    }
                };
                let scaled = Mat::from_fn(n, n, |i, j| q[(i, j)] * lambda(j));
                let a = &scaled * q.transpose();
                let a = Mat::from_fn(n, n, |i, j| 0.5 * (a[(i, j)] + a[(j, i)]));
                let bound = single(a.clone()).eigenvalue_bound(0.5 * gap).unwrap();
                assert!(bound <= gap * (1.0 + 1e-3), "n={n} gap={gap}: {bound}");
                assert!(bound >= 0.3 * gap, "n={n} gap={gap}: {bound}");
                assert!(single(a).eigenvalue_bound(2.0 * gap).is_none());
            }
        }
    }

    #[test]
    fn indefinite_matrices_are_never_proved_positive() {
        let a = Mat::from_fn(2, 2, |i, j| if i == j { 1.0 } else { 1.0 + 1e-15 });
        assert!(single(a).prove_positive().is_none());
        let nan = Mat::from_fn(2, 2, |_, _| f64::NAN);
        assert!(single(nan).prove_positive().is_none());
    }

    #[test]
    fn residual_of_the_split_product_is_exact_on_numbers_that_show_it() {
        // Rows of norm one with entries that need all 53 bits: E is compared with 106-bit
        // arithmetic.
        let mut rng = Rng::new(5);
        let (k, n) = (40, 6);
        let raw = rng.matrix(k, n, 1.0);
        let p = Mat::from_fn(k, n, |i, j| raw[(i, j)] / raw.col(j).norm_l2());
        let split = Split::new(p.clone());
        let e = residual(Mat::<f64>::identity(n, n).as_ref(), 0.0, &[(&split, &split)]).unwrap();
        for i in 0..n {
            for j in 0..n {
                let (mut hi, mut lo) = (if i == j { 1.0 } else { 0.0 }, 0.0);
                for t in 0..k {
                    let (a, b) = (-p[(t, i)], p[(t, j)]);
                    let product = a * b;
                    let error = a.mul_add(b, -product);
                    let sum = hi + product;
                    let part = sum - hi;
                    lo += (hi - (sum - part)) + (product - part) + error;
                    hi = sum;
                }
                assert!((e.block[(i, j)] - (hi + lo)).abs() <= e.entry_error + 1e-15 * (hi + lo).abs());
            }
        }
    }

    #[test]
    fn spectral_norm_bound_is_tight_and_never_below() {
        let mut rng = Rng::new(7);
        for (r, c) in [(1, 1), (3, 7), (40, 20), (64, 64)] {
            for scale in [1e-6, 1.0, 1e8] {
                let a = rng.matrix(r, c, scale);
                let exact = a.singular_values().unwrap()[0];
                let bound = norm2_upper(a.as_ref());
                assert!(bound >= exact * (1.0 - 1e-14), "{bound} < {exact}");
                assert!(bound <= exact * 1.05, "{bound} ≫ {exact}");
            }
        }
        assert_eq!(norm2_upper(Mat::<f64>::zeros(3, 2).as_ref()), 0.0);
        // Found by fuzzing: numbers whose squares leave the range, once an endless loop.
        for extreme in [5e-324, 1e-308, 1e-200, 1e200, 1e308] {
            let a = Mat::from_fn(2, 2, |i, j| if i == j { extreme } else { 0.0 });
            let bound = norm2_upper(a.as_ref());
            assert!(
                bound >= extreme && bound <= 1.5 * extreme + f64::MIN_POSITIVE,
                "{extreme}: {bound}"
            );
        }
        assert_eq!(power_of_two_at_least(0.0), f64::MIN_POSITIVE);
        assert_eq!(power_of_two_at_least(3.0), 4.0);
        assert!(power_of_two_at_least(f64::INFINITY).is_infinite());
    }
}
