//! Training any of the models, and using it afterwards.

use bilip::{Activation, BiLipschitz, Bounds, Network, Rng};
use bilip_burn::{
    BiLipNetConfig, BoundsMode, Columns, Dataset, MlpConfig, MonLipConfig, OnDevice, PartialConfig,
    PartialPlNet, PlNet, Predict, Quadratic, Schedule, TrainConfig, Trained, train,
};
use burn::module::AutodiffModule;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};

use crate::baselines::{IcnnConfig, ResidualConfig, ResidualNet};
use crate::config::{ModelConfig, ModelFamily};
use crate::error::{Error, Result};
use crate::run::{Experiment, Job};

type Function = Box<dyn Fn(&[f64]) -> Result<Vec<f64>>>;

/// A trained model: certified where it can be.
pub(crate) struct Fitted {
    /// Predictions of rows x; of a partial network at rows x and p side by side.
    pub(crate) predict: Function,
    /// The map G below the potential, or the model itself.
    pub(crate) map: Option<Function>,
    /// The certified network.
    pub(crate) network: Option<Network<f64>>,
    /// The bounds that it claims.
    pub(crate) claimed: Option<Bounds>,
    /// Bounds proved for the trained weights.
    pub(crate) certified: Option<Bounds>,
    pub(crate) parameters: usize,
}

impl Fitted {
    /// The certified bounds as metrics; not a number where there are none.
    pub(crate) fn certified_pair(&self) -> (f64, f64) {
        self.certified.map_or((f64::NAN, f64::NAN), |b| (b.mu(), b.nu()))
    }

    /// Smallest and largest `‖ΔG‖/‖Δx‖` over pairs of neighbors in a box: measured, not proved.
    pub(crate) fn measured_slopes(
        &self,
        low: &[f64],
        high: &[f64],
        pairs: usize,
        seed: u64,
    ) -> Result<(f64, f64)> {
        let Some(map) = &self.map else {
            return Ok((f64::NAN, f64::NAN));
        };
        let n = low.len();
        let mut rng = Rng::new(seed);
        let (mut a, mut b) = (Vec::with_capacity(pairs * n), Vec::with_capacity(pairs * n));
        for _ in 0..pairs {
            let direction = rng.normals(n);
            let length = direction.iter().map(|v| v * v).sum::<f64>().sqrt();
            for i in 0..n {
                let x = low[i] + (high[i] - low[i]) * rng.uniform();
                a.push(x);
                // Near enough to see the slope, far enough for single precision.
                b.push(x + 0.02 * direction[i] / length);
            }
        }
        let (fa, fb) = (map(&a)?, map(&b)?);
        let m = fa.len() / pairs;
        let (mut smallest, mut largest) = (f64::INFINITY, 0.0f64);
        for k in 0..pairs {
            let distance = |u: &[f64], v: &[f64], w: usize| -> f64 {
                (k * w..(k + 1) * w)
                    .map(|i| (u[i] - v[i]).powi(2))
                    .sum::<f64>()
                    .sqrt()
            };
            let slope = distance(&fa, &fb, m) / distance(&a, &b, n);
            smallest = smallest.min(slope);
            largest = largest.max(slope);
        }
        Ok((smallest, largest))
    }
}

fn bounds_mode(model: &ModelConfig) -> Result<BoundsMode> {
    match (model.bounds, model.tau) {
        (Some([mu, nu]), None) => Ok(BoundsMode::Fixed(Bounds::new(mu, nu)?)),
        (None, Some(tau)) => Ok(BoundsMode::Distortion(tau)),
        _ => Err(Error::config(&model.name, "give either bounds or tau")),
    }
}

