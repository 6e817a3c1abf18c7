//! From a table and the settings to rows in standardized variables and the settings of networks.

use std::collections::BTreeMap;

use bilip::{Bounds, Rng};
use bilip_burn::{BoundsMode, Columns, Dataset, shuffled};

use crate::columns::choose;
use crate::error::{Error, Result, ensure};
use crate::orientation::{Growth, growth, is_reversed};
use crate::recipe::{DEFAULT_BLOCKS, Recipe};
use crate::settings::{FitSettings, ModelKind};
use crate::standard::Standard;
use crate::table::Table;

/// Fewer rows than this are no data to fit.
const FEWEST_ROWS: usize = 10;

/// Networks larger than this would not fit into memory while they are trained.
const MOST_PARAMETERS: f64 = 2e8;

/// The distortion when nothing is said of the bounds.
const DEFAULT_DISTORTION: f64 = 100.0;

/// How much a classifier's features may shrink and stretch distances when nothing is said of it.
const CLASSIFIER_BOUNDS: (f64, f64) = (0.5, 2.0);

/// The least width of a classifier that nothing is said of.
const LEAST_WIDTH: usize = 8;

/// What the table gives, in standardized variables.
pub(crate) struct Prepared {
    pub inputs: Vec<String>,
    pub parameters: Vec<String>,
    pub targets: Vec<String>,
    pub x: Standard,
    pub p: Standard,
    pub y: Standard,
    /// Whether the first target is fitted with its sign changed.
    pub reversed: bool,
    /// Whether all are, for a monotone layer that decreases.
    pub negated: bool,
    /// What speaks against the kind of model.
    pub doubts: Vec<String>,
    pub bounds: BoundsMode,
    pub ranges: Vec<(f64, f64)>,
    /// The names of the classes, for a classifier.
    pub classes: Vec<String>,
    /// The categories of columns of words, the first of each without a variable.
    pub categories: BTreeMap<String, Vec<String>>,
    /// What the user should know of the columns.
    pub warnings: Vec<String>,
    /// Rows to fit and rows held out, in the user's units and in random order.
    pub kept: Rows,
    pub held_out: Rows,
}

/// Rows of x, p and y, row-major.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub x: Vec<f64>,
    pub p: Vec<f64>,
    pub y: Vec<f64>,
    /// Weights, where there are any.
    pub weights: Option<Vec<f64>>,
    pub count: usize,
}

impl Rows {
    /// These rows, and others after them.
    pub fn with(mut self, others: &Rows) -> Rows {
        self.x.extend(&others.x);
        self.p.extend(&others.p);
        self.y.extend(&others.y);
        if let (Some(weights), Some(more)) = (&mut self.weights, &others.weights) {
            weights.extend(more);
        }
        self.count += others.count;
        self
    }

    /// Some of the rows, in the order given.
    pub fn select(&self, rows: &[usize]) -> Rows {
        let pick = |values: &[f64]| -> Vec<f64> {
            let columns = values.len() / self.count.max(1);
            rows.iter()
                .flat_map(|r| &values[r * columns..(r + 1) * columns])
                .copied()
                .collect()
        };
        Rows {
            x: pick(&self.x),
            p: pick(&self.p),
            y: pick(&self.y),
            weights: self.weights.as_ref().map(|w| pick(w)),
            count: rows.len(),
        }
    }
}

impl Prepared {
    /// Rows as the network of a recipe sees them: standardized, behind the recipe's front.
    pub fn dataset(&self, rows: &Rows, recipe: &Recipe) -> Result<Dataset> {
        let columns = Columns {
            inputs: recipe.width,
            parameters: self.parameters.len(),
            targets: self.targets.len(),
        };
        let (mut x, mut y) = (self.x.apply(&rows.x), self.y.apply(&rows.y));
        if let Some(front) = &recipe.front {
            (x, y) = (front.before(&x), front.targets(&y));
        }
        if recipe.negated {
            y.iter_mut().for_each(|v| *v = -*v);
        }
        if recipe.reversed {
            y.iter_mut().step_by(columns.targets).for_each(|v| *v = -*v);
        }
        y.iter_mut().for_each(|v| *v -= recipe.level);
        let x = padded(&x, self.inputs.len(), recipe.width);
        Ok(Dataset::with_parameters(columns, x, self.p.apply(&rows.p), y)?)
    }
}

