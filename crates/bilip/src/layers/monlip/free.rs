//! From free parameters φ to explicit weights, and back (Proposition 3.2).

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatRef, Side};

use super::{MonLip, MonLipExplicit};
use crate::base::bounds::Bounds;
use crate::base::error::{Error, Result, check_finite};
use crate::base::matrix::check_matrix;
use crate::base::matrix::to_f64;
use crate::base::parallel::Late;
use crate::base::parallel::{self, par_for};
use crate::base::random::{Rng, check_units};
use crate::base::real::Real;
use crate::certify::round_certified;
use crate::layers::activation::Activation;
use crate::layers::cayley::{cayley, inverse_cayley};

/// Free parameters of a [`MonLip`] layer: any finite numbers give a layer with the bounds asked
/// for.
///
/// Learned scalings of the matrices (`(f/‖F‖)·F`) are applied beforehand, see
/// [`with_norm`](crate::with_norm).
#[derive(Clone, Debug)]
pub struct MonLipFree {
    /// The bounds (μ, ν) of the layer, ν > μ.
    pub bounds: Bounds,
    /// The activation σ.
    pub activation: Activation,
    /// `F^q`, `m × n`; `Q = cayley(F^q)`, so `QᵀQ = I` (the published choice).
    pub fq: Mat<f64>,
    /// `F^p`, `n × n`: the general form `[P; Q] = cayley([F^p; F^q])`, `QᵀQ ⪯ I`.
    pub fp: Option<Mat<f64>>,
    /// `F_k^{ab}`, `(m_k + m_{k−1}) × m_k`, with `m_0 = 0`; `[A_kᵀ; B_kᵀ] = cayley(F_k^{ab})`.
    pub fab: Vec<Mat<f64>>,
    /// `d`, all layers after one another, `Ψ = diag(e^d)`; without effect for positively
    /// homogeneous activations.
    pub log_psi: Option<Vec<f64>>,
    /// Hidden biases b̂, all layers after one another.
    pub hidden_bias: Vec<f64>,
    /// Output bias b_y.
    pub output_bias: Vec<f64>,
}

impl MonLipFree {
    /// Hidden widths, after checking that all parts fit together.
    ///
    /// # Errors
    /// On shapes that do not fit, numbers that are not finite, or ν = μ.
    pub fn check(&self) -> Result<Vec<usize>> {
        if self.bounds.gap() <= 0.0 {
            return Err(Error::setting(
                "nu",
                self.bounds.nu(),
                format!(
                    "must be larger than mu = {} in a monotone layer",
                    self.bounds.mu()
                ),
            ));
        }
        if self.fab.is_empty() {
            return Err(Error::shape("F^ab", "at least one hidden layer", 0));
        }
        let mut units = Vec::new();
        let mut before = 0;
        for (k, f) in self.fab.iter().enumerate() {
            let m = f.ncols();
            if m == 0 || f.nrows() != m + before {
                return Err(Error::shape(
                    format!("F^ab of hidden layer {}", k + 1),
                    format!("({} + {before})×{} with at least one column", m.max(1), m.max(1)),
                    format!("{}×{m}", f.nrows()),
                ));
            }
            check_matrix(&format!("F^ab of hidden layer {}", k + 1), f.as_ref())?;
            units.push(m);
            before = m;
        }
        let m: usize = units.iter().sum();
        let n = self.fq.ncols();
        if n == 0 || self.fq.nrows() != m {
            return Err(Error::shape(
                "F^q",
                format!("{m} rows and at least one column"),
                format!("{}×{n}", self.fq.nrows()),
            ));
        }
        check_matrix("F^q", self.fq.as_ref())?;
        if let Some(fp) = &self.fp {
            if fp.shape() != (n, n) {
                return Err(Error::shape(
                    "F^p",
                    format!("{n}×{n}"),
                    format!("{}×{}", fp.nrows(), fp.ncols()),
                ));
            }
            check_matrix("F^p", fp.as_ref())?;
        }
        if let Some(d) = &self.log_psi {
            if d.len() != m {
                return Err(Error::shape("log psi", m, d.len()));
            }
            check_finite("log psi", d)?;
        }
        if self.hidden_bias.len() != m {
            return Err(Error::shape("hidden bias", m, self.hidden_bias.len()));
        }
        if self.output_bias.len() != n {
            return Err(Error::shape("output bias", n, self.output_bias.len()));
        }
        check_finite("hidden bias", &self.hidden_bias)?;
        check_finite("output bias", &self.output_bias)?;
        Ok(units)
    }