pub(super) fn settings(experiment: &Experiment, job: &Job) -> TrainConfig {
    let config = &experiment.config;
    let peak = job.model.peak.unwrap_or(config.peak);
    let schedule = match (&config.steps, config.cycle) {
        (Some(steps), _) => Schedule::Steps {
            rate: peak,
            warm: steps.warm,
            at: steps.at.clone(),
            factor: steps.factor,
        },
        (None, Some([a, b, d, e])) => Schedule::one_cycle(peak, (a, b, d, e)),
        (None, None) => Schedule::Constant { rate: peak },
    };
    TrainConfig {
        epochs: config.epochs,
        batch: config.batch,
        schedule,
        schedule_steps: config.schedule_steps,
        seed: job.seed,
        checkpoints: Some(experiment.checkpoints(job)),
        checkpoint_every: (config.epochs / 20).max(1),
        progress: experiment.settings.progress,
        ..Default::default()
    }
}

fn fit<B, M>(model: M, table: &Dataset, experiment: &Experiment, job: &Job) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
{
    Ok(train::<B, M>(model, table, None, &settings(experiment, job))?)
}

/// Predictions of a module in single precision, in blocks.
fn in_blocks<B: Backend, M: Predict<B> + 'static>(model: M, n: usize, device: &B::Device) -> Function {
    let device = device.clone();
    Box::new(move |x| {
        let mut out = Vec::with_capacity(x.len() / n);
        for block in x.chunks(4_096 * n) {
            let data = TensorData::new(block.to_vec(), [block.len() / n, n]).convert_dtype(DType::F32);
            let x = Tensor::<B, 2>::from_data(data, (&device, DType::F32));
            out.extend(model.predict(x, None).to_data().iter::<f64>());
        }
        Ok(out)
    })
}

/// Trains the model of a job on a table without parameters.
pub(crate) fn model(experiment: &Experiment, job: &Job, table: &Dataset) -> Result<Fitted> {
    let work = Work {
        experiment,
        job,
        table,
    };
    experiment.settings.device.run(work)?
}

struct Work<'a> {
    experiment: &'a Experiment,
    job: &'a Job,
    table: &'a Dataset,
}

impl OnDevice for Work<'_> {
    type Output = Result<Fitted>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Fitted> {
        train_model::<B>(self.experiment, self.job, self.table, device)
    }
}

fn train_model<B: AutodiffBackend>(
    experiment: &Experiment,
    job: &Job,
    table: &Dataset,
    device: &B::Device,
) -> Result<Fitted> {
    let (config, seed) = (&job.model, job.seed);
    let Columns {
        inputs: n, targets, ..
    } = table.columns();
    let activation: Activation = config.activation.parse()?;
    let layer = |bounds| {
        MonLipConfig::new(n, config.hidden.clone(), bounds)
            .with_activation(activation)
            .with_seed(seed)
    };
    Ok(match config.kind {
        ModelFamily::Monlip => {
            let trained = fit(
                layer(bounds_mode(config)?).init::<B>(device)?,
                table,
                experiment,
                job,
            )?;
            let frozen = trained.model.freeze::<f64>()?;
            let certificate = frozen.verify();
            let (a, b) = (frozen.clone(), frozen.clone());
            Fitted {
                predict: Box::new(move |x| Ok(a.forward(x)?)),
                map: Some(Box::new(move |x| Ok(b.forward(x)?))),
                claimed: Some(frozen.claim().bounds()),
                certified: certificate.proved().bounds().filter(|_| certificate.holds()),
                parameters: trained.parameters,
                network: Some(Network::MonLip(frozen)),
            }
        }
        ModelFamily::Plnet => {
            let net = BiLipNetConfig::new(config.depth, layer(bounds_mode(config)?)).init::<B>(device)?;
            let trained = fit(PlNet::new(net), table, experiment, job)?;
            let frozen = trained.model.freeze::<f64>()?;
            let certificate = frozen.verify();
            let (a, b) = (frozen.clone(), frozen.net().clone());
            Fitted {
                predict: Box::new(move |x| Ok(a.value(x)?)),
                map: Some(Box::new(move |x| Ok(b.forward(x)?))),
                claimed: Some(frozen.net().claim().bounds()),
                certified: certificate.proved().bounds().filter(|_| certificate.holds()),
                parameters: trained.parameters,
                network: Some(Network::PlNet(frozen)),
            }
        }
        ModelFamily::Mlp => {
            let mut sizes = config.hidden.clone();
            sizes.push(n);
            let net = MlpConfig::new(n, sizes).with_seed(seed).init::<B>(device)?;
            let trained = fit(Quadratic::new(net), table, experiment, job)?;
            let model = trained.model.valid();
            Fitted {
                map: Some(in_blocks(model.net().clone(), n, device)),
                parameters: trained.parameters,
                predict: in_blocks(model, n, device),
                network: None,
                claimed: None,
                certified: None,
            }
        }
        ModelFamily::Icnn => {
            let model = IcnnConfig::new(n, config.hidden.clone())
                .with_seed(seed)
                .init::<B>(device)?;
            let trained = fit(model, table, experiment, job)?;
            Fitted {
                parameters: trained.parameters,
                predict: in_blocks(trained.model.valid(), n, device),
                map: None,
                network: None,
                claimed: None,
                certified: None,
            }
        }
        ModelFamily::GpBilipnet | ModelFamily::GpSngp | ModelFamily::ConvBilipnet | ModelFamily::ConvSngp => {
            return Err(Error::config(&config.name, "belongs to the experiment moons"));
        }
        ModelFamily::IResnet | ModelFamily::IDensenet => {
            let bounds = bounds_mode(config)?;
            let mut residual = match config.kind {
                ModelFamily::IResnet => ResidualConfig::i_resnet(n, &config.hidden, config.depth, bounds),
                _ => ResidualConfig::i_densenet(n, &config.hidden, config.depth, bounds),
            };
            residual.seed = seed;
            residual.activation = activation;
            if config.published {
                residual = residual.published();
            }
            let net = residual.init::<B>(device)?;
            if targets == 1 && n > 1 {
                let trained = fit(Quadratic::new(net), table, experiment, job)?;
                let parameters = trained.parameters;
                let model = trained.model.valid();
                let net = model.net().clone();
                residual_fitted(net, in_blocks(model, n, device), n, parameters, device)
            } else {
                let trained = fit(net, table, experiment, job)?;
                let parameters = trained.parameters;
                let net = trained.model.valid();
                residual_fitted(net.clone(), in_blocks(net, n, device), n, parameters, device)
            }
        }
    })
}

