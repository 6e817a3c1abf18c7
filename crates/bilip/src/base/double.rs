//! Double-double arithmetic: a number as the unevaluated sum of two, by error-free products and
//! sums.

use faer::MatRef;

use crate::base::real::UNIT_ROUNDOFF;

/// A vector as an unevaluated sum of two: `hi + lo`.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) hi: Vec<f64>,
    pub(crate) lo: Vec<f64>,
}

impl Pair {
    pub(crate) fn zeros(len: usize) -> Self {
        let (hi, lo) = (vec![0.0; len], vec![0.0; len]);
        Pair { hi, lo }
    }
}

/// Relative error of a double-double sum of `k` products: `3k²u²` (Ogita, Rump, Oishi 2005), with
/// room.
pub(crate) fn double_gamma(k: usize) -> f64 {
    let ku = (k as f64 + 8.0) * UNIT_ROUNDOFF;
    8.0 * ku * ku
}

/// `acc += A (x_hi + x_lo)` in double-double arithmetic.
pub(crate) fn add_product(
    a: MatRef<'_, f64>,
    x_hi: &[f64],
    x_lo: &[f64],
    acc_hi: &mut [f64],
    acc_lo: &mut [f64],
) {
    // Columns of zeros are passed over (about half of them behind a ReLU); the others are taken
    // four at a time, so that the sums are loaded and stored once for four products.
    let used: Vec<usize> = (0..a.ncols())
        .filter(|j| x_hi[*j] != 0.0 || x_lo[*j] != 0.0)
        .collect();
    if a.row_stride() != 1 {
        let dense = a.to_owned();
        return add_product(dense.as_ref(), x_hi, x_lo, acc_hi, acc_lo);
    }
    let column = |j: usize| a.col(j).try_as_col_major().map_or(&[][..], |c| c.as_slice());
    let mut groups = used.chunks_exact(4);
    for g in &mut groups {
        let g = [g[0], g[1], g[2], g[3]];
        add_columns(
            g.map(column),
            g.map(|j| x_hi[j]),
            g.map(|j| x_lo[j]),
            acc_hi,
            acc_lo,
        );
    }
    for &j in groups.remainder() {
        add_columns([column(j)], [x_hi[j]], [x_lo[j]], acc_hi, acc_lo);
    }
}

fn add_columns<const K: usize>(
    columns: [&[f64]; K],
    x_hi: [f64; K],
    x_lo: [f64; K],
    acc_hi: &mut [f64],
    acc_lo: &mut [f64],
) {
    let rows = acc_hi.len();
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let columns = columns.map(|c| &c[..rows]);
            let (acc_hi, acc_lo) = (&mut acc_hi[..rows], &mut acc_lo[..rows]);
            for i in 0..rows {
                let (mut hi, mut lo) = (acc_hi[i], acc_lo[i]);
                for k in 0..K {
                    let entry = columns[k][i];
                    let (p, e) = two_product(entry, x_hi[k]);
                    let (s, e2) = two_sum(hi, p);
                    hi = s;
                    lo += e + e2 + entry * x_lo[k];
                }
                (acc_hi[i], acc_lo[i]) = (hi, lo);
            }
        },
    );
}

/// `Σ aᵢ(bᵢ + cᵢ)` in double-double arithmetic, added to a given pair.
pub(crate) fn add_dot(a: &[f64], b: &[f64], c: &[f64], start: (f64, f64)) -> (f64, f64) {
    const LANES: usize = 8;
    let (mut hi, mut lo) = ([0.0; LANES], [0.0; LANES]);
    let whole = a.len() / LANES * LANES;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let blocks = a
                .chunks_exact(LANES)
                .zip(b.chunks_exact(LANES))
                .zip(c.chunks_exact(LANES));
            for ((a, b), c) in blocks {
                for k in 0..LANES {
                    let (p, e) = two_product(a[k], b[k]);
                    let (s, e2) = two_sum(hi[k], p);
                    hi[k] = s;
                    lo[k] += e + e2 + a[k] * c[k];
                }
            }
        },
    );
    let mut sum = start;
    let mut add = |p: f64, rest: f64| {
        let (s, e) = two_sum(sum.0, p);
        sum = (s, sum.1 + (e + rest));
    };
    for k in 0..LANES {
        add(hi[k], lo[k]);
    }
    for i in whole..a.len() {
        let (p, e) = two_product(a[i], b[i]);
        add(p, e + a[i] * c[i]);
    }
    sum
}

pub(crate) fn renormalize(v: &mut Pair) {
    for (hi, lo) in v.hi.iter_mut().zip(&mut v.lo) {
        (*hi, *lo) = two_sum(*hi, *lo);
    }
}

/// `a + b` as head and exact tail.
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// `a · b` as head and exact tail.
#[inline(always)]
pub(crate) fn two_product(a: f64, b: f64) -> (f64, f64) {
    let p = a * b;
    (p, a.mul_add(b, -p))
}

/// `(hi + lo)·c` in double-double.
pub(crate) fn times(hi: f64, lo: f64, c: (f64, f64)) -> (f64, f64) {
    let (p, e) = two_product(hi, c.0);
    two_sum(p, e + (hi * c.1 + lo * c.0))
}

/// `√(hi + lo)` in double-double: one Newton step from the rounded root.
pub(crate) fn sqrt_pair(hi: f64, lo: f64) -> (f64, f64) {
    let r = hi.sqrt();
    if r == 0.0 {
        return (0.0, 0.0);
    }
    let (p, e) = two_product(r, r);
    two_sum(r, ((hi - p) - e + lo) / (2.0 * r))
}
