//! Blocks of a condition matrix that are much wider than those beside them, eliminated ahead of the
//! factorization.
//!
//! A layer of 4,000 hidden units beside one of a single unit stores some thousand numbers; its
//! block on the diagonal has sixteen million entries, all of them known: a multiple of the
//! identity. Without this a file of 33 kB could ask for a factorization of a 4,000 × 4,000 matrix.

use faer::Mat;

use super::psd::{Arrow, Diagonal, Split, residual};

/// Blocks up to this width are never worth eliminating ahead of the others.
const SMALL: usize = 64;

impl Arrow {
    /// Eliminates the blocks that are much wider than those beside them, see [`Arrow`]: the Schur
    /// complement of `A − shift·I`, and a bound on the norm of what rounding changed of it.
    /// `Some(None)` when there are no such blocks, `None` when the matrix is seen not to be
    /// positive definite.
    ///
    /// The matrix `⎡eI Yᵀ; Y R⎤` with `e = d − shift > 0` is positive semidefinite exactly if `R −
    /// YYᵀ/e` is.
    pub(super) fn reduce(&self, shift: f64) -> Option<Option<(Arrow, f64)>> {
        let hidden = self.length() - self.width();
        if let Some(Diagonal::Scalar { size, value }) = self.corner
            && size > SMALL.max(2 * hidden)
        {
            return self.without_border(shift, value - shift).map(Some);
        }
        let wide: Vec<bool> = (0..self.diagonal.len()).map(|k| self.is_wide(k)).collect();
        if !wide.contains(&true) {
            return Some(None);
        }
        let shifted = |block: &Diagonal| block.shifted(shift);
        let width = self.width();
        let mut corner = self.corner.as_ref().map(shifted);
        let mut diagonal: Vec<Option<Mat<f64>>> = (self.diagonal.iter().zip(&wide))
            .map(|(block, wide)| (!wide).then(|| shifted(block)))
            .collect();
        let mut border = self.border.clone();
        // couple[k]: the block between the layer before k and the one after it.
        let mut couple: Vec<Option<Mat<f64>>> = vec![None; self.diagonal.len()];
        let mut error = 0.0;
        for k in (0..self.diagonal.len()).filter(|k| wide[*k]) {
            let Diagonal::Scalar { size, value } = self.diagonal[k] else {
                continue;
            };
            let before = k.checked_sub(1).map(|j| &self.sub[j]);
            let after = self.sub.get(k);
            let (a, b) = (before.map_or(0, |s| s.ncols()), after.map_or(0, |s| s.nrows()));
            let mut stacked = Mat::<f64>::zeros(a + b + width, size);
            if let Some(sub) = before {
                stacked.as_mut().subrows_mut(0, a).copy_from(sub.transpose());
            }
            if let Some(sub) = after {
                stacked.as_mut().subrows_mut(a, b).copy_from(sub);
            }
            if width > 0 {
                stacked
                    .as_mut()
                    .subrows_mut(a + b, width)
                    .copy_from(&self.border[k]);
            }
            let (gram, entry) = scaled_gram(&stacked, value - shift)?;
            let part = |i: usize, r: usize, j: usize, c: usize| gram.as_ref().submatrix(i, j, r, c);
            if a > 0
                && let Some(block) = &mut diagonal[k - 1]
            {
                *block -= part(0, a, 0, a);
            }
            if b > 0
                && let Some(block) = &mut diagonal[k + 1]
            {
                *block -= part(a, b, a, b);
            }
            if a > 0 && b > 0 {
                couple[k] = Some(-part(a, b, 0, a).to_owned());
            }
            if width > 0 {
                if a > 0 {
                    border[k - 1] -= part(a + b, width, 0, a);
                }
                if b > 0 {
                    border[k + 1] -= part(a + b, width, a, b);
                }
                if let Some(corner) = &mut corner {
                    *corner -= part(a + b, width, a + b, width);
                }
            }
            // Rows of the border are touched by every elimination, others by two at most; one
            // rounding each time.
            error += (a + b + width) as f64 * entry;
        }
        let kept: Vec<usize> = (0..wide.len()).filter(|k| !wide[*k]).collect();
        let sub = (kept.windows(2))
            .map(|pair| match pair[1] - pair[0] {
                1 => self.sub[pair[0]].clone(),
                _ => {
                    let none = || Mat::zeros(self.diagonal[pair[1]].size(), self.diagonal[pair[0]].size());
                    couple[pair[0] + 1].take().unwrap_or_else(none)
                }
            })
            .collect();
        let mut diagonal: Vec<Diagonal> = diagonal.into_iter().flatten().map(Diagonal::Dense).collect();
        let mut border: Vec<Mat<f64>> = match width {
            0 => vec![],
            _ => kept.iter().map(|k| border[*k].clone()).collect(),
        };
        let mut corner = corner.map(Diagonal::Dense);
        if diagonal.is_empty() {
            // Nothing but the border is left.
            diagonal.extend(corner.take());
            border.clear();
        }
        let reduced = Arrow {
            diagonal,
            sub,
            border,
            corner,
        };
        Some(Some((reduced, error * (1.0 + 1e-9))))
    }