fn residual_fitted<B: Backend>(
    net: ResidualNet<B>,
    predict: Function,
    n: usize,
    parameters: usize,
    device: &B::Device,
) -> Fitted {
    Fitted {
        predict,
        claimed: net.bounds().ok(),
        certified: net.certified_bounds().ok(),
        map: Some(in_blocks(net, n, device)),
        network: None,
        parameters,
    }
}

/// Trains a partial PL network with the published bias networks.
pub(crate) fn partial(
    experiment: &Experiment,
    job: &Job,
    table: &Dataset,
) -> Result<(bilip::PartialPlNet<f64>, usize)> {
    let work = PartialWork(Work {
        experiment,
        job,
        table,
    });
    experiment.settings.device.run(work)?
}

struct PartialWork<'a>(Work<'a>);

impl OnDevice for PartialWork<'_> {
    type Output = Result<(bilip::PartialPlNet<f64>, usize)>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Self::Output {
        let Work {
            experiment,
            job,
            table,
        } = self.0;
        train_partial::<B>(experiment, job, table, device)
    }
}

fn train_partial<B: AutodiffBackend>(
    experiment: &Experiment,
    job: &Job,
    table: &Dataset,
    device: &B::Device,
) -> Result<(bilip::PartialPlNet<f64>, usize)> {
    let Columns {
        inputs: n,
        parameters,
        ..
    } = table.columns();
    let layer = MonLipConfig::new(n, job.model.hidden.clone(), bounds_mode(&job.model)?)
        .with_seed(job.seed)
        .with_activation(job.model.activation.parse()?);
    let net = BiLipNetConfig::new(job.model.depth, layer);
    let config = PartialConfig::new(net, parameters, vec![64, 128], vec![64, 128, 256]);
    let model = PartialPlNet::new(config.init::<B>(device)?);
    let trained = fit(model, table, experiment, job)?;
    Ok((trained.model.freeze()?, trained.parameters))
}
