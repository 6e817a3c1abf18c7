//! The discrete Fourier transform of square real images, and complex matrices as pairs of real
//! ones.
//!
//! Sizes are those of images in networks, so the transform is a product with its matrix: four small
//! real products an image, with error bounds that are those of products. Of the frequencies only
//! those are kept that do not follow from others by conjugation.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use crate::base::parallel;
use crate::base::real::Real;

/// A complex matrix by its parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Complex<T> {
    pub(crate) re: Mat<T>,
    pub(crate) im: Mat<T>,
}

impl<T: Real> Complex<T> {
    pub(crate) fn zeros(rows: usize, columns: usize) -> Self {
        Complex {
            re: Mat::zeros(rows, columns),
            im: Mat::zeros(rows, columns),
        }
    }

    pub(crate) fn rows(&self, start: usize, count: usize) -> Self {
        Complex {
            re: self.re.subrows(start, count).to_owned(),
            im: self.im.subrows(start, count).to_owned(),
        }
    }

    /// Both parts.
    pub(crate) fn parts(&self) -> MatRefPair<'_, T> {
        (self.re.as_ref(), self.im.as_ref())
    }

    /// The conjugate transpose.
    pub(crate) fn adjoint(&self) -> Self {
        Complex {
            re: self.re.transpose().to_owned(),
            im: Mat::from_fn(self.im.ncols(), self.im.nrows(), |i, j| -self.im[(j, i)]),
        }
    }

    /// `self · other`.
    pub(crate) fn times(&self, other: &Complex<T>) -> Self {
        Complex {
            re: &self.re * &other.re - &self.im * &other.im,
            im: &self.re * &other.im + &self.im * &other.re,
        }
    }

    /// `[[Re, −Im], [Im, Re]]`: products, adjoints and inverses of complex matrices are those of
    /// these real ones.
    pub(crate) fn embedded(&self) -> Mat<T> {
        let (rows, columns) = self.re.shape();
        Mat::from_fn(2 * rows, 2 * columns, |i, j| match (i < rows, j < columns) {
            (true, true) => self.re[(i, j)],
            (true, false) => -self.im[(i, j - columns)],
            (false, true) => self.im[(i - rows, j)],
            (false, false) => self.re[(i - rows, j - columns)],
        })
    }

    /// The complex matrix of an embedded one, from its first columns.
    pub(crate) fn from_embedded(m: MatRef<'_, T>) -> Self {
        let (rows, columns) = (m.nrows() / 2, m.ncols() / 2);
        Complex {
            re: m.submatrix(0, 0, rows, columns).to_owned(),
            im: m.submatrix(rows, 0, rows, columns).to_owned(),
        }
    }
}

/// Values of channels at all frequencies, for some rows of a batch: at every frequency a complex
/// matrix, channels × rows.
#[derive(Clone, Debug)]
pub(crate) struct Spectrum<T> {
    pub(crate) re: Vec<T>,
    pub(crate) im: Vec<T>,
    pub(crate) channels: usize,
    pub(crate) rows: usize,
}

impl<T: Real> Spectrum<T> {
    pub(crate) fn zeros(frequencies: usize, channels: usize, rows: usize) -> Self {
        Spectrum {
            re: vec![T::zero(); frequencies * channels * rows],
            im: vec![T::zero(); frequencies * channels * rows],
            channels,
            rows,
        }
    }

