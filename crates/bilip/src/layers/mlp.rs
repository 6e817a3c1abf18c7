//! The small multilayer perceptrons that turn a parameter p into biases.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use crate::base::double::{add_product, double_gamma, two_sum};
use crate::base::error::{Error, Result, check_finite};
use crate::base::matrix::check_matrix;
use crate::base::real::{Real, UNIT_ROUNDOFF};
use crate::base::rounding::{SAFETY, floor, norm};
use crate::certify::psd::frobenius_upper;

/// Dense layers `h ← Wh + b` with ReLU between them and none after the last.
#[derive(Clone, Debug)]
pub struct Mlp<T> {
    layers: Vec<(Mat<T>, Vec<T>)>,
}

impl<T: Real> Mlp<T> {
    /// A perceptron from its layers, each a weight `out × in` and a bias.
    ///
    /// # Errors
    /// On no layers, sizes that do not fit, or numbers that are not finite.
    pub fn new(layers: Vec<(Mat<T>, Vec<T>)>) -> Result<Self> {
        if layers.is_empty() {
            return Err(Error::shape("bias network", "at least one layer", 0));
        }
        let mut size = layers[0].0.ncols();
        for (k, (weight, bias)) in layers.iter().enumerate() {
            if weight.ncols() != size || weight.nrows() == 0 || size == 0 {
                return Err(Error::shape(
                    format!("layer {k} of a bias network"),
                    format!("{size} columns and at least one row"),
                    format!("{}×{}", weight.nrows(), weight.ncols()),
                ));
            }
            if bias.len() != weight.nrows() {
                return Err(Error::shape(
                    format!("bias {k} of a bias network"),
                    weight.nrows(),
                    bias.len(),
                ));
            }
            check_matrix(&format!("layer {k} of a bias network"), weight.as_ref())?;
            check_finite(&format!("bias {k} of a bias network"), bias)?;
            size = weight.nrows();
        }
        Ok(Mlp { layers })
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.layers[0].0.ncols()
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].0.nrows()
    }

    /// Weights and biases.
    pub fn layers(&self) -> &[(Mat<T>, Vec<T>)] {
        &self.layers
    }

    /// The same perceptron with its numbers rounded to (or, from f32, converted exactly to) another
    /// type.
    pub fn convert<U: Real>(&self) -> Mlp<U> {
        let layers = self
            .layers
            .iter()
            .map(|(w, b)| {
                (
                    Mat::from_fn(w.nrows(), w.ncols(), |i, j| U::round_from(w[(i, j)].as_f64())),
                    b.iter().map(|b| U::round_from(b.as_f64())).collect(),
                )
            })
            .collect();
        Mlp { layers }
    }

    /// Values for every row of `p`, `[batch, inputs] → [batch, outputs]`.
    pub(crate) fn forward(&self, p: &[T]) -> Vec<T> {
        let rows = p.len() / self.inputs();
        let mut h = p.to_vec();
        for (k, (weight, bias)) in self.layers.iter().enumerate() {
            let (out, inputs) = weight.shape();
            let mut next = vec![T::zero(); out * rows];
            matmul(
                MatMut::from_column_major_slice_mut(&mut next, out, rows),
                Accum::Replace,
                weight.as_ref(),
                MatRef::from_column_major_slice(&h, inputs, rows),
                T::one(),
                Par::Seq,
            );
            for column in next.chunks_exact_mut(out) {
                for (v, b) in column.iter_mut().zip(bias) {
                    *v += *b;
                    if k + 1 < self.layers.len() {
                        *v = v.max(T::zero());
                    }
                }
            }
            h = next;
        }
        h
    }
}

impl Mlp<f64> {
    /// The value at one `p`, correctly rounded up to a few units, with a bound on its Euclidean
    /// error.
    pub(crate) fn forward_accurate(&self, p: &[f64]) -> (Vec<f64>, f64) {
        let (mut hi, mut lo) = (p.to_vec(), vec![0.0; p.len()]);
        let mut error = 0.0;
        for (k, (weight, bias)) in self.layers.iter().enumerate() {
            let mut next = (bias.clone(), vec![0.0; bias.len()]);
            add_product(weight.as_ref(), &hi, &lo, &mut next.0, &mut next.1);
            let frobenius = frobenius_upper(weight.as_ref());
            // The tail can be of the size of the head where the head cancels; both count.
            let size = (norm(&hi) + norm(&lo)) * SAFETY;
            error = frobenius * error + double_gamma(weight.ncols()) * (frobenius * size + norm(bias));
            error = (error + floor(weight.ncols())) * SAFETY;
            for i in 0..bias.len() {
                let (a, b) = two_sum(next.0[i], next.1[i]);
                let keep = k + 1 == self.layers.len() || a > 0.0;
                (next.0[i], next.1[i]) = if keep { (a, b) } else { (0.0, 0.0) };
            }
            (hi, lo) = next;
        }
        // The tail is dropped: at most one rounding of each entry.
        let error = (error + norm(&lo) + UNIT_ROUNDOFF * norm(&hi)) * SAFETY;
        (hi, error)
    }
}
