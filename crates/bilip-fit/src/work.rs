//! One training run, from a recipe to a model in the user's units.

use bilip::{Model, Network, Precision};
use bilip_burn::{
    Adam, Dataset, GpConfig, GpNet, Loss, OnDevice, OptimizerKind, PartialConfig, PartialPlNet, PlNet,
    Predict, Schedule, TrainConfig, Trained, train,
};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;

use crate::error::Result;
use crate::folder::Folder;
use crate::freeze::{
    freeze_classifier, freeze_monlip, freeze_partial_plnet, freeze_plnet, linear_network, partial, scaled,
};
use crate::prepare::{Prepared, Rows, width};
use crate::recipe::Recipe;
use crate::settings::{FitSettings, ModelKind, Optimizer};

/// Random features of a classifier's process when nothing is said of them.
const DEFAULT_FEATURES: usize = 1_024;

/// Hidden widths of the network of a minimum's value.
const OFFSET_NETWORK: [usize; 2] = [64, 64];

/// Whether the value of the minimum is a function of the parameters.
pub(crate) fn has_offset_network(settings: &FitSettings) -> bool {
    settings.model == ModelKind::PlNet && !settings.params.is_empty() && !settings.constant_offset
}

/// A trained model, frozen, in the user's units.
#[derive(Clone, Debug)]
pub(crate) struct Fitted {
    pub model: Model,
    /// Number of trained parameters.
    pub parameters: usize,
    pub epochs: usize,
    pub stopped_early: bool,
    pub train_loss: f64,
    pub validation_loss: Option<f64>,
    pub warnings: Vec<String>,
    pub resumed_from: Option<usize>,
}

/// One training run: a recipe on rows.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub settings: &'a FitSettings,
    pub prepared: &'a Prepared,
    pub recipe: &'a Recipe,
    pub rows: &'a Rows,
    /// Weights of the rows.
    pub weights: Option<&'a [f64]>,
    /// Rows to watch, with their weights.
    pub watched: Option<(&'a Rows, Option<&'a [f64]>)>,
    /// Whether the model is that of the epoch that was best on the watched rows.
    pub keep_best: bool,
    /// Whether this is the only run: it shows its progress and writes its figures.
    pub alone: bool,
    /// Checkpoints.
    pub folder: Option<&'a Folder>,
}

impl OnDevice for Job<'_> {
    type Output = Result<Fitted>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Fitted> {
        train_model::<B>(&self, device)
    }
}

/// Trains and freezes.
pub(crate) fn train_model<B: AutodiffBackend>(job: &Job<'_>, device: &B::Device) -> Result<Fitted> {
    let Job {
        settings,
        prepared,
        recipe,
        ..
    } = *job;
    if recipe.untrained {
        return untrained(job);
    }
    Ok(match (settings.model, prepared.parameters.is_empty()) {
        (ModelKind::MonLip, _) => {
            let model = recipe.layer_config(settings).init::<B>(device)?;
            let trained = trained(model, job)?;
            store(
                settings.precision,
                &trained,
                |m| freeze_monlip::<_, f32>(m, prepared, recipe),
                |m| freeze_monlip::<_, f64>(m, prepared, recipe),
            )?
        }
        (ModelKind::BiLipNet, true) => {
            let model = recipe.net_config(settings).init::<B>(device)?;
            let trained = trained(model, job)?;
            store(
                settings.precision,
                &trained,
                |m| {
                    Ok(Network::BiLipNet(scaled::<f32>(
                        m.freeze()?,
                        prepared,
                        recipe,
                        false,
                    )?))
                },
                |m| {
                    Ok(Network::BiLipNet(scaled::<f64>(
                        m.freeze()?,
                        prepared,
                        recipe,
                        false,
                    )?))
                },
            )?
        }
        (ModelKind::PlNet, true) => {
            let net = recipe.net_config(settings).init::<B>(device)?;
            let model = match &recipe.minimum {
                None => PlNet::new(net),
                Some(x) => {
                    let x = prepared.x.apply(x);
                    let x = recipe.front.as_ref().map_or(x.clone(), |front| front.before(&x));
                    PlNet::with_minimizer(net, x)?
                }
            };
            let trained = trained(model, job)?;
            let minimum = recipe.minimum.as_deref();
            store(
                settings.precision,
                &trained,
                |m| freeze_plnet::<_, f32>(m, prepared, recipe, minimum),
                |m| freeze_plnet::<_, f64>(m, prepared, recipe, minimum),
            )?
        }
        (ModelKind::Classifier, _) => {
            let inputs = prepared.inputs.len();
            let config = GpConfig::new(width(settings, inputs), prepared.classes.len())
                .with_features(settings.features.unwrap_or(DEFAULT_FEATURES))
                .with_length_scale(settings.length_scale.unwrap_or((inputs as f64 / 2.0).sqrt()))
                .with_orthogonal(true)
                .with_seed(settings.seed);
            let net = recipe.net_config(settings).init::<B>(device)?;
            let model = GpNet::new(net, config.init::<B>(device)?);
            let trained = trained(model, job)?;
            store(
                settings.precision,
                &trained,
                |m| freeze_classifier::<_, f32>(m, prepared),
                |m| freeze_classifier::<_, f64>(m, prepared),
            )?
        }
        (kind, false) => {
            let config = PartialConfig::new(
                recipe.net_config(settings),
                prepared.parameters.len(),
                vec![64, 128],
                vec![64, 128],
            );
            let net = config.init::<B>(device)?;
            if kind == ModelKind::PlNet {
                let model = PartialPlNet::new(net);
                match has_offset_network(settings) {
                    true => {
                        let model = model.with_offset_network(&OFFSET_NETWORK, recipe.seed)?;
                        let trained = trained(model, job)?;
                        store(
                            settings.precision,
                            &trained,
                            |m| freeze_partial_plnet::<f32>(&m.freeze()?, prepared, recipe),
                            |m| freeze_partial_plnet::<f64>(&m.freeze()?, prepared, recipe),
                        )?
                    }
                    false => {
                        let trained = trained(model, job)?;
                        store(
                            settings.precision,
                            &trained,
                            |m| freeze_partial_plnet::<f32>(&m.freeze()?, prepared, recipe),
                            |m| freeze_partial_plnet::<f64>(&m.freeze()?, prepared, recipe),
                        )?
                    }
                }
            } else {
                let trained = trained(net, job)?;
                store(
                    settings.precision,
                    &trained,
                    |m| {
                        let net = partial::<f32>(&m.freeze()?, prepared, recipe, false)?;
                        Ok(Network::PartialBiLipNet(net))
                    },
                    |m| {
                        let net = partial::<f64>(&m.freeze()?, prepared, recipe, false)?;
                        Ok(Network::PartialBiLipNet(net))
                    },
                )?
            }
        }
    })
}

