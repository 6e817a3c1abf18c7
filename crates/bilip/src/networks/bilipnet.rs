//! BiLipNet: orthogonal and monotone layers in turn, `O_{K+1} ∘ F_K ∘ O_K ∘ ⋯ ∘ F_1 ∘ O_1`.

use faer::Mat;

use crate::base::bounds::{Bounds, Claimed};
use crate::base::error::{Error, Result};
use crate::base::random::Rng;
use crate::base::real::Real;
use crate::certify::{Proved, out_of_range};
use crate::layers::activation::Activation;
use crate::layers::monlip::{MonLip, MonLipExplicit, MonLipFree, RandomLayer};
use crate::layers::orthogonal::Orthogonal;
use crate::layers::scaling::Scaling;
use crate::layers::stack::LayerRef;
use crate::networks::map::{BiLipschitz, sealed};

/// A network `Rⁿ → Rⁿ` with proved bounds `μ‖Δx‖ ≤ ‖ΔG‖ ≤ ν‖Δx‖`.
///
/// See the crate's front page for an example.
#[derive(Clone, Debug)]
pub struct BiLipNet<T> {
    orthogonal: Vec<Orthogonal<T>>,
    monotone: Vec<MonLip<T>>,
    input: Option<Scaling<T>>,
    output: Option<Scaling<T>>,
    claim: Claimed,
}

/// Free parameters of a [`BiLipNet`].
#[derive(Clone, Debug)]
pub struct BiLipNetFree {
    /// The whole network's bounds. The bounds in the monotone layers say how they are shared out:
    /// layer k gets its share of `ln μ` and `ln ν`; see [`BiLipNetFree::share_bounds`] for equal
    /// shares.
    pub bounds: Bounds,
    /// Free matrix and bias of the K+1 orthogonal layers.
    pub orthogonal: Vec<(Mat<f64>, Vec<f64>)>,
    /// Free parameters of the K monotone layers.
    pub monotone: Vec<MonLipFree>,
}

impl BiLipNetFree {
    /// Gives every monotone layer the K-th root of the network's bounds.
    pub fn share_bounds(&mut self) -> Result<()> {
        let share = 1.0 / self.monotone.len().max(1) as f64;
        let bounds = Bounds::new(self.bounds.mu().powf(share), self.bounds.nu().powf(share))?;
        for layer in &mut self.monotone {
            layer.bounds = bounds;
        }
        Ok(())
    }

    /// `blocks` random monotone layers between random orthogonal ones, each with an equal share of
    /// the bounds, which are the network's.
    ///
    /// # Errors
    /// When `n`, `blocks`, the number of hidden layers or a width is zero.
    pub fn random(layer: &RandomLayer<'_>, blocks: usize, rng: &mut Rng) -> Result<Self> {
        if blocks == 0 {
            return Err(Error::setting("blocks", 0, "must be at least 1"));
        }
        let n = layer.n;
        let mut free = BiLipNetFree {
            bounds: layer.bounds,
            orthogonal: Vec::new(),
            monotone: Vec::new(),
        };
        for k in 0..=blocks {
            let bias = rng.normals(n).into_iter().map(|v| layer.bias * v).collect();
            free.orthogonal.push((rng.glorot(n.max(1), n.max(1)), bias));
            if k < blocks {
                free.monotone.push(MonLipFree::random(layer, rng)?);
            }
        }
        free.share_bounds()?;
        Ok(free)
    }
}

impl<T: Real> BiLipNet<T> {
    /// The explicit network of free parameters, with `free.bounds` proved for the numbers stored.
    ///
    /// The stored orthogonal matrices are isometries only up to rounding, so the monotone layers'
    /// bounds are moved inwards by as much (a relative 1e-15 to 1e-13 in f64, 1e-7 to 1e-6 in f32):
    /// the *product* is what holds exactly.
    ///
    /// # Errors
    /// On parts that do not fit together, numbers that are not finite, monotone bounds whose
    /// product is not the network's, or μ and ν too close for rounding to leave room between them.
    pub fn from_free(free: &BiLipNetFree) -> Result<Self> {
        check_count(free.orthogonal.len(), free.monotone.len())?;
        let orthogonal = free
            .orthogonal
            .iter()
            .map(|(f, b)| Orthogonal::<T>::from_free(f.as_ref(), b))
            .collect::<Result<Vec<_>>>()?;
        Self::with_orthogonal(orthogonal, &free.monotone, free.bounds)
    }