    /// The Schur complement of a border that is wider than all the rest: one dense block.
    fn without_border(&self, shift: f64, e: f64) -> Option<(Arrow, f64)> {
        let hidden = self.length() - self.width();
        let mut all = Mat::<f64>::zeros(hidden, hidden);
        let mut stacked = Mat::<f64>::zeros(hidden, self.width());
        let mut at = 0;
        for (k, block) in self.diagonal.iter().enumerate() {
            let m = block.size();
            let mut put = |i: usize, j: usize, block: faer::MatRef<'_, f64>| {
                let mut place = all.as_mut().submatrix_mut(i, j, block.nrows(), block.ncols());
                place.copy_from(block);
            };
            put(at, at, block.shifted(shift).as_ref());
            if let Some(sub) = self.sub.get(k) {
                put(at + m, at, sub.as_ref());
                put(at, at + m, sub.transpose());
            }
            (stacked.as_mut().subrows_mut(at, m)).copy_from(self.border[k].transpose());
            at += m;
        }
        let (gram, entry) = scaled_gram(&stacked, e)?;
        let reduced = Arrow {
            diagonal: vec![Diagonal::Dense(&all - &gram)],
            sub: vec![],
            border: vec![],
            corner: None,
        };
        Some((reduced, hidden as f64 * entry * (1.0 + 1e-9)))
    }

    /// Whether a block is to be eliminated ahead of the others. No two neighbors are.
    fn is_wide(&self, k: usize) -> bool {
        let side = |k: Option<usize>| k.and_then(|k| self.diagonal.get(k)).map_or(0, Diagonal::size);
        let beside = side(k.checked_sub(1)) + side(Some(k + 1));
        matches!(&self.diagonal[k], Diagonal::Scalar { size, .. } if *size > SMALL.max(2 * beside))
    }
}