    fn part<'a>(&self, values: &'a [T], f: usize, channels: std::ops::Range<usize>) -> MatRef<'a, T> {
        let size = self.channels * self.rows;
        MatRef::from_column_major_slice(&values[f * size..(f + 1) * size], self.channels, self.rows)
            .subrows(channels.start, channels.len())
    }

    pub(crate) fn scale(&mut self, factor: T) {
        self.re.iter_mut().chain(&mut self.im).for_each(|v| *v *= factor);
    }

    /// Adds `factor·A` or `factor·Aᴴ` times some channels of another spectrum, frequency by
    /// frequency, to some channels of this one.
    pub(crate) fn add_product<'a>(
        &mut self,
        to: std::ops::Range<usize>,
        factor: T,
        matrix: impl Fn(usize) -> (MatRefPair<'a, T>, bool) + Sync + Send,
        other: &Spectrum<T>,
        from: std::ops::Range<usize>,
    ) {
        let (channels, rows) = (self.channels, self.rows);
        let flops = 8 * to.len() * from.len() * rows;
        let size = (channels * rows).max(1);
        let pieces = self.re.chunks_mut(size).zip(self.im.chunks_mut(size)).collect();
        parallel::for_each(pieces, flops, |f, (re, im)| {
            let ((a_re, a_im), adjoint) = matrix(f);
            let (x_re, x_im) = (
                other.part(&other.re, f, from.clone()),
                other.part(&other.im, f, from.clone()),
            );
            let (a_re, a_im, sign) = match adjoint {
                true => (a_re.transpose(), a_im.transpose(), -factor),
                false => (a_re, a_im, factor),
            };
            let mut y_re = MatMut::from_column_major_slice_mut(re, channels, rows);
            let mut y_im = MatMut::from_column_major_slice_mut(im, channels, rows);
            let add = |y: &mut MatMut<'_, T>, a: MatRef<'_, T>, x: MatRef<'_, T>, factor: T| {
                let y = y.as_mut().subrows_mut(to.start, to.len());
                matmul(y, Accum::Add, a, x, factor, Par::Seq);
            };
            add(&mut y_re, a_re, x_re, factor);
            add(&mut y_re, a_im, x_im, -sign);
            add(&mut y_im, a_re, x_im, factor);
            add(&mut y_im, a_im, x_re, sign);
        });
    }
}

/// Real and imaginary part of a matrix.
pub(crate) type MatRefPair<'a, T> = (MatRef<'a, T>, MatRef<'a, T>);

/// The transform of `size × size` images.
#[derive(Clone, Debug)]
pub(crate) struct Fourier<T> {
    pub(crate) size: usize,
    /// `cos(2πij/size)` and `sin(2πij/size)`.
    cos: Mat<T>,
    sin: Mat<T>,
    /// The frequencies that are kept, `(i, j)`.
    pub(crate) frequencies: Vec<(usize, usize)>,
    /// For every `(i, j)` with `j ≤ size/2`, at `i·half + j`: where it is kept, and whether its
    /// conjugate is.
    pub(crate) places: Vec<(usize, bool)>,
}

impl<T: Real> Fourier<T> {
    pub(crate) fn new(size: usize) -> Self {
        let half = size / 2 + 1;
        let alone = |j: usize| j == 0 || 2 * j == size;
        let mut frequencies = Vec::new();
        let mut places = vec![(0, false); size * half];
        for i in 0..size {
            for j in 0..half {
                if !alone(j) || 2 * i <= size {
                    places[i * half + j] = (frequencies.len(), false);
                    frequencies.push((i, j));
                }
            }
        }
        for i in 0..size {
            for j in 0..half {
                if alone(j) && 2 * i > size {
                    places[i * half + j] = (places[(size - i) * half + j].0, true);
                }
            }
        }
        let table = |f: fn(usize, usize) -> f64| {
            Mat::from_fn(size, size, |i, j| T::round_from(f(i * j % size, size)))
        };
        Fourier {
            size,
            cos: table(cosine),
            sin: table(sine),
            frequencies,
            places,
        }
    }

    fn half(&self) -> usize {
        self.size / 2 + 1
    }

    /// Whether the values of real images are real at this frequency.
    pub(crate) fn is_real(&self, f: usize) -> bool {
        let (i, j) = self.frequencies[f];
        (2 * i).is_multiple_of(self.size) && (2 * j).is_multiple_of(self.size)
    }

