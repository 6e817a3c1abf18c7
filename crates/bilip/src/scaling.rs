//! The change of variables `x ↦ d∘x + b` with powers of two for d: units of measurement, inside the guarantee.

use faer::{MatMut, MatRef};

use crate::bias::Bias;
use crate::bounds::{Bounds, Claimed};
use crate::certificate::{LayerCertificate, Proved};
use crate::error::{Error, Result, check_finite};
use crate::map::{BiLipschitz, LayerRef, sealed};
use crate::real::Real;

/// `y = d∘x + b`, column by column: standardised variables from a user's own, or back.
///
/// Every factor is a power of two, so that the products are exact, the bounds are exactly `(min d, max d)`, and those of a
/// network around it are exactly the network's times these.
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
    /// On empty or unequal lists, factors that are not positive powers of two within 1e±100, and shifts that are not
    /// finite.
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

    pub(crate) fn layer_certificate(&self) -> &LayerCertificate {
        &self.certificate
    }

    pub(crate) fn forward_cols(&self, x: MatRef<'_, T>, mut y: MatMut<'_, T>, bias: Bias<'_, T>) {
        for j in 0..x.ncols() {
            let bias = bias.column(j);
            for i in 0..self.scale.len() {
                y[(i, j)] = self.scale[i] * x[(i, j)] + bias[i];
            }
        }
    }

    /// `d∘w`, which is also the transposed product.
    pub(crate) fn linear_cols(&self, w: MatRef<'_, T>, mut out: MatMut<'_, T>) {
        for j in 0..w.ncols() {
            for i in 0..self.scale.len() {
                out[(i, j)] = self.scale[i] * w[(i, j)];
            }
        }
    }
}

impl<T: Real> sealed::Sealed for Scaling<T> {}

impl<T: Real> BiLipschitz<T> for Scaling<T> {
    fn dim(&self) -> usize {
        self.scale.len()
    }

    fn claim(&self) -> Claimed {
        self.certificate.design().into()
    }

    fn bounds(&self) -> Proved {
        self.certificate.proved()
    }

    fn layers(&self) -> Vec<LayerRef<'_, T>> {
        vec![LayerRef::Scaling(self)]
    }
}