/// Some `G ⪰ YYᵀ/e` up to an error of the second number in each entry, the rounding of a difference
/// with `G` included; `None` unless `e > 0` and the rows of `Y/√e` have a norm of at most √1.5, as
/// those of a positive definite matrix do.
fn scaled_gram(y: &Mat<f64>, e: f64) -> Option<(Mat<f64>, f64)> {
    if e.is_nan() || e < 1e-12 {
        return None;
    }
    // Three roundings, of e among them, and four steps up: its square is not below that of the
    // exact one.
    let factor = (1.0 / e.sqrt()).next_up().next_up().next_up().next_up();
    let scaled = Mat::from_fn(y.ncols(), y.nrows(), |i, j| factor * y[(j, i)]);
    let split = Split::new(scaled);
    let zero = Mat::<f64>::zeros(y.nrows(), y.nrows());
    let negative = residual(zero.as_ref(), 0.0, &[(&split, &split)])?;
    // Entries of Y·factor are rounded once (2u of a product of norms at most 1.5), G once more, and
    // the difference of a number of at most 4 with it a last time.
    let entry = negative.entry_error + 6.0 * f64::EPSILON;
    Some((-negative.block, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    /// An arrow whose blocks off the diagonal are random, of these widths, with a border.
    fn arrow(widths: &[usize], border: usize, size: f64, rng: &mut Rng) -> Arrow {
        let scalar = |size: usize| Diagonal::Scalar { size, value: 1.0 };
        Arrow {
            diagonal: widths.iter().map(|m| scalar(*m)).collect(),
            sub: (widths.windows(2))
                .map(|w| {
                    let scale = size / ((w[0] + w[1]) as f64).sqrt();
                    rng.matrix(w[1], w[0], scale)
                })
                .collect(),
            border: (widths.iter())
                .map(|m| {
                    let scale = size / ((m + border) as f64 * widths.len() as f64).sqrt();
                    rng.matrix(border, *m, scale)
                })
                .collect(),
            corner: (border > 0).then(|| scalar(border)),
        }
    }

    fn dense(arrow: &Arrow) -> Mat<f64> {
        let n = arrow.length();
        let mut all = Mat::<f64>::identity(n, n);
        let mut at = 0;
        let end = n - arrow.width();
        for (k, block) in arrow.diagonal.iter().enumerate() {
            let m = block.size();
            let mut put = |i: usize, j: usize, block: &Mat<f64>| {
                for a in 0..block.nrows() {
                    for b in 0..block.ncols() {
                        all[(i + a, j + b)] = block[(a, b)];
                        all[(j + b, i + a)] = block[(a, b)];
                    }
                }
            };
            if let Some(sub) = arrow.sub.get(k) {
                put(at + m, at, sub);
            }
            if let Some(border) = arrow.border.get(k) {
                put(end, at, border);
            }
            at += m;
        }
        all
    }

    #[test]
    fn eigenvalue_bounds_of_wide_blocks_are_true_and_tight() {
        let mut rng = Rng::new(3);
        for (widths, border) in [
            (&[200][..], 3),
            (&[1, 200, 2], 1),
            (&[150, 3, 180, 2, 300], 4),
            (&[3, 2], 200),
            (&[300, 2], 0),
            (&[70, 1, 1, 90], 2),
            (&[100], 300),
        ] {
            for size in [0.2, 0.6] {
                let arrow = arrow(widths, border, size, &mut rng);
                assert!(
                    arrow.reduce(0.0).is_none_or(|r| r.is_some()),
                    "{widths:?} is not reduced"
                );
                let least = dense(&arrow)
                    .self_adjoint_eigenvalues(faer::Side::Lower)
                    .unwrap()
                    .into_iter()
                    .fold(f64::INFINITY, f64::min);
                if least > 1e-6 {
                    let shift = least * (1.0 - 1e-9);
                    let bound = arrow.eigenvalue_bound(shift).unwrap();
                    assert!(
                        bound <= least && bound > least - 1e-8,
                        "{widths:?}: {bound} and {least}"
                    );
                }
                assert!(
                    arrow
                        .eigenvalue_bound(least + 1e-9)
                        .is_none_or(|b| b <= least + 1e-12)
                );
                assert_eq!(
                    arrow.prove_positive().is_some(),
                    least > 0.0,
                    "{widths:?}: {least}"
                );
            }
        }
    }

    #[test]
    fn ordinary_widths_are_left_alone() {
        let mut rng = Rng::new(4);
        for widths in [&[64, 64][..], &[256, 256, 256], &[100, 60, 100]] {
            assert!(matches!(arrow(widths, 20, 0.2, &mut rng).reduce(0.0), Some(None)));
        }
    }
}