    /// `V_2 … V_L` and `S` in f64, before certified rounding: `V_k = 2B_kA_{k−1}ᵀ`, `S_k = A_kQ_k −
    /// B_kQ_{k−1}`.
    ///
    /// All Cayley transforms run in parallel.
    ///
    /// # Errors
    /// As for [`check`](Self::check), and when a transform overflows.
    pub fn explicit_weights(&self) -> Result<(Vec<Mat<f64>>, Mat<f64>)> {
        let units = self.check()?;
        let layers = units.len();
        let n = self.fq.ncols();
        // Job 0 is Q, the widest; the hidden layers follow.
        let mut transforms = parallel::map(layers + 1, |job| match job {
            0 => match &self.fp {
                None => cayley(self.fq.as_ref()),
                Some(fp) => {
                    let m = self.fq.nrows();
                    let stacked =
                        Mat::from_fn(
                            n + m,
                            n,
                            |i, j| {
                                if i < n { fp[(i, j)] } else { self.fq[(i - n, j)] }
                            },
                        );
                    Ok(cayley(stacked.as_ref())?.subrows(n, m).to_owned())
                }
            },
            k => cayley(self.fab[k - 1].as_ref()),
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
        let q = transforms.remove(0);
        let mut offsets = vec![0];
        for m in &units {
            offsets.push(offsets[offsets.len() - 1] + m);
        }
        // transforms[k] = [A_kᵀ; B_kᵀ].
        let blocks = parallel::map(layers, |k| {
            let m = units[k];
            let at = transforms[k].subrows(0, m);
            let par = par_for(m * m * m);
            let mut s = at.transpose() * q.subrows(offsets[k], m);
            if k == 0 {
                return (None, s);
            }
            let before = units[k - 1];
            let bt = transforms[k].subrows(m, before);
            matmul(
                s.as_mut(),
                Accum::Add,
                bt.transpose(),
                q.subrows(offsets[k - 1], before),
                -1.0,
                par,
            );
            let mut v = Mat::<f64>::zeros(m, before);
            let at_before = transforms[k - 1].subrows(0, before);
            matmul(v.as_mut(), Accum::Replace, bt.transpose(), at_before, 2.0, par);
            (Some(v), s)
        });
        let mut s = Mat::<f64>::zeros(self.fq.nrows(), n);
        let mut v = Vec::with_capacity(layers - 1);
        for (k, (vk, sk)) in blocks.into_iter().enumerate() {
            s.as_mut().subrows_mut(offsets[k], units[k]).copy_from(&sk);
            v.extend(vk);
        }
        Ok((v, s))
    }
}

impl MonLipFree {
    /// The same layer in other variables: `s_y·F((x − m_x)/s_x) + m_y`, with one factor for all
    /// inputs and one for all outputs, so that it stays monotone. Its bounds are `s_y/s_x` times
    /// these.
    ///
    /// The hidden state scales by `t = √(s_x s_y)`, which leaves V and S as they are.
    ///
    /// # Errors
    /// On centers of the wrong size, numbers that are not finite, and bounds that leave their
    /// range.
    pub fn in_variables(&self, input: (&[f64], f64), output: (&[f64], f64)) -> Result<Self> {
        let (_, s) = self.explicit_weights()?;
        let n = s.ncols();
        for (what, (center, scale)) in [("input", input), ("output", output)] {
            if center.len() != n {
                return Err(Error::shape(format!("{what} center"), n, center.len()));
            }
            check_finite(&format!("{what} center"), center)?;
            if !(scale > 0.0 && scale.is_finite()) {
                return Err(Error::setting("scale", scale, "must be positive and finite"));
            }
        }
        let ((center_x, scale_x), (center_y, scale_y)) = (input, output);
        let ratio = scale_y / scale_x;
        let bounds = Bounds::new(self.bounds.mu() * ratio, self.bounds.nu() * ratio)?;
        let t = (scale_x * scale_y).sqrt();
        let gain = (2.0 * self.bounds.gap()).sqrt() / scale_x;
        let moved: Vec<f64> = (0..s.nrows())
            .map(|i| (0..n).map(|j| s[(i, j)] * center_x[j]).sum::<f64>())
            .collect();
        Ok(MonLipFree {
            bounds,
            hidden_bias: (self.hidden_bias.iter().zip(&moved))
                .map(|(b, moved)| t * (b - gain * moved))
                .collect(),
            output_bias: (0..n)
                .map(|j| scale_y * self.output_bias[j] + center_y[j] - bounds.mu() * center_x[j])
                .collect(),
            log_psi: match &self.log_psi {
                Some(d) => Some(d.iter().map(|d| d + t.ln()).collect()),
                None if self.activation.is_homogeneous() => None,
                None => Some(vec![t.ln(); s.nrows()]),
            },
            ..self.clone()
        })
    }
}

/// Settings of a random monotone layer, dense or one of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomLayer<'a> {
    /// Number of inputs and outputs.
    pub n: usize,
    /// Hidden widths.
    pub units: &'a [usize],
    /// The bounds.
    pub bounds: Bounds,
    /// The activation; ReLU unless told otherwise.
    pub activation: Activation,
    /// Deviation of the biases; 0.5 unless told otherwise.
    pub bias: f64,
}

impl<'a> RandomLayer<'a> {
    /// A ReLU layer.
    pub fn new(n: usize, units: &'a [usize], bounds: Bounds) -> Self {
        RandomLayer {
            n,
            units,
            bounds,
            activation: Activation::Relu,
            bias: 0.5,
        }
    }