    /// Images, `[rows, channels, size, size]`, to their spectrum.
    pub(crate) fn forward(&self, images: &[T], channels: usize) -> Spectrum<T> {
        let (s, half) = (self.size, self.half());
        let rows = images.len() / (channels * s * s).max(1);
        let all = self.frequencies.len();
        let one = T::one();
        // Image by image first, every one at all frequencies.
        let (mut re, mut im) = (
            vec![T::zero(); rows * channels * all],
            vec![T::zero(); rows * channels * all],
        );
        let pieces = re.chunks_mut(all).zip(im.chunks_mut(all)).collect();
        parallel::for_each(pieces, self.flops(), |n, (re, im): (&mut [T], &mut [T])| {
            let (mut a_re, mut a_im) = (Mat::<T>::zeros(half, s), Mat::<T>::zeros(half, s));
            let (mut z_re, mut z_im) = (Mat::<T>::zeros(half, s), Mat::<T>::zeros(half, s));
            // Columns are the image's rows.
            let x = MatRef::from_column_major_slice(&images[n * s * s..(n + 1) * s * s], s, s);
            set(&mut a_re, self.cos.subrows(0, half), x, one);
            set(&mut a_im, self.sin.subrows(0, half), x, -one);
            set(&mut z_re, a_re.as_ref(), self.cos.as_ref(), one);
            add(&mut z_re, a_im.as_ref(), self.sin.as_ref(), one);
            set(&mut z_im, a_im.as_ref(), self.cos.as_ref(), one);
            add(&mut z_im, a_re.as_ref(), self.sin.as_ref(), -one);
            for (f, &(i, j)) in self.frequencies.iter().enumerate() {
                re[f] = z_re[(j, i)];
                // Exactly real where it has to be.
                im[f] = if self.is_real(f) { T::zero() } else { z_im[(j, i)] };
            }
        });
        let mut out = Spectrum::zeros(all, channels, rows);
        let size = (rows * channels).max(1);
        let pieces = out.re.chunks_mut(size).zip(out.im.chunks_mut(size)).collect();
        parallel::for_each(pieces, 2 * size, |f, (to_re, to_im): (&mut [T], &mut [T])| {
            for (n, (to_re, to_im)) in to_re.iter_mut().zip(to_im).enumerate() {
                (*to_re, *to_im) = (re[n * all + f], im[n * all + f]);
            }
        });
        out
    }

    /// Operations of the transform of an image, about.
    fn flops(&self) -> usize {
        12 * self.half() * self.size * self.size
    }

    /// The images of a spectrum.
    pub(crate) fn inverse(&self, spectrum: &Spectrum<T>) -> Vec<T> {
        let (s, half) = (self.size, self.half());
        let (channels, rows) = (spectrum.channels, spectrum.rows);
        let mut images = vec![T::zero(); rows * channels * s * s];
        let one = T::one();
        // A frequency that stands for its conjugate too counts twice.
        let weight = |j: usize| {
            let count = if j == 0 || 2 * j == s { 1.0 } else { 2.0 };
            T::round_from(count / (s * s) as f64)
        };
        let scaled = |m: &Mat<T>| Mat::from_fn(s, half, |q, j| weight(j) * m[(q, j)]);
        let (back_cos, back_sin) = (scaled(&self.cos), scaled(&self.sin));
        let pieces = images.chunks_mut(s * s).collect();
        parallel::for_each(pieces, self.flops(), |n, image: &mut [T]| {
            let (mut z_re, mut z_im) = (Mat::<T>::zeros(half, s), Mat::<T>::zeros(half, s));
            let (mut y_re, mut y_im) = (Mat::<T>::zeros(half, s), Mat::<T>::zeros(half, s));
            let (row, channel) = (n / channels, n % channels);
            for i in 0..s {
                for j in 0..half {
                    let (f, conjugate) = self.places[i * half + j];
                    let at = (f * rows + row) * channels + channel;
                    z_re[(j, i)] = spectrum.re[at];
                    z_im[(j, i)] = if conjugate {
                        -spectrum.im[at]
                    } else {
                        spectrum.im[at]
                    };
                }
            }
            set(&mut y_re, z_re.as_ref(), self.cos.as_ref(), one);
            add(&mut y_re, z_im.as_ref(), self.sin.as_ref(), -one);
            set(&mut y_im, z_im.as_ref(), self.cos.as_ref(), one);
            add(&mut y_im, z_re.as_ref(), self.sin.as_ref(), one);
            let mut x = MatMut::from_column_major_slice_mut(image, s, s);
            matmul(
                x.as_mut(),
                Accum::Replace,
                back_cos.as_ref(),
                y_re.as_ref(),
                one,
                Par::Seq,
            );
            matmul(x, Accum::Add, back_sin.as_ref(), y_im.as_ref(), -one, Par::Seq);
        });
        images
    }
}

/// Number of frequencies that are kept for images of a side: half of all, and half of those that
/// are real.
pub(crate) fn frequency_count(size: usize) -> usize {
    let real = if size.is_multiple_of(2) { 4 } else { 1 };
    (size * size + real) / 2
}

fn set<T: Real>(to: &mut Mat<T>, a: MatRef<'_, T>, b: MatRef<'_, T>, factor: T) {
    matmul(to.as_mut(), Accum::Replace, a, b, factor, Par::Seq);
}

