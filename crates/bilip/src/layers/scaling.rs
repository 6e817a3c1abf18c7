//! The change of variables `x ↦ d∘x + b` with powers of two for d: units of measurement, inside the
//! guarantee.

use faer::{MatMut, MatRef};

use crate::base::bounds::{Bounds, Claimed};
use crate::base::double::{Pair, double_gamma, renormalize, two_sum};
use crate::base::error::{Error, Result, check_finite};
use crate::base::real::Real;
use crate::base::rounding::{SAFETY, floor, gamma, norm};
use crate::certify::LayerCertificate;
use crate::layers::bias::Bias;
use crate::layers::layer::{Buffers, Direction, Evaluate, EvaluatedRow, Layer};

/// `y = d∘x + b`, column by column: standardized variables from a user's own, or back.
///
/// Every factor is a power of two, so that the products are exact, the bounds are exactly `(min d,
/// max d)`, and those of a network around it are exactly the network's times these.
///
/// ```
/// use bilip::{BiLipschitz, Scaling};
/// let layer = Scaling::new(vec![0.5, 4.0], vec![1.0, -1.0])?;
/// assert_eq!(layer.forward(&[2.0, 0.25])?, [2.0, 0.0]);
/// assert_eq!((layer.bounds().mu(), layer.bounds().nu()), (0.5, 4.0));
/// assert!(Scaling::new(vec![3.0], vec![0.0]).is_err());
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling<T> {
    scale: Vec<T>,
    shift: Vec<T>,
    certificate: LayerCertificate,
}

impl<T: Real> Scaling<T> {
    /// The layer of factors and shifts.
    ///
    /// # Errors
    /// On empty or unequal lists, factors that are not positive powers of two within 1e±100, and
    /// shifts that are not finite.
    pub fn new(scale: Vec<T>, shift: Vec<T>) -> Result<Self> {
        if scale.is_empty() || scale.len() != shift.len() {
            return Err(Error::shape(
                "shift of a scaling",
                scale.len().max(1),
                shift.len(),
            ));
        }
        check_finite("shift of a scaling", &shift)?;
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for s in &scale {
            let value = s.as_f64();
            // A normal power of two has an empty mantissa.
            if !(value.is_normal() && value > 0.0 && value.to_bits() << 12 == 0) {
                return Err(Error::setting("scale", value, "must be a power of two"));
            }
            low = low.min(value);
            high = high.max(value);
        }
        Ok(Scaling {
            scale,
            shift,
            certificate: LayerCertificate::exact_scaling(Bounds::new(low, high)?),
        })
    }

    /// The power of two nearest to a positive number, on a logarithmic scale.
    pub fn nearest_power_of_two(value: f64) -> f64 {
        value.log2().round().exp2()
    }

    /// The factors d.
    pub fn scale(&self) -> &[T] {
        &self.scale
    }

    /// The shifts b.
    pub fn shift(&self) -> &[T] {
        &self.shift
    }

    /// The same layer with its stored numbers converted, exactly, to `f64`.
    pub fn to_f64(&self) -> Scaling<f64> {
        Scaling {
            scale: self.scale.iter().map(|v| v.as_f64()).collect(),
            shift: self.shift.iter().map(|v| v.as_f64()).collect(),
            certificate: self.certificate.clone(),
        }
    }

    pub(crate) fn claimed(&self) -> Claimed {
        self.certificate.design().into()
    }
}

impl<T: Real> Layer<T> for Scaling<T> {
    fn size(&self) -> usize {
        self.scale.len()
    }

    fn own_bias(&self) -> &[T] {
        &self.shift
    }

    fn proof(&self) -> &LayerCertificate {
        &self.certificate
    }

    fn prove_again(&self) -> LayerCertificate {
        self.certificate.clone()
    }

    fn forward_cols(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        _: &mut Buffers<T>,
        _: Option<MatMut<'_, T>>,
    ) {
        let n = self.scale.len();
        for (j, (x, y)) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)).enumerate() {
            let bias = bias.column(j);
            for i in 0..n {
                y[i] = self.scale[i] * x[i] + bias[i];
            }
        }
    }

    /// `d∘w`, which is also the transposed product.
    fn linear_cols(
        &self,
        _: MatRef<'_, T>,
        w: &[T],
        out: &mut [T],
        _: usize,
        _: Direction,
        _: &mut Buffers<T>,
    ) {
        let n = self.scale.len();
        for (w, out) in w.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            for i in 0..n {
                out[i] = self.scale[i] * w[i];
            }
        }
    }
}

impl Evaluate for Scaling<f64> {
    fn rounding_error(&self, row: EvaluatedRow<'_>) -> f64 {
        // The products are exact but for underflow; the sum rounds once.
        let nu = self.certificate.proved().nu();
        let size = norm(row.x) * SAFETY;
        gamma(2) * (nu * size + norm(row.bias)) + floor(self.scale.len()) + row.bias_error
    }

    fn evaluate_accurately(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
        let n = self.scale.len();
        let mut y = Pair::zeros(n);
        for i in 0..n {
            let scale = self.scale[i];
            let (sum, error) = two_sum(scale * x.hi[i], bias[i]);
            y.hi[i] = sum;
            y.lo[i] = error + scale * x.lo[i];
        }
        renormalize(&mut y);
        let size = norm(&x.hi) * SAFETY;
        let nu = self.certificate.proved().nu();
        let error = double_gamma(2) * (nu * size + norm(bias)) + floor(n) + bias_error;
        (y, error)
    }
}