pub(crate) fn check_parameters(settings: &FitSettings, recipe: &Recipe) -> Result<()> {
    let (hidden, n) = (&recipe.hidden, recipe.width);
    let width = |k: usize| hidden[k] as f64;
    let block: f64 = (0..hidden.len())
        .map(|k| width(k) * (n as f64 + width(k) + if k == 0 { 0.0 } else { width(k - 1) }))
        .sum();
    let blocks = recipe.blocks as f64;
    let orthogonal = (blocks + 1.0) * n as f64 * settings.householder.map_or(n as f64, |count| count as f64);
    // The bias networks of partial models end in all hidden units.
    let hidden: f64 = hidden.iter().map(|w| *w as f64).sum();
    let biases = match settings.params.is_empty() {
        true => 0.0,
        false => blocks * 128.0 * hidden,
    };
    let total = blocks * block + orthogonal + biases;
    if total > MOST_PARAMETERS {
        return Err(Error::setting(
            "hidden",
            format!(
                "with blocks and householder, a network of {total:.1e} parameters; the limit is {MOST_PARAMETERS:e}"
            ),
        ));
    }
    Ok(())
}

pub(crate) fn prepare(settings: &FitSettings, table: &Table) -> Result<Prepared> {
    let classifier = settings.model == ModelKind::Classifier;
    let chosen = choose(settings, table, classifier)?;
    let table = &*chosen.table;
    let (inputs, parameters, targets) = (chosen.inputs, chosen.parameters, chosen.targets);
    ensure!(
        !inputs.is_empty(),
        "no columns are left for the inputs; the table has {}",
        table.columns()
    );
    match settings.model {
        ModelKind::PlNet | ModelKind::Classifier if targets.len() != 1 => {
            let kind = if classifier { "classifier" } else { "plnet" };
            return Err(Error::setting(
                "target",
                format!("a {kind} has one target, not {}", targets.len()),
            ));
        }
        ModelKind::BiLipNet | ModelKind::MonLip if targets.len() != inputs.len() => {
            return Err(Error::setting(
                "target",
                format!(
                    "{} targets for {} inputs; this model needs as many of the one as of the other{}",
                    targets.len(),
                    inputs.len(),
                    match &chosen.warnings[..] {
                        [] => String::new(),
                        notes => format!(" ({})", notes.join("; ")),
                    }
                ),
            ));
        }
        _ => {}
    }
    if let Some(x) = &settings.minimum
        && !(x.len() == inputs.len() && x.iter().all(|v| v.is_finite()))
    {
        return Err(Error::setting(
            "minimum",
            format!("{} numbers are needed, one for each input", inputs.len()),
        ));
    }
    ensure!(
        table.rows() >= FEWEST_ROWS,
        "{} rows are too few to fit anything; at least {FEWEST_ROWS} are needed",
        table.rows()
    );
    let names = |columns: &[usize]| columns.iter().map(|k| table.name(*k)).collect::<Vec<_>>();
    let (input_names, parameter_names, target_names) = (names(&inputs), names(&parameters), names(&targets));
    let (y, classes) = match classifier {
        true => table.classes(targets[0])?,
        false => {
            let y = table.select(&targets).map_err(|e| match e {
                Error::Data(reason) => {
                    Error::setting("target", format!("{reason} (classes are for classifiers)"))
                }
                other => other,
            });
            (y?, Vec::new())
        }
    };
    if classifier {
        check_classes(settings, &target_names[0], &classes, table.rows(), inputs.len())?;
    }
    let (x, p) = (table.select(&inputs)?, table.select(&parameters)?);

    // Scales and bounds.
    let given = settings.mu.is_some() || settings.nu.is_some();
    let in_user_units = settings.in_units;
    let potential = settings.model == ModelKind::PlNet;
    let (mut standard_x, mut standard_y) = if settings.no_standardize {
        (
            Standard::identity(inputs.len()),
            Standard::identity(targets.len()),
        )
    } else {
        (
            Standard::of(&x, &input_names, "input")?,
            match classifier {
                true => Standard::identity(1),
                false => Standard::of(&y, &target_names, "target")?,
            },
        )
    };
    // Bounds in the user's units and monotone layers need one factor for all columns.
    if in_user_units || settings.model == ModelKind::MonLip {
        standard_x = standard_x.uniform();
        standard_y = standard_y.uniform();
    }
    if potential {
        standard_y = standard_y.powers_of_four();
    }
    let standard_p = if settings.no_standardize || parameters.is_empty() {
        Standard::identity(parameters.len())
    } else {
        Standard::of(&p, &parameter_names, "parameter")?
    };
    let bounds = match (given, settings.tau) {
        (false, None) if classifier => {
            BoundsMode::Fixed(Bounds::new(CLASSIFIER_BOUNDS.0, CLASSIFIER_BOUNDS.1)?)
        }
        (false, tau) => BoundsMode::Distortion(tau.unwrap_or(DEFAULT_DISTORTION)),
        (true, tau) => {
            let asked = Bounds::from_parts(settings.mu, settings.nu, tau)
                .map_err(|e| Error::setting("mu, nu, tau", e.to_string()))?;
            if asked.gap() <= 0.0 {
                let reason = format!("must be larger than mu = {}", asked.mu());
                return Err(Error::value("nu", asked.nu(), reason));
            }
            let out = if potential {
                standard_y.scale[0].sqrt()
            } else {
                standard_y.scale[0]
            };
            let factor = match in_user_units {
                true => standard_x.scale[0] / out,
                // The bounds asked for are those of the standardized variables.
                false => 1.0,
            };
            BoundsMode::Fixed(Bounds::new(asked.mu() * factor, asked.nu() * factor)?)
        }
    };

    // Rows held out.
    let order = shuffled(table.rows(), &mut Rng::new(settings.seed ^ 0x5eed));
    let held_out = (settings.validation * table.rows() as f64).round() as usize;
    let (held_out, kept) = order.split_at(held_out.min(table.rows() - 1));
    let all = Rows {
        count: table.rows(),
        x,
        p,
        y,
        weights: chosen.weights,
    };
    let (kept, held_out) = (all.select(kept), all.select(held_out));
    // What training can change of a network leaves its orientation as it is, so a map of the other
    // one is fitted with one target negated.
    let reversed = settings.model == ModelKind::BiLipNet && {
        let (x, p, y) = (
            standard_x.apply(&kept.x),
            standard_p.apply(&kept.p),
            standard_y.apply(&kept.y),
        );
        let layers = settings.blocks.unwrap_or(DEFAULT_BLOCKS) + 1;
        // A Cayley transform is a rotation, each Householder reflection is none.
        let reflections = layers * settings.householder.unwrap_or(0);
        is_reversed(&x, &p, &y, inputs.len()) == reflections.is_multiple_of(2)
    };
    let (mut negated, mut doubts) = (false, Vec::new());
    if settings.model == ModelKind::MonLip {
        let (x, y) = (standard_x.apply(&kept.x), standard_y.apply(&kept.y));
        match growth(&x, &y, inputs.len()) {
            Growth::Increasing => {}
            Growth::Decreasing => negated = true,
            Growth::Neither => doubts.push(
                "the map is not monotone: the linear map that fits it best grows in some directions and shrinks in others; fit it with --model bilipnet".into(),
            ),
        }
    }
    let ranges = (0..inputs.len())
        .map(|k| {
            all.x
                .iter()
                .skip(k)
                .step_by(inputs.len())
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
                    (a.min(*v), b.max(*v))
                })
        })
        .collect();
    Ok(Prepared {
        inputs: input_names,
        parameters: parameter_names,
        targets: target_names,
        x: standard_x,
        p: standard_p,
        y: standard_y,
        reversed,
        negated,
        doubts,
        bounds,
        ranges,
        classes,
        categories: chosen.categories,
        warnings: chosen.warnings,
        kept,
        held_out,
    })
}

