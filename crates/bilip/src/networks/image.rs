//! Feature maps of images with bi-Lipschitz blocks, and classifiers on them.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use crate::base::bounds::Claimed;
use crate::base::error::{Error, Result, check_batch, check_finite};
use crate::base::matrix::{check_matrix, to_f64};
use crate::base::parallel;
use crate::base::real::Real;
use crate::certify::psd::norm2_upper;
use crate::certify::{Certificate, LayerCertificate};
use crate::layers::convolution::Convolution;
use crate::layers::gp::GpHead;
use crate::networks::classifier::check_head;
use crate::networks::conv::ConvBiLipNet;
use crate::networks::map::BiLipschitz;

/// A step of an [`ImageFeatures`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ImageStep<T> {
    /// A convolution, claimed to have at most this norm.
    Convolution(Convolution<T>, f64),
    /// A bi-Lipschitz block.
    Block(ConvBiLipNet<T>),
}

impl<T: Real> ImageStep<T> {
    /// Channels and side of the images that go in, and of those that come out.
    fn shapes(&self) -> [(usize, usize); 2] {
        match self {
            ImageStep::Convolution(c, _) => [(c.channels()[0], c.size()), (c.channels()[1], c.output_size())],
            ImageStep::Block(net) => [(net.channels(), net.image()); 2],
        }
    }
}

/// `[channels, size, size] → [outputs]`: convolutions and bi-Lipschitz blocks; then per channel
/// `relu(scale·x + shift)`, the mean over the image, and a linear map.
///
/// What is proved is that every block has its bounds, that every convolution has at most its norm,
/// and with these a Lipschitz bound of the whole. A mean over the image has no inverse.
#[derive(Clone, Debug)]
pub struct ImageFeatures<T> {
    steps: Vec<ImageStep<T>>,
    scale: Vec<T>,
    shift: Vec<T>,
    /// `[outputs, channels]`.
    projection: Mat<T>,
    claim: Claimed,
}

impl<T: Real> ImageFeatures<T> {
    /// The feature map of its parts. `claim` is what every block is claimed to have.
    ///
    /// # Errors
    /// Without a block, on shapes that do not fit together and numbers that are not finite.
    pub fn new(
        steps: Vec<ImageStep<T>>,
        scale: Vec<T>,
        shift: Vec<T>,
        projection: Mat<T>,
        claim: impl Into<Claimed>,
    ) -> Result<Self> {
        let mut blocks = steps.iter().filter(|s| matches!(s, ImageStep::Block(_)));
        if blocks.next().is_none() {
            return Err(Error::shape(
                "blocks of a feature map of images",
                "at least one",
                0,
            ));
        }
        for (k, pair) in steps.windows(2).enumerate() {
            let ([_, (channels, size)], [next, _]) = (pair[0].shapes(), pair[1].shapes());
            if next != (channels, size) {
                return Err(Error::shape(
                    format!("step {}", k + 1),
                    format!("{channels} channels of side {size}"),
                    format!("{} of side {}", next.0, next.1),
                ));
            }
        }
        let channels = steps.last().map_or(0, |s| s.shapes()[1].0);
        for (name, count) in [
            ("scale of the channels", scale.len()),
            ("shift of the channels", shift.len()),
            ("columns of the projection", projection.ncols()),
        ] {
            if count != channels {
                return Err(Error::shape(name, channels, count));
            }
        }
        check_finite("scale of the channels", &scale)?;
        check_finite("shift of the channels", &shift)?;
        check_matrix("projection", projection.as_ref())?;
        Ok(ImageFeatures {
            steps,
            scale,
            shift,
            projection,
            claim: claim.into(),
        })
    }

    /// Channels and side of the images that go in.
    pub fn image(&self) -> (usize, usize) {
        self.steps[0].shapes()[0]
    }

    /// Numbers per image that goes in.
    pub fn dim(&self) -> usize {
        let (channels, size) = self.image();
        channels * size * size
    }

    /// Numbers that come out.
    pub fn outputs(&self) -> usize {
        self.projection.nrows()
    }

    /// The convolutions and blocks.
    pub fn steps(&self) -> &[ImageStep<T>] {
        &self.steps
    }

    /// Factor and shift of every channel before the activation.
    pub fn affine(&self) -> (&[T], &[T]) {
        (&self.scale, &self.shift)
    }

