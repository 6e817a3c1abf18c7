//! An orthogonal map of the channels of images, the same at every pixel.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::base::bounds::Claimed;
use crate::base::double::{Pair, add_product, double_gamma, renormalize};
use crate::base::error::{Error, Result};
use crate::base::real::Real;
use crate::base::rounding::{SAFETY, floor, gamma, norm};
use crate::certify::{LayerCertificate, Proved};
use crate::layers::bias::Bias;
use crate::layers::layer::{Buffers, Direction, Evaluate, EvaluatedRow, Layer};
use crate::layers::orthogonal::Orthogonal;

/// `y_p = P x_p + q` at every pixel p of images `[channels, size, size]`.
///
/// Its bounds are those of [`Orthogonal`].
#[derive(Clone, Debug)]
pub struct ChannelOrthogonal<T> {
    map: Orthogonal<T>,
    image: usize,
}

impl<T: Real> ChannelOrthogonal<T> {
    /// The map of the channels, on images of the given side.
    ///
    /// # Errors
    /// When the side is zero.
    pub fn new(map: Orthogonal<T>, image: usize) -> Result<Self> {
        if image == 0 {
            return Err(Error::setting("image", image, "must be at least 1"));
        }
        Ok(ChannelOrthogonal { map, image })
    }

    /// The map of the channels.
    pub fn map(&self) -> &Orthogonal<T> {
        &self.map
    }

    /// The side of the images.
    pub fn image(&self) -> usize {
        self.image
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.map.bias().len()
    }

    /// The same layer with its stored numbers converted, exactly, to `f64`.
    pub fn to_f64(&self) -> ChannelOrthogonal<f64> {
        ChannelOrthogonal {
            map: self.map.to_f64(),
            image: self.image,
        }
    }

    pub(crate) fn claimed(&self) -> Claimed {
        self.proof().design().into()
    }

    pub(crate) fn proved(&self) -> Proved {
        self.proof().proved()
    }

    fn pixels(&self) -> usize {
        self.image * self.image
    }

    /// `Y ← X P` or `X Pᵀ` for the pixels × channels matrix of every row.
    fn apply(&self, x: &[T], y: &mut [T], transposed: bool) {
        let (pixels, channels) = (self.pixels(), self.channels());
        let matrix = match transposed {
            true => self.map.matrix(),
            false => self.map.matrix().transpose(),
        };
        for (x, y) in x
            .chunks_exact(pixels * channels)
            .zip(y.chunks_exact_mut(pixels * channels))
        {
            let x = MatRef::from_column_major_slice(x, pixels, channels);
            let y = MatMut::from_column_major_slice_mut(y, pixels, channels);
            matmul(y, Accum::Replace, x, matrix, T::one(), Par::Seq);
        }
    }
}

impl<T: Real> Layer<T> for ChannelOrthogonal<T> {
    fn size(&self) -> usize {
        self.channels() * self.pixels()
    }

    fn own_bias(&self) -> &[T] {
        self.map.bias()
    }

    fn proof(&self) -> &LayerCertificate {
        self.map.layer_certificate()
    }

    fn prove_again(&self) -> LayerCertificate {
        self.map.prove_again()
    }

    fn block_rows(&self) -> usize {
        super::conv::BLOCK_ROWS
    }

    fn forward_cols(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        _: &mut Buffers<T>,
        _: Option<MatMut<'_, T>>,
    ) {
        self.apply(x, y, false);
        for (j, row) in y.chunks_exact_mut(self.size()).enumerate() {
            for (plane, bias) in row.chunks_exact_mut(self.pixels()).zip(bias.column(j)) {
                plane.iter_mut().for_each(|v| *v += *bias);
            }
        }
    }

    fn linear_cols(
        &self,
        _: MatRef<'_, T>,
        w: &[T],
        out: &mut [T],
        _: usize,
        direction: Direction,
        _: &mut Buffers<T>,
    ) {
        self.apply(w, out, direction == Direction::Reverse);
    }
}

impl Evaluate for ChannelOrthogonal<f64> {
    fn rounding_error(&self, row: EvaluatedRow<'_>) -> f64 {
        let c = self.channels();
        let side = self.image as f64;
        let nu = self.proved().nu();
        let size = norm(row.x) * SAFETY;
        gamma(c + 8) * ((c as f64).sqrt() * nu * size + side * norm(row.bias))
            + floor(self.size())
            + side * row.bias_error
    }

    fn evaluate_accurately(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
        let (c, pixels) = (self.channels(), self.pixels());
        let side = self.image as f64;
        let mut y = Pair::zeros(c * pixels);
        let gather = |v: &[f64], p: usize| (0..c).map(|i| v[i * pixels + p]).collect::<Vec<f64>>();
        for p in 0..pixels {
            let mut at = Pair {
                hi: bias.to_vec(),
                lo: vec![0.0; c],
            };
            let (hi, lo) = (gather(&x.hi, p), gather(&x.lo, p));
            add_product(self.map.matrix(), &hi, &lo, &mut at.hi, &mut at.lo);
            renormalize(&mut at);
            for i in 0..c {
                (y.hi[i * pixels + p], y.lo[i * pixels + p]) = (at.hi[i], at.lo[i]);
            }
        }
        let nu = self.proved().nu();
        let size = norm(&x.hi) * SAFETY;
        let error = double_gamma(c) * ((c as f64).sqrt() * nu * size + side * norm(bias))
            + floor(self.size())
            + side * bias_error;
        (y, error)
    }
}