fn trained<B, M>(model: M, job: &Job<'_>) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
{
    let Job {
        settings,
        prepared,
        recipe,
        folder,
        ..
    } = *job;
    let config = TrainConfig {
        epochs: recipe.epochs,
        batch: recipe.batch,
        schedule: Schedule::one_cycle(recipe.lr, (0.25, 0.7, 10.0, 100.0)),
        optimizer: match settings.optimizer {
            Optimizer::Adam => OptimizerKind::Adam(Adam {
                decay: settings.decay,
                ..Adam::default()
            }),
            Optimizer::Sgd => OptimizerKind::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
        },
        seed: recipe.seed,
        patience: settings.patience,
        keep_best: job.keep_best,
        clip: settings.clip,
        checkpoints: folder.map(|folder| folder.path.clone()),
        checkpoint_every: (recipe.epochs / 50).clamp(1, 20),
        metrics: settings.metrics.clone().filter(|_| job.alone),
        progress: settings.progress && job.alone,
        loss: match settings.model {
            ModelKind::Classifier => Loss::CrossEntropy,
            _ => Loss::HalfMse,
        },
        ..Default::default()
    };
    if let Some(folder) = folder {
        folder.open(settings.resume)?;
    }
    let dataset = |rows: &Rows, weights: Option<&[f64]>| -> Result<Dataset> {
        let rows = prepared.dataset(rows, recipe)?;
        Ok(match weights {
            None => rows,
            Some(weights) => rows.with_weights(weights.to_vec())?,
        })
    };
    let watched = (job.watched.map(|(rows, weights)| dataset(rows, weights))).transpose()?;
    let rows = dataset(job.rows, job.weights)?;
    let trained = train::<B, M>(model, &rows, watched.as_ref(), &config);
    if let (Err(error), Some(folder)) = (&trained, folder) {
        // A run that diverged would do so again; one that the machine stopped can go on.
        if !matches!(
            error,
            bilip_burn::Error::Io { .. } | bilip_burn::Error::Checkpoint { .. }
        ) {
            folder.remove();
        }
    }
    Ok(trained?)
}

/// The model of a recipe that is its front alone.
fn untrained(job: &Job<'_>) -> Result<Fitted> {
    let Job {
        settings,
        prepared,
        recipe,
        ..
    } = *job;
    let potential = settings.model == ModelKind::PlNet;
    let model = match settings.precision {
        Precision::F32 => Model::from(linear_network::<f32>(prepared, recipe, potential)?),
        Precision::F64 => Model::from(linear_network::<f64>(prepared, recipe, potential)?),
    };
    Ok(Fitted {
        model,
        parameters: 0,
        epochs: 0,
        stopped_early: false,
        train_loss: f64::NAN,
        validation_loss: None,
        warnings: Vec::new(),
        resumed_from: None,
    })
}

fn store<M>(
    precision: Precision,
    trained: &Trained<M>,
    single: impl Fn(&M) -> Result<Network<f32>>,
    double: impl Fn(&M) -> Result<Network<f64>>,
) -> Result<Fitted> {
    let model = match precision {
        Precision::F32 => Model::from(single(&trained.model)?),
        Precision::F64 => Model::from(double(&trained.model)?),
    };
    let last = trained.history.last();
    Ok(Fitted {
        model,
        parameters: trained.parameters,
        epochs: trained.history.len(),
        stopped_early: trained.stopped_early,
        train_loss: last.map_or(f64::NAN, |e| e.train_loss),
        validation_loss: last.and_then(|e| e.validation_loss),
        warnings: trained.warnings.clone(),
        resumed_from: trained.resumed_from,
    })
}
