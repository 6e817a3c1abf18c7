//! From a table to a certified model.

use std::path::Path;

use crate::answer::{self, Answer};
use crate::error::Result;
use crate::folder::Folder;
use crate::interval::{self, UnseenErrors};
use crate::memory::Memory;
use crate::named::NamedModel;
use crate::prepare::{Prepared, check_parameters, prepare};
use crate::quality::{Quality, quality};
use crate::recipe::Recipe;
use crate::search::{Candidate, FOLDS, Search, Trial};
use crate::settings::FitSettings;
use crate::table::Table;
use crate::work::{Fitted, Job, has_offset_network};

/// Fewer rows are not split into parts to choose settings by.
const FEWEST_TO_SEARCH: usize = 20;

/// With fewer rows held out, intervals also stand on rows that training only watched.
const ENOUGH_UNSEEN: usize = 100;

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
    /// What the minimum is worth, for a search that has one.
    pub answer: Option<Answer>,
    /// What speaks against the result, in words: against the kind of model, or against its minimum.
    pub doubts: Vec<String>,
    /// The settings that a search has chosen.
    pub chosen: Option<Candidate>,
    /// Everything that the search tried, round by round, the best first.
    pub trials: Vec<Trial>,
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
    /// As [`Model::save`](bilip::Model::save).
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
///     hidden: Some(vec![16, 16]),
///     epochs: Some(30),
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
    let mut prepared = prepare(settings, table)?;
    let recipe = Recipe::plain(settings, &prepared);
    let plain = settings.is_plain() || prepared.kept.count < FEWEST_TO_SEARCH;
    if plain && !settings.is_plain() {
        prepared.warnings.push(format!(
            "{} rows to fit are too few to search for settings: one plain fit",
            prepared.kept.count
        ));
    }
    check_parameters(settings, &recipe)?;
    let folder = (settings.checkpoints.as_ref()).map(|(path, print)| {
        let search = match plain {
            true => String::new(),
            false => format!(", search with a budget of {}", settings.budget),
        };
        Folder::new(
            path,
            &format!("{print}{search}"),
            table,
            prepared.reversed,
            has_offset_network(settings),
        )
    });
    let nothing_to_resume = settings.resume && folder.as_ref().is_none_or(|f| !f.path.exists());
    let mut unseen = prepared.held_out.clone();
    let (mut answer, mut settings_chosen, mut trials) = (None, None, Vec::new());
    let mut fitted = match plain {
        true => settings.device.run(Job {
            settings,
            prepared: &prepared,
            recipe: &recipe,
            rows: &prepared.kept,
            weights: prepared.kept.weights.as_deref(),
            watched: Some((&prepared.held_out, prepared.held_out.weights.as_deref()))
                .filter(|(rows, _)| rows.count > 0),
            keep_best: false,
            alone: true,
            folder: folder.as_ref(),
        })??,
        false => {
            let memory = Memory::new(folder.as_ref(), settings.resume)?;
            let found = settings.device.run(Search {
                settings,
                prepared: &prepared,
                memory: &memory,
            })??;
            let judged = answer::answer(&found, &prepared)?;
            let best = (found.members.iter().enumerate())
                .min_by(|a, b| a.1.score.total_cmp(&b.1.score))
                .map_or(0, |(k, _)| k);
            let (chosen, worth) = judged.map_or((best, None), |(chosen, answer)| (chosen, Some(answer)));
            answer = worth;
            (settings_chosen, trials) = (Some(found.chosen), found.trials);
            let mut members = found.members;
            let member = members.swap_remove(chosen);
            if let Some(part) = member.part.filter(|_| unseen.count < ENOUGH_UNSEEN) {
                // The part that this member was only watched on, for want of more rows.
                let part: Vec<usize> = (0..prepared.kept.count).filter(|r| r % FOLDS == part).collect();
                unseen = unseen.with(&prepared.kept.select(&part));
            }
            member.fitted
        }
    };
    let source = Path::new(table.source());
    let data = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy();
    remember(&mut fitted, settings, &prepared, &data);
    if let Some(text) = answer.as_ref().and_then(|a| serde_json::to_string(a).ok()) {
        fitted.model.provenance.insert(answer::KEY.into(), text);
    }
    let mut warnings = std::mem::take(&mut prepared.warnings);
    warnings.extend(fitted.warnings);
    if nothing_to_resume {
        warnings.push("nothing to resume: there are no checkpoints; started from the beginning".into());
    }
    let mut model = NamedModel {
        source: "fitted model".into(),
        model: fitted.model,
    };
    if let Some(errors) = UnseenErrors::of(&model, &unseen)? {
        let text = serde_json::json!(errors).to_string();
        model.model.provenance.insert(interval::KEY.into(), text);
    }
    Ok(Fit {
        training: quality(&model, &prepared.kept)?,
        validation: match prepared.held_out.count {
            0 => None,
            _ => Some(quality(&model, &prepared.held_out)?),
        },
        rows: (prepared.kept.count, prepared.held_out.count),
        model,
        parameters: fitted.parameters,
        classes: prepared.classes,
        warnings,
        resumed_from: fitted.resumed_from,
        doubts: (prepared.doubts.into_iter())
            .chain(answer.iter().flat_map(|a: &Answer| a.doubts.iter().cloned()))
            .collect(),
        answer,
        chosen: settings_chosen,
        trials,
        folder,
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
    if !prepared.categories.is_empty() {
        note("categories", serde_json::json!(prepared.categories).to_string());
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