/// Refuses a column that is not one of classes, before any work is done.
fn check_classes(
    settings: &FitSettings,
    name: &str,
    classes: &[String],
    rows: usize,
    inputs: usize,
) -> Result<()> {
    if classes.len() < 2 {
        let reason = format!(
            "all rows of {name} are of one class ({}); there is nothing to tell apart",
            classes[0]
        );
        return Err(Error::setting("target", reason));
    }
    // More rows of each class than one on average, or it is a column of measurements.
    if classes.len() > 1_000 || 2 * classes.len() > rows {
        let reason = format!(
            "{name} has {} different values in {rows} rows, too many for classes",
            classes.len()
        );
        return Err(Error::setting("target", reason));
    }
    if let Some(width) = settings.width.filter(|w| *w < inputs) {
        let reason = format!("the feature map cannot be narrower than the {inputs} inputs");
        return Err(Error::value("width", width, reason));
    }
    Ok(())
}

/// Dimension of the network: that of the inputs, except for classifiers, whose feature map may have
/// room to unfold.
pub(crate) fn width(settings: &FitSettings, inputs: usize) -> usize {
    match settings.model {
        ModelKind::Classifier => settings.width.unwrap_or(inputs.max(LEAST_WIDTH)),
        _ => inputs,
    }
}

/// Rows with zeros after them.
pub(crate) fn padded(x: &[f64], columns: usize, width: usize) -> Vec<f64> {
    x.chunks_exact(columns)
        .flat_map(|row| {
            row.iter()
                .copied()
                .chain(std::iter::repeat_n(0.0, width - columns))
        })
        .collect()
}
