//! From a table to a certified model.

use std::path::Path;

use bilip::{Model, Network, Precision};
use bilip_burn::{
    Adam, GpConfig, GpNet, Loss, OnDevice, OptimizerKind, PartialConfig, PartialPlNet, PlNet, Predict,
    Schedule, TrainConfig, Trained, train,
};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;

use crate::error::Result;
use crate::folder::Folder;
use crate::freeze::{freeze_classifier, freeze_monlip, freeze_partial_plnet, freeze_plnet, partial, scaled};
use crate::named::NamedModel;
use crate::prepare::{Prepared, check_parameters, layer_config, net_config, prepare, width};
use crate::quality::{Quality, quality};
use crate::settings::{FitSettings, ModelKind, Optimizer};
use crate::table::Table;

/// Random features of a classifier's process when nothing is said of them.
const DEFAULT_FEATURES: usize = 1_024;

/// What a fit has come to.
#[derive(Debug)]
pub struct Fit {
    /// The model, in the user's units.
    pub model: NamedModel,
    /// Number of trained parameters.
    pub parameters: usize,
    /// Rows that it was fitted to, and rows held out.
    pub rows: (usize, usize),
    /// The names of the classes, for a classifier.
    pub classes: Vec<String>,
    /// How good it is on the rows that it was fitted to.
    pub training: Quality,
    /// And on those held out, if there are any.
    pub validation: Option<Quality>,
    /// What the user should know of the run.
    pub warnings: Vec<String>,
    /// The epoch after which an interrupted run was continued.
    pub resumed_from: Option<usize>,
    folder: Option<Folder>,
}

impl Fit {
    /// Writes the model file, and removes the checkpoints: nothing is lost with them any more.
    ///
    /// # Errors
    /// As [`Model::save`].
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.model.model.save(path)?;
        self.model.source = path.display().to_string();
        if let Some(folder) = self.folder.take() {
            folder.remove();
        }
        Ok(())
    }
}

/// Fits a model to a table.
///
/// ```
/// use bilip::InverseOptions;
/// use bilip_fit::{FitSettings, ModelKind, Table, fit};
///
/// // Noise-free measurements of (a − 1)² + 2(b + 0.5)² + 3 on a grid.
/// let rows = (0..400).flat_map(|k| {
///     let (a, b) = ((k % 20) as f64 / 5.0 - 1.0, (k / 20) as f64 / 5.0 - 2.0);
///     [a, b, (a - 1.0).powi(2) + 2.0 * (b + 0.5).powi(2) + 3.0]
/// });
/// let names = ["a", "b", "cost"].map(String::from).to_vec();
/// let table = Table::new(Some(names), 3, rows.collect())?;
/// let settings = FitSettings {
///     hidden: vec![16, 16],
///     epochs: 30,
///     ..FitSettings::new(ModelKind::PlNet, &["cost"])
/// };
/// let fit = fit(&table, &settings)?;
/// assert!(fit.model.certificate().holds());
/// let minimum = fit.model.minimize(&[], &InverseOptions::default())?.remove(0);
/// assert!((minimum.x[0] - 1.0).abs() < 0.5 && (minimum.x[1] + 0.5).abs() < 0.5);
/// # Ok::<(), bilip_fit::Error>(())
/// ```
///
/// # Errors
/// On settings that do not fit the table or each other, on tables that cannot be fitted, and when
/// training diverges or the device is missing.
pub fn fit(table: &Table, settings: &FitSettings) -> Result<Fit> {
    settings.device.check()?;
    settings.check()?;
    let prepared = prepare(settings, table)?;
    check_parameters(settings, width(settings, prepared.inputs.len()))?;
    let folder = (settings.checkpoints.as_ref()).map(|(path, print)| {
        Folder::new(
            path,
            print,
            table,
            prepared.reversed,
            has_offset_network(settings),
        )
    });
    let nothing_to_resume = settings.resume && folder.as_ref().is_none_or(|f| !f.path.exists());
    let mut fitted = settings.device.run(Work {
        settings,
        prepared: &prepared,
        folder: folder.as_ref(),
    })??;
    let source = Path::new(table.source());
    let data = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy();
    remember(&mut fitted, settings, &prepared, &data);
    let mut warnings = fitted.warnings;
    if nothing_to_resume {
        warnings.push("nothing to resume: there are no checkpoints; started from the beginning".into());
    }
    let model = NamedModel {
        source: "fitted model".into(),
        model: fitted.model,
    };
    let [kept, held_out] = &prepared.raw;
    Ok(Fit {
        training: quality(&model, kept)?,
        validation: match prepared.validation {
            Some(_) => Some(quality(&model, held_out)?),
            None => None,
        },
        rows: (
            prepared.training.rows(),
            prepared.validation.as_ref().map_or(0, |t| t.rows()),
        ),
        model,
        parameters: fitted.parameters,
        classes: prepared.classes,
        warnings,
        resumed_from: fitted.resumed_from,
        folder,
    })
}

