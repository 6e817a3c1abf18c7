//! Training, and what can be proved of a trained network.

use bilip::{BiLipschitz, Bounds, GpHead, InverseOptions};
use bilip_burn::{
    Accumulation, Augment, ConvFeatures, ConvFeaturesConfig, Dataset, GpConfig, GpNet, Loss, NormalizedConv,
    OnDevice, OptimizerKind, Predict, TrainConfig, train,
};
use burn::module::{AutodiffModule, Module, ModuleDisplay};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};

use crate::baselines::WideResNetConfig;
use crate::config::ModelFamily;
use crate::error::{Error, Result};
use crate::experiments::{Hidden, fit};
use crate::files;
use crate::images::{PIXELS, SIDE};
use crate::published;
use crate::run::{Experiment, Job};

const RIDGE: f64 = 1.0;
/// Images go through every block and back to this certified error.
const TOLERANCE: f64 = 1e-6;
/// Numbers that the head sees.
const FEATURES: usize = 128;
/// The published frequencies have deviation 0.05 and inputs are divided by the root of the kernel's
/// scale of 2.
const LENGTH_SCALE: f64 = std::f64::consts::SQRT_2 / 0.05;

/// What is left of a trained model: features of images, the head, and what is to be proved.
pub(super) struct Trained {
    pub features: Hidden,
    pub head: GpHead,
    /// Where there is a claim.
    pub claimed: Option<Bounds>,
    /// Work for the CPU, while the GPU looks at images.
    pub proof: Option<Box<dyn FnOnce() -> Result<Proof> + Send>>,
    pub parameters: usize,
    pub loss: f64,
}

/// What is proved of the stored numbers.
#[derive(Default)]
pub(super) struct Proof {
    /// Of every block.
    pub certified: Vec<Option<Bounds>>,
    /// Of the convolutions between them, over the bounds that these were given.
    pub norms: Vec<f64>,
    /// The worst certified error of images that went through the monotone layer of a block and
    /// back, and the most steps that took.
    pub inverse: Option<(f64, usize)>,
}

pub(super) struct Work<'a> {
    pub experiment: &'a Experiment,
    pub job: &'a Job,
    pub table: &'a Dataset,
    /// Images to be sent through the blocks and back.
    pub sample: &'a [f64],
}

impl OnDevice for Work<'_> {
    type Output = Result<Trained>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Trained> {
        let (model, seed) = (&self.job.model, self.job.seed);
        let c = model
            .c
            .ok_or_else(|| Error::config(&model.name, "c is missing"))?;
        let [width] = model.hidden[..] else {
            return Err(Error::config(&model.name, "hidden holds one number, the width"));
        };
        match model.kind {
            ModelFamily::ConvBilipnet => {
                let designed = ConvFeaturesConfig::of_branch_bound(c, width)?;
                let claimed = designed.bounds;
                let config = ConvFeaturesConfig {
                    bounds: match model.published {
                        true => published::conv_bounds(claimed)?,
                        false => claimed,
                    },
                    seed,
                    ..designed
                };
                let (net, rest) = self.finish::<B, _>(config.init::<B>(device)?, device)?;
                let sample = Tensor::from_data(
                    TensorData::new(self.sample.to_vec(), [self.sample.len() / PIXELS, 3, SIDE, SIDE])
                        .convert_dtype(DType::F32),
                    (device, DType::F32),
                );
                Ok(Trained {
                    claimed: Some(claimed),
                    proof: Some(Box::new(move || prove(&net, sample))),
                    ..rest
                })
            }
            ModelFamily::ConvSngp => {
                let config = WideResNetConfig::new(c, width)
                    .with_batch_norm(model.batch_norm)
                    .with_dropout(model.dropout)
                    .with_projected(model.projected)
                    .with_seed(seed);
                let (net, rest) = self.finish::<B, _>(config.init::<B>(device)?, device)?;
                let proof = move || {
                    Ok(Proof {
                        norms: norms(net.convolutions())?,
                        ..Proof::default()
                    })
                };
                Ok(Trained {
                    proof: Some(Box::new(proof)),
                    ..rest
                })
            }
            _ => Err(Error::config(&model.name, "is not a model of this experiment")),
        }
    }
}