    /// As [`from_free`](Self::from_free), with orthogonal layers that are explicit already, such as
    /// products of Householder reflections.
    ///
    /// # Errors
    /// As [`from_free`](Self::from_free).
    pub fn with_orthogonal(
        orthogonal: Vec<Orthogonal<T>>,
        monotone: &[MonLipFree],
        bounds: Bounds,
    ) -> Result<Self> {
        check_count(orthogonal.len(), monotone.len())?;
        let shares: Vec<Bounds> = monotone.iter().map(|m| m.bounds).collect();
        let isometries: Vec<Proved> = orthogonal.iter().map(|l| l.bounds()).collect();
        let inner = inner_bounds::<T>(&isometries, &shares, bounds)?;
        let monotone = monotone
            .iter()
            .zip(inner)
            .map(|(layer, bounds)| {
                MonLip::from_free(&MonLipFree {
                    bounds,
                    ..layer.clone()
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Self::with_claim(orthogonal, monotone, bounds.into())
    }

    /// A network from layers, claiming the bounds that their certificates prove.
    ///
    /// # Errors
    /// Unless there is one orthogonal layer more than monotone ones, all of one dimension, and
    /// their product has a positive μ.
    pub fn from_layers(orthogonal: Vec<Orthogonal<T>>, monotone: Vec<MonLip<T>>) -> Result<Self> {
        let net = Self::with_claim(orthogonal, monotone, Bounds::ISOMETRY.into())?;
        let proved = net.product().bounds().ok_or_else(out_of_range)?;
        Ok(net.claiming(proved.into()))
    }

    /// The affine network `x ↦ D(Px + q)`: an orthogonal layer, a monotone one without an activation
    /// and the identity. `factors` are the diagonal of D, all positive; with an explicit P from a
    /// singular value decomposition it is any invertible affine map up to a rotation behind it.
    ///
    /// Claims what is proved: the least and the greatest factor, up to a relative 1e-9.
    ///
    /// # Errors
    /// On factors that are not positive and finite, sizes that do not fit, and a P that is far from
    /// orthogonal.
    pub fn affine(first: Orthogonal<T>, factors: &[f64]) -> Result<Self> {
        let n = first.dim();
        if factors.len() != n {
            return Err(Error::shape("factors", n, factors.len()));
        }
        if let Some(bad) = factors.iter().find(|f| !(**f > 0.0 && f.is_finite())) {
            return Err(Error::setting("factors", bad, "must be positive and finite"));
        }
        let (low, high) = (factors.iter()).fold((f64::INFINITY, 0.0f64), |(a, b), f| (a.min(*f), b.max(*f)));
        // Some room between the two, even where all factors are alike. In f32 an entry of S is off
        // by a relative 6e-8, which must not take it beyond one.
        let room = 1e3 * T::UNIT_ROUNDOFF.max(1e-13);
        let bounds = Bounds::new(low * (1.0 - room), high * (1.0 + room))?;
        // y = (μ + γs²)x for an entry s of a diagonal S.
        let share = |f: f64| ((f - bounds.mu()) / bounds.gap()).sqrt();
        let zeros = || vec![T::zero(); n];
        let layer = MonLip::from_explicit(MonLipExplicit {
            bounds,
            activation: Activation::Identity,
            v: Vec::new(),
            s: Mat::from_fn(n, n, |i, j| match i == j {
                true => T::round_from(share(factors[i])),
                false => T::zero(),
            }),
            psi: None,
            hidden_bias: zeros(),
            output_bias: zeros(),
        })?;
        let identity = Mat::from_fn(n, n, |i, j| match i == j {
            true => T::one(),
            false => T::zero(),
        });
        let last = Orthogonal::from_explicit(identity, zeros())?;
        Self::from_layers(vec![first, last], vec![layer])
    }

    /// The network `x ↦ self(first(x))`, claiming what is proved of it. The last orthogonal layer of
    /// `first` must be the identity, as that of [`affine`](Self::affine) is.
    ///
    /// # Errors
    /// When it is not, the dimensions differ, or one of the two has changes of variables.
    pub fn after(self, first: Self) -> Result<Self> {
        let scaled = |net: &Self| net.input.is_some() || net.output.is_some();
        let ends_in_identity = first.orthogonal.last().is_some_and(|last| {
            let n = last.dim();
            let entry = |i: usize, j: usize| if i == j { T::one() } else { T::zero() };
            last.bias().iter().all(|b| *b == T::zero())
                && (0..n).all(|i| (0..n).all(|j| last.matrix()[(i, j)] == entry(i, j)))
        });
        if scaled(&self) || scaled(&first) || !ends_in_identity {
            return Err(Error::setting(
                "first",
                "a network",
                "must end in the identity, and neither network may have changes of variables",
            ));
        }
        let mut orthogonal = first.orthogonal;
        orthogonal.pop();
        orthogonal.extend(self.orthogonal);
        let monotone = first.monotone.into_iter().chain(self.monotone).collect();
        Self::from_layers(orthogonal, monotone)
    }

    /// The network `x ↦ P·self(x) + q`, claiming what is proved of it.
    ///
    /// # Errors
    /// When the dimensions differ, or the network has changes of variables.
    pub fn rotated(self, last: &Orthogonal<T>) -> Result<Self> {
        if self.input.is_some() || self.output.is_some() || last.dim() != self.dim() {
            return Err(Error::setting(
                "last",
                "an orthogonal layer",
                "must have the network's dimension, and the network no changes of variables",
            ));
        }
        let mut orthogonal = self.orthogonal;
        if let Some(before) = orthogonal.pop() {
            let wide = |layer: &Orthogonal<T>| layer.to_f64();
            let (a, b) = (wide(last), wide(&before));
            let product = a.matrix() * b.matrix();
            let n = product.nrows();
            let bias = (0..n)
                .map(|i| {
                    let moved: f64 = (0..n).map(|j| a.matrix()[(i, j)] * b.bias()[j]).sum();
                    T::round_from(moved + a.bias()[i])
                })
                .collect();
            let narrow = Mat::from_fn(n, n, |i, j| T::round_from(product[(i, j)]));
            orthogonal.push(Orthogonal::from_explicit(narrow, bias)?);
        }
        Self::from_layers(orthogonal, self.monotone)
    }

    pub(crate) fn with_claim(
        orthogonal: Vec<Orthogonal<T>>,
        monotone: Vec<MonLip<T>>,
        claim: Claimed,
    ) -> Result<Self> {
        check_count(orthogonal.len(), monotone.len())?;
        let n = orthogonal[0].dim();
        for (k, dim) in orthogonal
            .iter()
            .map(|l| l.dim())
            .chain(monotone.iter().map(|l| l.dim()))
            .enumerate()
        {
            if dim != n {
                return Err(Error::shape(format!("layer {k}"), format!("dimension {n}"), dim));
            }
        }
        Ok(BiLipNet {
            orthogonal,
            monotone,
            input: None,
            output: None,
            claim,
        })
    }

    /// What the layers prove together, at least the claim if that is proved.
    fn product(&self) -> Proved {
        Proved::product(self.layers().iter().map(|layer| layer.bounds()))
    }

    /// The same network in other variables: `output ∘ G ∘ input`, with the bounds that this gives
    /// it.
    ///
    /// # Errors
    /// When a scaling has another dimension, there is one already, or the bounds leave their range.
    pub fn with_scalings(self, input: Option<Scaling<T>>, output: Option<Scaling<T>>) -> Result<Self> {
        if self.input.is_some() || self.output.is_some() {
            return Err(Error::setting(
                "scaling",
                "a second one",
                "the network has one already",
            ));
        }
        let mut claim = self.claim.bounds();
        for scaling in [&input, &output].into_iter().flatten() {
            if scaling.dim() != self.dim() {
                return Err(Error::shape("scaling", self.dim(), scaling.dim()));
            }
            // Powers of two: the product is exact.
            claim = claim.compose(&scaling.claimed().bounds())?;
        }
        Ok(BiLipNet {
            input,
            output,
            claim: claim.into(),
            ..self
        })
    }

    /// The same network with one output negated, before the change of variables that follows. Every
    /// bound stays as it is; the orientation is reversed. Without such a reflection, a network of
    /// Cayley transforms has `det ∂G > 0` everywhere and cannot fit a map that reverses
    /// orientation.
    ///
    /// # Errors
    /// When there is no such output.
    pub fn with_reflected_output(self, output: usize) -> Result<Self> {
        let mut orthogonal = self.orthogonal;
        if let Some(last) = orthogonal.last_mut() {
            *last = last.with_reflected_output(output)?;
        }
        Ok(BiLipNet { orthogonal, ..self })
    }

    /// The same network with another claim, proved or not.
    pub(crate) fn claiming(self, claim: Claimed) -> Self {
        BiLipNet { claim, ..self }
    }

    /// The change of variables before the first layer.
    pub fn input(&self) -> Option<&Scaling<T>> {
        self.input.as_ref()
    }

    /// The change of variables after the last layer.
    pub fn output(&self) -> Option<&Scaling<T>> {
        self.output.as_ref()
    }

    /// The K+1 orthogonal layers.
    pub fn orthogonal(&self) -> &[Orthogonal<T>] {
        &self.orthogonal
    }

    /// The K monotone layers.
    pub fn monotone(&self) -> &[MonLip<T>] {
        &self.monotone
    }

    /// The same network with its stored numbers converted, exactly, to `f64`.
    pub fn to_f64(&self) -> BiLipNet<f64> {
        BiLipNet {
            orthogonal: self.orthogonal.iter().map(|l| l.to_f64()).collect(),
            monotone: self.monotone.iter().map(|l| l.to_f64()).collect(),
            input: self.input.as_ref().map(|l| l.to_f64()),
            output: self.output.as_ref().map(|l| l.to_f64()),
            claim: self.claim,
        }
    }

    /// The same weights with other biases: `K+1` orthogonal ones and `K` hidden ones.
    pub(crate) fn with_biases(&self, orthogonal: Vec<Vec<T>>, hidden: Vec<Vec<T>>) -> Result<Self> {
        Ok(BiLipNet {
            orthogonal: self
                .orthogonal
                .iter()
                .zip(orthogonal)
                .map(|(layer, bias)| layer.with_bias(bias))
                .collect::<Result<_>>()?,
            monotone: self
                .monotone
                .iter()
                .zip(hidden)
                .map(|(layer, bias)| layer.with_hidden_bias(bias))
                .collect::<Result<_>>()?,
            input: self.input.clone(),
            output: self.output.clone(),
            claim: self.claim,
        })
    }
}

impl<T: Real> sealed::Sealed for BiLipNet<T> {}

impl<T: Real> BiLipschitz<T> for BiLipNet<T> {
    fn dim(&self) -> usize {
        self.orthogonal[0].dim()
    }

    fn claim(&self) -> Claimed {
        self.claim
    }

    fn bounds(&self) -> Proved {
        self.product().as_claimed(self.claim)
    }

    fn layers(&self) -> Vec<LayerRef<'_, T>> {
        let mut layers = Vec::with_capacity(self.orthogonal.len() + self.monotone.len() + 2);
        layers.extend(self.input.as_ref().map(LayerRef::Scaling));
        for (k, orthogonal) in self.orthogonal.iter().enumerate() {
            layers.push(LayerRef::Orthogonal(orthogonal));
            layers.extend(self.monotone.get(k).map(LayerRef::MonLip));
        }
        layers.extend(self.output.as_ref().map(LayerRef::Scaling));
        layers
    }
}

fn check_count(orthogonal: usize, monotone: usize) -> Result<()> {
    if orthogonal != monotone + 1 {
        return Err(Error::shape(
            "orthogonal layers of a BiLipNet",
            format!("one more than the {monotone} monotone ones"),
            orthogonal,
        ));
    }
    Ok(())
}

/// Bounds for the monotone layers, inside their shares by just enough that the whole product proves
/// `claim`.
pub(crate) fn inner_bounds<T: Real>(
    orthogonal: &[Proved],
    shares: &[Bounds],
    claim: Bounds,
) -> Result<Vec<Bounds>> {
    if shares.is_empty() {
        return Err(Error::setting(
            "blocks",
            0,
            "a network needs at least one monotone layer",
        ));
    }
    let too_far = || Error::NotCertifiable {
        what: "network".into(),
        reason: "the orthogonal layers are too far from orthogonal".into(),
    };
    let isometries = orthogonal
        .iter()
        .map(|l| l.bounds().ok_or_else(too_far))
        .collect::<Result<Vec<Bounds>>>()?;
    let product = |f: &dyn Fn(&Bounds) -> f64| shares.iter().map(f).product::<f64>();
    let (mu, nu) = (product(&|b| b.mu()), product(&|b| b.nu()));
    for (name, got, wanted) in [("mu", mu, claim.mu()), ("nu", nu, claim.nu())] {
        if (got / wanted - 1.0).abs() > 1e-9 {
            return Err(Error::setting(
                name,
                wanted,
                format!("the monotone layers' bounds multiply to {got} instead"),
            ));
        }
    }
    // What the orthogonal layers take away, plus a few roundings of the products.
    let defect: f64 = isometries
        .iter()
        .map(|b| (1.0 - b.mu()).max(b.nu() - 1.0))
        .sum::<f64>();
    let steps = 4.0 * (orthogonal.len() + shares.len()) as f64;
    let k = shares.len() as f64;
    let fix = |value: f64, got: f64, wanted: f64| value * (wanted / got).powf(1.0 / k);
    for slack in [1.0, 2.0, 8.0, 64.0] {
        let inward = slack * (defect + steps * f64::EPSILON) / k;
        let inner = shares
            .iter()
            .map(|b| {
                let (low, high) = (
                    fix(b.mu(), mu, claim.mu()) * (1.0 + inward),
                    fix(b.nu(), nu, claim.nu()) * (1.0 - inward),
                );
                if low >= high {
                    return Err(Error::setting(
                        "nu",
                        claim.nu(),
                        format!(
                            "too close to mu = {} for {}-bit weights",
                            claim.mu(),
                            8 * size_of::<T>()
                        ),
                    ));
                }
                Bounds::new(low, high)
            })
            .collect::<Result<Vec<_>>>()?;
        // In the order of the layers, as the certificate will multiply them.
        let total = (0..isometries.len()).flat_map(|k| [isometries.get(k).copied(), inner.get(k).copied()]);
        let total = Bounds::product(total.flatten())?;
        if total.mu() >= claim.mu() && total.nu() <= claim.nu() {
            return Ok(inner);
        }
    }
    Err(too_far())
}