/// Hidden widths of the network of a minimum's value.
const OFFSET_NETWORK: [usize; 2] = [64, 64];

/// Whether the value of the minimum is a function of the parameters.
fn has_offset_network(settings: &FitSettings) -> bool {
    settings.model == ModelKind::PlNet && !settings.params.is_empty() && !settings.constant_offset
}

/// A trained model, frozen.
struct Fitted {
    model: Model,
    /// Number of trained parameters.
    parameters: usize,
    epochs: usize,
    stopped_early: bool,
    train_loss: f64,
    validation_loss: Option<f64>,
    warnings: Vec<String>,
    resumed_from: Option<usize>,
}

/// Training and freezing, on whichever device.
struct Work<'a> {
    settings: &'a FitSettings,
    prepared: &'a Prepared,
    folder: Option<&'a Folder>,
}

impl OnDevice for Work<'_> {
    type Output = Result<Fitted>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Fitted> {
        train_model::<B>(self.settings, self.prepared, self.folder, device)
    }
}

fn train_model<B: AutodiffBackend>(
    settings: &FitSettings,
    prepared: &Prepared,
    folder: Option<&Folder>,
    device: &B::Device,
) -> Result<Fitted> {
    Ok(match (settings.model, prepared.parameters.is_empty()) {
        (ModelKind::MonLip, _) => {
            let model = layer_config(settings, prepared).init::<B>(device)?;
            let trained = trained(model, settings, prepared, folder)?;
            store(
                settings.precision,
                &trained,
                |m| freeze_monlip::<_, f32>(m, prepared),
                |m| freeze_monlip::<_, f64>(m, prepared),
            )?
        }
        (ModelKind::BiLipNet, true) => {
            let model = net_config(settings, prepared).init::<B>(device)?;
            let trained = trained(model, settings, prepared, folder)?;
            store(
                settings.precision,
                &trained,
                |m| Ok(Network::BiLipNet(scaled::<f32>(m.freeze()?, prepared, false)?)),
                |m| Ok(Network::BiLipNet(scaled::<f64>(m.freeze()?, prepared, false)?)),
            )?
        }
        (ModelKind::PlNet, true) => {
            let net = net_config(settings, prepared).init::<B>(device)?;
            let model = match &settings.minimum {
                None => PlNet::new(net),
                Some(x) => PlNet::with_minimizer(net, prepared.x.apply(x))?,
            };
            let trained = trained(model, settings, prepared, folder)?;
            let minimum = settings.minimum.as_deref();
            store(
                settings.precision,
                &trained,
                |m| freeze_plnet::<_, f32>(m, prepared, minimum),
                |m| freeze_plnet::<_, f64>(m, prepared, minimum),
            )?
        }
        (ModelKind::Classifier, _) => {
            let inputs = prepared.inputs.len();
            let config = GpConfig::new(width(settings, inputs), prepared.classes.len())
                .with_features(settings.features.unwrap_or(DEFAULT_FEATURES))
                .with_length_scale(settings.length_scale.unwrap_or((inputs as f64 / 2.0).sqrt()))
                .with_orthogonal(true)
                .with_seed(settings.seed);
            let net = net_config(settings, prepared).init::<B>(device)?;
            let model = GpNet::new(net, config.init::<B>(device)?);
            let trained = trained(model, settings, prepared, folder)?;
            store(
                settings.precision,
                &trained,
                |m| freeze_classifier::<_, f32>(m, prepared),
                |m| freeze_classifier::<_, f64>(m, prepared),
            )?
        }
        (kind, false) => {
            let config = PartialConfig::new(
                net_config(settings, prepared),
                prepared.parameters.len(),
                vec![64, 128],
                vec![64, 128],
            );
            let net = config.init::<B>(device)?;
            if kind == ModelKind::PlNet && has_offset_network(settings) {
                let model = PartialPlNet::new(net).with_offset_network(&OFFSET_NETWORK, settings.seed)?;
                let trained = trained(model, settings, prepared, folder)?;
                store(
                    settings.precision,
                    &trained,
                    |m| freeze_partial_plnet::<f32>(&m.freeze()?, prepared),
                    |m| freeze_partial_plnet::<f64>(&m.freeze()?, prepared),
                )?
            } else if kind == ModelKind::PlNet {
                let trained = trained(PartialPlNet::new(net), settings, prepared, folder)?;
                store(
                    settings.precision,
                    &trained,
                    |m| freeze_partial_plnet::<f32>(&m.freeze()?, prepared),
                    |m| freeze_partial_plnet::<f64>(&m.freeze()?, prepared),
                )?
            } else {
                let trained = trained(net, settings, prepared, folder)?;
                store(
                    settings.precision,
                    &trained,
                    |m| {
                        let net = partial::<f32>(&m.freeze()?, prepared, false)?;
                        Ok(Network::PartialBiLipNet(net))
                    },
                    |m| {
                        let net = partial::<f64>(&m.freeze()?, prepared, false)?;
                        Ok(Network::PartialBiLipNet(net))
                    },
                )?
            }
        }
    })
}

