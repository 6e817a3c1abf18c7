//! A classifier that knows how far a point is from its data.

use crate::base::error::{Error, Result, check_batch};
use crate::base::real::Real;
use crate::certify::Certificate;
use crate::layers::gp::GpHead;
use crate::networks::bilipnet::BiLipNet;
use crate::networks::map::BiLipschitz;

/// A bi-Lipschitz feature map under a Gaussian process: `GP(G(x, 0))`, class probabilities with
/// their uncertainty.
///
/// Inputs are padded with zeros to the dimension of the feature map, which keeps distances as they
/// are: so `μ‖x − x'‖ ≤ ‖G(x) − G(x')‖ ≤ ν‖x − x'‖` holds for the inputs. The process measures
/// distances between features; what is far from all data in the one space is so in the other, and
/// its probabilities go back to even.
#[derive(Clone, Debug)]
pub struct Classifier<T> {
    net: BiLipNet<T>,
    inputs: usize,
    head: GpHead,
    factor: f64,
}

impl<T: Real> Classifier<T> {
    /// The customary factor λ of the mean-field approximation.
    pub const FACTOR: f64 = std::f64::consts::PI / 8.0;

    /// A classifier of rows of `inputs` numbers. The factor is that of [`GpHead::probabilities`].
    ///
    /// # Errors
    /// When sizes do not fit, there are fewer than two classes, or the factor is negative.
    pub fn new(net: BiLipNet<T>, inputs: usize, head: GpHead, factor: f64) -> Result<Self> {
        let n = net.dim();
        if inputs == 0 || inputs > n {
            return Err(Error::shape("inputs", format!("between 1 and {n}"), inputs));
        }
        check_head(&head, n, factor)?;
        Ok(Classifier {
            net,
            inputs,
            head,
            factor,
        })
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.head.outputs()
    }

    /// The feature map.
    pub fn net(&self) -> &BiLipNet<T> {
        &self.net
    }

    /// The process.
    pub fn head(&self) -> &GpHead {
        &self.head
    }

    /// The factor of the mean-field approximation.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// What has been proved of the feature map.
    pub fn certificate(&self) -> Certificate {
        self.net.certificate()
    }

    /// As [`certificate`](Self::certificate), proved again from the stored weights.
    pub fn verify(&self) -> Certificate {
        self.net.verify()
    }

    /// The features of every row, `[batch, inputs] → [batch, dimension]`.
    ///
    /// # Errors
    /// When the numbers do not make rows.
    pub fn features(&self, x: &[T]) -> Result<Vec<f64>> {
        check_batch("x", x, self.inputs)?;
        let h = self.net.forward(&padded(x, self.inputs, self.net.dim()))?;
        Ok(h.iter().map(|v| v.as_f64()).collect())
    }

    /// Probabilities of the classes of every row, `[batch, inputs] → [batch, classes]`.
    ///
    /// # Errors
    /// When the numbers do not make rows.
    pub fn probabilities(&self, x: &[T]) -> Result<Vec<f64>> {
        let n = self.net.dim();
        let mut out = Vec::with_capacity(x.len() / self.inputs * self.classes());
        // The features of a row are many more numbers than the row.
        for block in self.features(x)?.chunks(1_024 * n) {
            out.extend(self.head.probabilities(block, self.factor)?);
        }
        Ok(out)
    }
}

/// Whether a head fits a feature map of n outputs.
pub(crate) fn check_head(head: &GpHead, n: usize, factor: f64) -> Result<()> {
    if head.features().inputs() != n {
        return Err(Error::shape("inputs of the head", n, head.features().inputs()));
    }
    if head.outputs() < 2 {
        return Err(Error::shape("classes", "at least 2", head.outputs()));
    }
    if !(factor >= 0.0 && factor.is_finite()) {
        return Err(Error::setting(
            "factor",
            factor,
            "must be finite and not negative",
        ));
    }
    Ok(())
}