    /// The last linear map, `[outputs, channels]`.
    pub fn projection(&self) -> MatRef<'_, T> {
        self.projection.as_ref()
    }

    /// What every block is claimed to have.
    pub fn claim(&self) -> Claimed {
        self.claim
    }

    /// The features of every row, `[batch, channels, size, size] → [batch, outputs]`.
    ///
    /// # Errors
    /// On a batch of the wrong size or with NaN or infinity.
    pub fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        let n = self.dim();
        let rows = check_batch("images", x, n)?;
        let mut out = Vec::with_capacity(rows * self.outputs());
        // A block of images at a time: what is between the layers is many times their size.
        for block in x.chunks(16 * n) {
            let mut at = block.to_vec();
            for step in &self.steps {
                at = match step {
                    ImageStep::Convolution(convolution, _) => convolution.forward(&at)?,
                    ImageStep::Block(net) => net.forward(&at)?,
                };
            }
            out.extend(self.pooled(&at));
        }
        check_finite("result (numbers out of range)", &out)?;
        Ok(out)
    }

    fn pooled(&self, x: &[T]) -> Vec<T> {
        let (channels, outputs) = (self.scale.len(), self.outputs());
        let pixels = self.steps.last().map_or(1, |s| s.shapes()[1].1.pow(2));
        let mean: Vec<T> = (x.chunks_exact(pixels).enumerate())
            .map(|(k, plane)| {
                let (scale, shift) = (self.scale[k % channels], self.shift[k % channels]);
                let sum: T = plane.iter().map(|v| (scale * *v + shift).max(T::zero())).sum();
                sum / T::round_from(pixels as f64)
            })
            .collect();
        let rows = mean.len() / channels;
        let mut out = vec![T::zero(); rows * outputs];
        matmul(
            MatMut::from_column_major_slice_mut(&mut out, outputs, rows),
            Accum::Replace,
            self.projection.as_ref(),
            MatRef::from_column_major_slice(&mean, channels, rows),
            T::one(),
            Par::Seq,
        );
        out
    }

    /// What has been proved of the stored weights.
    pub fn certificate(&self) -> Certificate {
        self.certify(|net| net.certificate())
    }

    /// As [`certificate`](Self::certificate), proved again from the stored weights.
    pub fn verify(&self) -> Certificate {
        self.certify(|net| net.verify())
    }

    fn certify(&self, of_block: impl Fn(&ConvBiLipNet<T>) -> Certificate) -> Certificate {
        let mut layers = Vec::new();
        let mut blocks = Vec::new();
        let mut lipschitz = 1.0f64;
        for step in &self.steps {
            match step {
                ImageStep::Convolution(convolution, claimed) => {
                    let norm = convolution.norm_bound().unwrap_or(f64::INFINITY);
                    layers.push(LayerCertificate::of_convolution(*claimed, norm));
                    lipschitz *= norm;
                }
                ImageStep::Block(net) => {
                    let certificate = of_block(net);
                    layers.extend(certificate.layers().iter().cloned());
                    blocks.push(certificate.proved());
                    lipschitz *= certificate.proved().nu();
                }
            }
        }
        let pixels = self.steps.last().map_or(1, |s| s.shapes()[1].1.pow(2));
        let scale = self.scale.iter().map(|s| s.as_f64().abs()).fold(0.0, f64::max);
        // The mean of s² numbers has norm 1/s; a few roundings on the way.
        lipschitz *= scale * norm2_upper(to_f64(self.projection.as_ref()).as_ref()) / (pixels as f64).sqrt();
        let roundings = 1.0 + 1e-15 * (8 + 4 * self.steps.len()) as f64;
        Certificate::of_blocks(layers, &blocks, self.claim, lipschitz * roundings)
    }
}

/// Image features under a Gaussian process: class probabilities with their uncertainty.
#[derive(Clone, Debug)]
pub struct ImageClassifier<T> {
    features: ImageFeatures<T>,
    head: GpHead,
    factor: f64,
}

impl<T: Real> ImageClassifier<T> {
    /// A classifier of images. The factor is that of [`GpHead::probabilities`].
    ///
    /// # Errors
    /// When sizes do not fit, there are fewer than two classes, or the factor is negative.
    pub fn new(features: ImageFeatures<T>, head: GpHead, factor: f64) -> Result<Self> {
        check_head(&head, features.outputs(), factor)?;
        Ok(ImageClassifier {
            features,
            head,
            factor,
        })
    }

    /// The feature map.
    pub fn features(&self) -> &ImageFeatures<T> {
        &self.features
    }

    /// The process.
    pub fn head(&self) -> &GpHead {
        &self.head
    }

    /// The factor of the mean-field approximation.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.head.outputs()
    }

    /// Probabilities of the classes of every image, `[batch, channels, size, size] → [batch,
    /// classes]`.
    ///
    /// # Errors
    /// When the numbers do not make images.
    pub fn probabilities(&self, x: &[T]) -> Result<Vec<f64>> {
        let h: Vec<f64> = self.features.forward(x)?.iter().map(|v| v.as_f64()).collect();
        let n = self.features.outputs();
        let parts = parallel::map_chunks(h.len() / n, 1_024, |rows| {
            self.head
                .probabilities(&h[rows.start * n..rows.end * n], self.factor)
        });
        Ok(parts.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }
}
