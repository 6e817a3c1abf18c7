//! A plain convolution of images, with a proved bound on its norm.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use crate::base::error::{Error, Result, check_batch, check_finite};
use crate::base::parallel::{self, Late};
use crate::base::real::Real;
use crate::certify::psd::norm2_upper;
use crate::layers::conv::{Kernels, check_numbers};

/// `y = W∗x` on images with zeros around them, `[inputs, size, size] → [outputs, size/stride,
/// size/stride]`.
///
/// ```text
/// y[o, p, q] = Σ W[o, i, a, b]·x[i, stride·p + a − r, stride·q + b − r],   r = (kernel − 1)/2.
/// ```
#[derive(Clone, Debug)]
pub struct Convolution<T> {
    channels: [usize; 2],
    size: usize,
    kernel: usize,
    stride: usize,
    /// `[outputs, inputs·kernel²]`, row by row.
    weight: Vec<T>,
    norm: Late<f64>,
}

impl<T: Real> Convolution<T> {
    /// A convolution from its kernels, `[outputs, inputs, kernel, kernel]` row by row; `channels`
    /// are those that go in and come out, `size` the side of the images that go in.
    ///
    /// # Errors
    /// On sizes of zero, even kernels, strides other than 1 and 2, odd images with stride 2, and
    /// kernels of another size or that are not finite.
    pub fn new(
        channels: [usize; 2],
        size: usize,
        kernel: usize,
        stride: usize,
        weight: Vec<T>,
    ) -> Result<Self> {
        if kernel.is_multiple_of(2) {
            return Err(Error::setting("kernel", kernel, "must be odd"));
        }
        if size == 0 || !(stride == 1 || (stride == 2 && size.is_multiple_of(2))) {
            return Err(Error::setting(
                "stride",
                stride,
                "must be 1, or 2 for images of even side",
            ));
        }
        let count = (channels[0].checked_mul(channels[1]))
            .and_then(|c| c.checked_mul(kernel.checked_mul(kernel)?))
            .filter(|c| *c > 0 && *c == weight.len());
        if count.is_none() {
            return Err(Error::shape(
                "kernels of a convolution",
                format!("{}×{}×{kernel}×{kernel} numbers", channels[1], channels[0]),
                weight.len(),
            ));
        }
        check_finite("kernels of a convolution", &weight)?;
        check_numbers(channels[0].max(channels[1]), size)?;
        Ok(Convolution {
            channels,
            size,
            kernel,
            stride,
            weight,
            norm: Late::empty(),
        })
    }

    /// Channels that go in and come out.
    pub fn channels(&self) -> [usize; 2] {
        self.channels
    }

    /// The side of the images that go in.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The side of the images that come out.
    pub fn output_size(&self) -> usize {
        self.size / self.stride
    }

    /// The side of the kernels.
    pub fn kernel(&self) -> usize {
        self.kernel
    }

    /// 1, or 2 for half as many pixels each way.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The kernels, `[outputs, inputs, kernel, kernel]` row by row.
    pub fn weight(&self) -> &[T] {
        &self.weight
    }