/// Rows with zeros after them.
fn padded<T: Real>(x: &[T], inputs: usize, n: usize) -> Vec<T> {
    let mut out = vec![T::zero(); x.len() / inputs * n];
    for (row, x) in out.chunks_exact_mut(n).zip(x.chunks_exact(inputs)) {
        row[..inputs].copy_from_slice(x);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::bounds::Bounds;
    use crate::{BiLipNetFree, PosteriorPrecision, RandomFeatures, RandomLayer, Rng};
    use faer::Mat;

    fn classifier(inputs: usize, n: usize) -> Classifier<f64> {
        let mut rng = Rng::new(4);
        let bounds = Bounds::new(0.5, 2.0).unwrap();
        let free =
            BiLipNetFree::random(&RandomLayer::new(n, &[8, 8], bounds).with_bias(1.0), 1, &mut rng).unwrap();
        let net = BiLipNet::from_free(&free).unwrap();
        let features = RandomFeatures::draw(n, 200, 1.0, false, &mut rng).unwrap();
        // Ten points about the origin, in two classes by the sign of their first number.
        let x = rng.normals(10 * inputs);
        let h = net.forward(&padded(&x, inputs, n)).unwrap();
        let targets: Vec<f64> = x
            .chunks(inputs)
            .flat_map(|r| [r[0].signum(), -r[0].signum()])
            .collect();
        let fitted = GpHead::regression(features.clone(), &h, &targets, 0.01).unwrap();
        let mut precision = PosteriorPrecision::new(200, 0.01).unwrap();
        precision
            .add(&features.features(&h).unwrap(), &[0.25; 10])
            .unwrap();
        let weights = fitted.weights() * faer::Scale(5.0);
        let head = GpHead::new(features, weights, vec![0.0; 2], &precision).unwrap();
        Classifier::new(net, inputs, head, Classifier::<f64>::FACTOR).unwrap()
    }

    #[test]
    fn distances_of_inputs_keep_the_bounds_in_the_features() {
        let model = classifier(2, 5);
        assert!(model.certificate().holds());
        let mut rng = Rng::new(8);
        for _ in 0..200 {
            let (a, b) = (rng.normals(2), rng.normals(2));
            let (fa, fb) = (model.features(&a).unwrap(), model.features(&b).unwrap());
            let distance =
                |u: &[f64], v: &[f64]| u.iter().zip(v).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let slope = distance(&fa, &fb) / distance(&a, &b);
            assert!((0.5 - 1e-9..=2.0 + 1e-9).contains(&slope), "{slope}");
        }
    }

    #[test]
    fn probabilities_are_rows_and_even_out_far_away() {
        let model = classifier(2, 4);
        let far = model.probabilities(&[1e3, -1e3, 30.0, 40.0]).unwrap();
        for row in far.chunks(2) {
            assert!((row[0] + row[1] - 1.0).abs() < 1e-12);
            assert!(row[0].max(row[1]) < 0.9, "{row:?}");
        }
        assert!(model.probabilities(&[1.0, 2.0, 3.0]).is_err());
        let many = vec![0.1; 2 * 3_000];
        assert_eq!(model.probabilities(&many).unwrap().len(), 2 * 3_000);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let model = classifier(2, 4);
        let (net, head) = (model.net().clone(), model.head().clone());
        for (inputs, factor) in [(0, 1.0), (5, 1.0), (2, -1.0), (2, f64::NAN)] {
            assert!(Classifier::new(net.clone(), inputs, head.clone(), factor).is_err());
        }
        let features = RandomFeatures::draw(3, 10, 1.0, false, &mut Rng::new(1)).unwrap();
        let prior = PosteriorPrecision::new(10, 1.0).unwrap();
        let other = GpHead::new(features, Mat::zeros(10, 2), vec![0.0; 2], &prior).unwrap();
        assert!(Classifier::new(net, 2, other, 1.0).is_err());
    }
}