    /// The same with another activation.
    pub fn with_activation(self, activation: Activation) -> Self {
        RandomLayer { activation, ..self }
    }

    /// The same with biases of another deviation.
    pub fn with_bias(self, bias: f64) -> Self {
        RandomLayer { bias, ..self }
    }
}

impl MonLipFree {
    /// Glorot-normal matrices, normal biases, ψ = 1.
    ///
    /// # Errors
    /// When `n`, the number of hidden layers or a width is zero.
    pub fn random(layer: &RandomLayer<'_>, rng: &mut Rng) -> Result<Self> {
        let RandomLayer { n, units, .. } = *layer;
        if n == 0 {
            return Err(Error::setting("n", 0, "must be at least 1"));
        }
        check_units(units)?;
        let m: usize = units.iter().sum();
        let mut before = 0;
        let mut fab = Vec::with_capacity(units.len());
        for &width in units {
            fab.push(rng.glorot(width + before, width));
            before = width;
        }
        let scaled = |values: Vec<f64>| values.into_iter().map(|v| layer.bias * v).collect();
        Ok(MonLipFree {
            bounds: layer.bounds,
            activation: layer.activation,
            fq: rng.glorot(m, n),
            fp: None,
            fab,
            log_psi: None,
            hidden_bias: scaled(rng.normals(m)),
            output_bias: scaled(rng.normals(n)),
        })
    }
}

impl<T: Real> MonLip<T> {
    /// The explicit layer of free parameters, with its bounds proved for the numbers stored.
    ///
    /// The weights are computed in f64; *certified rounding* then shrinks `V` and `S` by a relative
    /// `ε` a little above the rounding of `T` (about 1e-14 to 1e-12 in f64, 1e-7 to 1e-6 in f32),
    /// which turns the singular condition `I − (V+Vᵀ)/2 − SSᵀ ⪰ 0` into one that holds, and is
    /// proved, after rounding.
    ///
    /// # Errors
    /// On parts that do not fit together, numbers that are not finite, or ν = μ.
    pub fn from_free(free: &MonLipFree) -> Result<Self> {
        let (v, s) = free.explicit_weights()?;
        let (v, s, certificate) = round_certified::<T>(&v, s.as_ref(), free.bounds)?;
        let narrow = |values: &[f64]| values.iter().map(|b| T::round_from(*b)).collect::<Vec<T>>();
        let psi = free
            .log_psi
            .as_ref()
            .map(|d| d.iter().map(|d| T::round_from(d.exp())).collect::<Vec<T>>());
        let explicit = MonLipExplicit {
            bounds: free.bounds,
            activation: free.activation,
            v,
            s,
            psi: psi.filter(|_| !free.activation.is_homogeneous()),
            hidden_bias: narrow(&free.hidden_bias),
            output_bias: narrow(&free.output_bias),
        };
        Self::assemble(explicit, Late::of(certificate))
    }