fn add<T: Real>(to: &mut Mat<T>, a: MatRef<'_, T>, b: MatRef<'_, T>, factor: T) {
    matmul(to.as_mut(), Accum::Add, a, b, factor, Par::Seq);
}

/// `cos(2πk/n)` and `sin(2πk/n)` for `k < n`, by symmetry from those of `πa/n` with `2a ≤ n`, so
/// that what should be equal is so exactly.
pub(crate) fn around<N: Copy>(
    k: usize,
    n: usize,
    quarter: impl Fn(usize, usize) -> (N, N),
    negated: impl Fn(N) -> N,
) -> (N, N) {
    // As πa/n, up to half a turn, then up to a quarter.
    let a = 2 * k.min(n - k);
    let (cos, sin) = quarter(a.min(n - a), n);
    (
        if 2 * a > n { negated(cos) } else { cos },
        if 2 * k > n { negated(sin) } else { sin },
    )
}

/// `cos(2πk/n)` for `k < n`.
pub(crate) fn cosine(k: usize, n: usize) -> f64 {
    around(k, n, quarter, |v| -v).0
}

/// `sin(2πk/n)` for `k < n`.
pub(crate) fn sine(k: usize, n: usize) -> f64 {
    around(k, n, quarter, |v| -v).1
}

/// Cosine and sine of `πa/n` for `2a ≤ n`, by angles of at most π/4.
fn quarter(a: usize, n: usize) -> (f64, f64) {
    use std::f64::consts::PI;
    if 4 * a <= n {
        let angle = PI * a as f64 / n as f64;
        (angle.cos(), angle.sin())
    } else {
        let rest = PI * (n - 2 * a) as f64 / (2 * n) as f64;
        (rest.sin(), rest.cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    #[test]
    fn circles_are_divided_as_they_should_be() {
        for n in 1..40 {
            for k in 0..n {
                let angle = std::f64::consts::TAU * k as f64 / n as f64;
                assert!((cosine(k, n) - angle.cos()).abs() < 1e-14, "{k}/{n}");
                assert!((sine(k, n) - angle.sin()).abs() < 1e-14, "{k}/{n}");
                if k > 0 {
                    assert_eq!(cosine(k, n), cosine(n - k, n), "{k}/{n}");
                    assert_eq!(sine(k, n), -sine(n - k, n), "{k}/{n}");
                }
            }
        }
        assert_eq!((cosine(2, 8), sine(4, 8), cosine(4, 8)), (0.0, 0.0, -1.0));
    }

    #[test]
    fn the_transform_is_that_of_its_definition_and_is_undone() {
        for size in [1, 2, 3, 4, 5, 8] {
            let fourier = Fourier::<f64>::new(size);
            // Real numbers: as many as pixels.
            let real: usize = (0..fourier.frequencies.len())
                .map(|f| if fourier.is_real(f) { 1 } else { 2 })
                .sum();
            assert_eq!(real, size * size);
            let x = Rng::new(3).normals(2 * 3 * size * size);
            let z = fourier.forward(&x, 3);
            for (f, &(i, j)) in fourier.frequencies.iter().enumerate() {
                for n in 0..6 {
                    let (mut re, mut im) = (0.0, 0.0);
                    for p in 0..size {
                        for q in 0..size {
                            let turn = std::f64::consts::TAU * (i * p + j * q) as f64 / size as f64;
                            re += x[(n * size + p) * size + q] * turn.cos();
                            im -= x[(n * size + p) * size + q] * turn.sin();
                        }
                    }
                    let at = (f * 2 + n / 3) * 3 + n % 3;
                    assert!((z.re[at] - re).abs() < 1e-12 && (z.im[at] - im).abs() < 1e-12);
                }
            }
            for (a, b) in fourier.inverse(&z).iter().zip(&x) {
                assert!((a - b).abs() < 1e-13);
            }
        }
    }

    #[test]
    fn embedding_is_a_homomorphism() {
        let mut rng = Rng::new(5);
        let mut random = |r, c| Complex {
            re: rng.matrix(r, c, 1.0),
            im: rng.matrix(r, c, 1.0),
        };
        let (a, b) = (random(3, 4), random(4, 2));
        let product = a.times(&b).embedded() - a.embedded() * b.embedded();
        assert!(product.norm_max() < 1e-14);
        assert_eq!(a.adjoint().embedded(), a.embedded().transpose().to_owned());
        assert_eq!(Complex::from_embedded(a.embedded().as_ref()), a);
    }
}