impl Work<'_> {
    /// Trains a feature map under a head, and computes the posterior.
    fn finish<B, M>(&self, features: M, device: &B::Device) -> Result<(M::InnerModule, Trained)>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B> + ModuleDisplay + Predict<B> + 'static,
        M::InnerModule: ModuleDisplay + Predict<B::InnerBackend> + 'static,
    {
        let head = GpConfig::new(FEATURES, 10)
            .with_length_scale(LENGTH_SCALE)
            .with_orthogonal(true)
            .with_normalize(true)
            .with_seed(7_000 + self.job.seed);
        let net = GpNet::new(features, head.init::<B>(device)?);
        let settings = TrainConfig {
            loss: Loss::CrossEntropy,
            optimizer: OptimizerKind::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
            augment: Some(Augment {
                channels: 3,
                size: SIDE,
                pad: 4,
            }),
            checkpoint_every: 2,
            ..fit::settings(self.experiment, self.job)
        };
        let trained = train::<B, _>(net, self.table, None, &settings)?;
        let loss = trained.history.last().map_or(f64::NAN, |e| e.train_loss);
        let parameters = trained.parameters;
        let net = trained.model.valid();
        self.keep::<B::InnerBackend, _>(&net)?;
        let head = net.posterior(self.table, Loss::CrossEntropy, RIDGE, Accumulation::Exact, device)?;
        let features = net.net().clone();
        let place = device.clone();
        let rest = Trained {
            features: Box::new(move |x| net.hidden_rows(x, PIXELS, &place)),
            head,
            claimed: None,
            proof: None,
            parameters,
            loss,
        };
        Ok((features, rest))
    }

    /// Writes the trained network and its head as a record that Burn reads.
    fn keep<B: Backend, M: Module<B>>(&self, net: &M) -> Result<()> {
        let path = self.experiment.model_file(self.job).with_extension("mpk");
        let bytes = NamedMpkBytesRecorder::<FullPrecisionSettings>::default()
            .record::<M::Record>(net.clone().into_record(), ())
            .map_err(|e| Error::config(path.display().to_string(), e.to_string()))?;
        files::write(&path, &bytes)
    }
}

/// What can be proved of the stored numbers of every block and convolution, and images through the
/// monotone layers and back.
fn prove<B: Backend>(net: &ConvFeatures<B>, sample: Tensor<B, 4>) -> Result<Proof> {
    let mut proof = Proof {
        norms: norms(net.convolutions())?,
        ..Proof::default()
    };
    for (k, block) in net.blocks().iter().enumerate() {
        let monotone = block.monotone().freeze::<f32>()?;
        let orthogonal = block.orthogonal().freeze::<f64>()?.bounds();
        let Some(bounds) = monotone.verify().proved().bounds() else {
            proof.certified.push(None);
            continue;
        };
        proof.certified.push(Some(Bounds::new(
            bounds.mu() * orthogonal.mu() * (1.0 - 1e-15),
            bounds.nu() * orthogonal.nu() * (1.0 + 1e-15),
        )?));
        let inputs = net.before_block(sample.clone(), k).to_data();
        let inputs: Vec<f64> = inputs.iter::<f64>().collect();
        let outputs = monotone.to_f64().forward(&inputs)?;
        let options = InverseOptions {
            tolerance: TOLERANCE,
            ..Default::default()
        };
        let inverse = monotone.inverse(&outputs, &options)?;
        let (error, steps) = proof.inverse.unwrap_or((0.0, 0));
        let most = inverse.rows.iter().map(|r| r.iterations).max();
        proof.inverse = Some((error.max(inverse.max_error_bound()), steps.max(most.unwrap_or(0))));
    }
    Ok(proof)
}

fn norms<'a, B: Backend>(convolutions: impl IntoIterator<Item = &'a NormalizedConv<B>>) -> Result<Vec<f64>> {
    let ratio = |c: &NormalizedConv<B>| Ok(c.certified_norm()? / c.bound());
    convolutions.into_iter().map(ratio).collect()
}