    /// Free parameters that give this layer back (Proposition 3.2: the parametrisation is
    /// complete).
    ///
    /// `I − (V+Vᵀ)/2 = PPᵀ` is factored with block-bidiagonal `P` whose diagonal blocks `A_k` are
    /// chosen symmetric positive semidefinite, which keeps every inverse Cayley transform well
    /// conditioned; `Q = P⁻¹S`. The result is in the general form, with [`fp`](MonLipFree::fp).
    ///
    /// # Errors
    /// When the weights do not satisfy the condition for [`design`](MonLip::design).
    pub fn to_free(&self) -> Result<MonLipFree> {
        let w = &self.weights;
        if !self.layer_certificate().holds() {
            return Err(Error::NotCertifiable {
                what: "to_free".into(),
                reason: format!(
                    "the weights miss the condition by {:.2e}",
                    -self.layer_certificate().margin()
                ),
            });
        }
        let s = to_f64(w.s.as_ref());
        let mut fab = Vec::with_capacity(w.units.len());
        let mut q = Mat::<f64>::zeros(s.nrows(), w.n);
        let mut a_before = Mat::<f64>::zeros(0, 0);
        for (k, &m) in w.units.iter().enumerate() {
            let before = if k == 0 { 0 } else { w.units[k - 1] };
            // B_k = ½V_k A_{k−1}⁻ᵀ, so that V_k = 2B_kA_{k−1}ᵀ.
            let b = if k == 0 {
                Mat::<f64>::zeros(m, 0)
            } else {
                let v = to_f64(w.v[k - 1].as_ref());
                let half = Mat::from_fn(before, m, |i, j| 0.5 * v[(j, i)]);
                a_before.partial_piv_lu().solve(half).transpose().to_owned()
            };
            // A_k = (I − B_kB_kᵀ)^{1/2}.
            let gram = Mat::<f64>::identity(m, m) - &b * b.transpose();
            let a = sqrt_psd(gram.as_ref())?;
            let offset = w.offsets[k];
            let mut rhs = s.subrows(offset, m).to_owned();
            if k > 0 {
                rhs += &b * q.subrows(w.offsets[k - 1], before);
            }
            let qk = a.partial_piv_lu().solve(rhs);
            q.as_mut().subrows_mut(offset, m).copy_from(&qk);
            let stacked = Mat::from_fn(
                m + before,
                m,
                |i, j| if i < m { a[(j, i)] } else { b[(j, i - m)] },
            );
            fab.push(inverse_cayley(stacked.as_ref())?);
            a_before = a;
        }
        let n = w.n;
        let p = sqrt_psd((Mat::<f64>::identity(n, n) - q.transpose() * &q).as_ref())?;
        let stacked = Mat::from_fn(
            n + q.nrows(),
            n,
            |i, j| if i < n { p[(i, j)] } else { q[(i - n, j)] },
        );
        let f = inverse_cayley(stacked.as_ref())?;
        let wide = |values: &[T]| values.iter().map(|v| v.as_f64()).collect::<Vec<_>>();
        Ok(MonLipFree {
            bounds: w.design,
            activation: w.activation,
            fq: f.subrows(n, q.nrows()).to_owned(),
            fp: Some(f.subrows(0, n).to_owned()),
            fab,
            log_psi: w
                .psi
                .as_ref()
                .map(|psi| psi.iter().map(|p| p.as_f64().ln()).collect()),
            hidden_bias: wide(self.hidden_bias()),
            output_bias: wide(&w.output_bias),
        })
    }
}

/// Symmetric positive semidefinite square root; eigenvalues that rounding made negative count as
/// zero.
fn sqrt_psd(matrix: MatRef<'_, f64>) -> Result<Mat<f64>> {
    let n = matrix.nrows();
    let eigen = matrix
        .self_adjoint_eigen(Side::Lower)
        .map_err(|_| Error::NotCertifiable {
            what: "to_free".into(),
            reason: "an eigenvalue iteration did not converge".into(),
        })?;
    let (u, lambda) = (eigen.U(), eigen.S().column_vector());
    let scaled = Mat::from_fn(n, n, |i, j| u[(i, j)] * lambda[j].max(0.0).sqrt());
    Ok(scaled * u.transpose())
}