    /// The images of every row, `[batch, inputs, size, size] → [batch, outputs, size/stride,
    /// size/stride]`.
    ///
    /// # Errors
    /// On a batch of the wrong size or with NaN or infinity.
    pub fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        let n = self.channels[0] * self.size * self.size;
        let rows = check_batch("images", x, n)?;
        let parts = parallel::map_chunks(rows, 1, |range| {
            let mut out = Vec::new();
            for row in range {
                out.extend(self.of_image(&x[row * n..(row + 1) * n]));
            }
            out
        });
        let y = parts.concat();
        check_finite("result (numbers out of range)", &y)?;
        Ok(y)
    }

    fn of_image(&self, x: &[T]) -> Vec<T> {
        let ([inputs, outputs], k, s) = (self.channels, self.kernel, self.size);
        let (side, radius) = (self.output_size(), (k - 1) / 2);
        // One column per pixel that comes out: what its kernels see.
        let mut seen = vec![T::zero(); inputs * k * k * side * side];
        for (pixel, column) in seen.chunks_exact_mut(inputs * k * k).enumerate() {
            let (p, q) = (pixel / side * self.stride, pixel % side * self.stride);
            for i in 0..inputs {
                for a in 0..k {
                    let Some(row) = (p + a).checked_sub(radius).filter(|r| *r < s) else {
                        continue;
                    };
                    for b in 0..k {
                        if let Some(c) = (q + b).checked_sub(radius).filter(|c| *c < s) {
                            column[(i * k + a) * k + b] = x[(i * s + row) * s + c];
                        }
                    }
                }
            }
        }
        let seen = MatRef::from_column_major_slice(&seen, inputs * k * k, side * side);
        let weight = MatRef::from_row_major_slice(&self.weight, outputs, inputs * k * k);
        let mut y = vec![T::zero(); outputs * side * side];
        matmul(
            MatMut::from_row_major_slice_mut(&mut y, outputs, side * side),
            Accum::Replace,
            weight,
            seen,
            T::one(),
            Par::Seq,
        );
        y
    }

    /// A proved bound on the norm: that of the circular convolution on images with room for the
    /// zeros, frequency by frequency. Computed once.
    ///
    /// With stride 2, the four frequencies that fall together after thinning make one matrix of
    /// half their norm. Where that would be too much work, it is the sum of the norms of the
    /// kernels' entries.
    ///
    /// # Errors
    /// Never for kernels that [`new`](Self::new) took.
    pub fn norm_bound(&self) -> Result<f64> {
        let ([inputs, outputs], stride) = (self.channels, self.stride);
        let values = self.weight.iter().map(|v| v.as_f64()).collect();
        // The convolution is a correlation, with the kernel turned round: the norm is the same.
        let kernels = Kernels::new(outputs, inputs, self.kernel, values)?;
        Ok(*self.norm.get_or_compute(|| {
            let torus = (self.size + self.kernel - 1).next_multiple_of(stride);
            let coarse = torus / stride;
            let (rows, columns) = (2.0 * outputs as f64, 2.0 * (inputs * stride * stride) as f64);
            let frequencies = ((coarse / 2 + 1) * coarse) as f64;
            if frequencies * (rows * columns * rows.min(columns) + 1e4) > WORK {
                return self.sum_of_norms();
            }
            // Conjugate frequencies have the same norm.
            let norms = parallel::map((coarse / 2 + 1) * coarse, |at| {
                let (i, j) = (at / coarse, at % coarse);
                let parts: Vec<Mat<f64>> = (0..stride * stride)
                    .map(|k| {
                        let (a, b) = (k / stride, k % stride);
                        kernels.embedded_at((i + a * coarse, j + b * coarse), torus)
                    })
                    .collect();
                let width = 2 * inputs;
                let share = 1.0 / stride as f64;
                let joined = Mat::from_fn(2 * outputs, width * parts.len(), |r, c| {
                    share * parts[c / width][(r, c % width)]
                });
                norm2_upper(joined.as_ref())
            });
            // Entries of the transform are off by a few units in the last place.
            norms.into_iter().fold(0.0, f64::max) * (1.0 + 1e-9)
        }))
    }
}

/// Operations that a proof may take frequency by frequency: some seconds.
const WORK: f64 = 1.4e11;

impl<T: Real> Convolution<T> {
    /// `Σ ‖W[:, :, a, b]‖₂` over the entries of the kernels: every one is a shift and a matrix.
    fn sum_of_norms(&self) -> f64 {
        let ([inputs, outputs], square) = (self.channels, self.kernel * self.kernel);
        let entry = |d: usize| {
            Mat::from_fn(outputs, inputs, |o, i| {
                self.weight[(o * inputs + i) * square + d].as_f64()
            })
        };
        let norms = parallel::map(square, |d| norm2_upper(entry(d).as_ref()));
        norms.into_iter().sum::<f64>() * (1.0 + 1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    #[test]
    fn no_image_is_stretched_by_more_than_the_bound_and_some_by_nearly_as_much() {
        for (channels, size, kernel, stride) in [([2, 3], 6, 3, 1), ([3, 2], 8, 3, 2), ([1, 1], 5, 5, 1)] {
            let mut rng = Rng::new(3);
            let count = channels[0] * channels[1] * kernel * kernel;
            let layer = Convolution::<f64>::new(channels, size, kernel, stride, rng.normals(count)).unwrap();
            let bound = layer.norm_bound().unwrap();
            let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
            let n = channels[0] * size * size;
            // The matrix, column by column; its largest singular value by the power method on AᵀA.
            let identity: Vec<f64> = (0..n * n).map(|i| f64::from(i % (n + 1) == 0)).collect();
            let columns = layer.forward(&identity).unwrap();
            let m = columns.len() / n;
            let matrix = MatRef::from_column_major_slice(&columns, m, n);
            let mut x = Mat::from_fn(n, 1, |_, _| rng.normal());
            let mut largest = 0.0;
            for _ in 0..300 {
                let y = matrix * &x;
                largest = y.norm_l2() / x.norm_l2();
                x = matrix.transpose() * &y;
                x *= faer::Scale(1.0 / x.norm_l2());
            }
            assert!(largest <= bound && bound < 1.4 * largest, "{largest} {bound}");
            assert!(bound <= layer.sum_of_norms() * (1.0 + 1e-8));
            let v = rng.normals(n);
            assert!(norm(&layer.forward(&v).unwrap()) <= bound * norm(&v));
        }
    }

    #[test]
    fn large_images_cost_a_small_convolution_little() {
        let clock = std::time::Instant::now();
        let layer = Convolution::<f64>::new([1, 1], 2_000, 3, 2, vec![0.5; 9]).unwrap();
        assert!((1.0..4.6).contains(&layer.norm_bound().unwrap()));
        assert!(clock.elapsed().as_secs_f64() < 30.0);
        assert!(Convolution::<f64>::new([1, 1], 16_384, 3, 2, vec![0.5; 9]).is_err());
    }
}