fn trained<B, M>(
    model: M,
    settings: &FitSettings,
    prepared: &Prepared,
    folder: Option<&Folder>,
) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
{
    let config = TrainConfig {
        epochs: settings.epochs,
        batch: settings.batch,
        schedule: Schedule::one_cycle(settings.lr, (0.25, 0.7, 10.0, 100.0)),
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
        seed: settings.seed,
        patience: settings.patience,
        clip: settings.clip,
        checkpoints: folder.map(|folder| folder.path.clone()),
        checkpoint_every: (settings.epochs / 50).clamp(1, 20),
        metrics: settings.metrics.clone(),
        progress: settings.progress,
        loss: match settings.model {
            ModelKind::Classifier => Loss::CrossEntropy,
            _ => Loss::HalfMse,
        },
        ..Default::default()
    };
    if let Some(folder) = folder {
        folder.open(settings.resume)?;
    }
    let trained = train::<B, M>(model, &prepared.training, prepared.validation.as_ref(), &config);
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

/// Writes into the model where it came from.
fn remember(fitted: &mut Fitted, settings: &FitSettings, prepared: &Prepared, data: &str) {
    let mut note = |key: &str, value: String| fitted.model.provenance.insert(key.to_string(), value);
    let json = |names: &[String]| serde_json::json!(names).to_string();
    note("inputs", json(&prepared.inputs));
    note("targets", json(&prepared.targets));
    if !prepared.parameters.is_empty() {
        note("parameters", json(&prepared.parameters));
    }
    if !prepared.classes.is_empty() {
        note("classes", json(&prepared.classes));
    }
    note("input_ranges", serde_json::json!(prepared.ranges).to_string());
    note("data", data.to_string());
    note(
        "program",
        concat!("bilip ", env!("CARGO_PKG_VERSION")).to_string(),
    );
    note("seed", settings.seed.to_string());
    note("epochs", fitted.epochs.to_string());
    note("train_loss_standardized", format!("{:e}", fitted.train_loss));
    if let Some(loss) = fitted.validation_loss {
        note("validation_loss_standardized", format!("{loss:e}"));
    }
    if fitted.stopped_early {
        note("stopped_early", "true".into());
    }
}
