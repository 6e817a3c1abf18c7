//! A model file as the commands use it: any kind and precision, in and out in f64.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bilip::Model;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::table::{Table, Variables};
use crate::text;

pub struct Loaded {
    pub shown: String,
    pub model: Model,
}

/// A loaded model does what a model does.
impl std::ops::Deref for Loaded {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Loaded {
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let model = Model::load(path).with_context(|| shown.clone())?;
        Ok(Loaded { shown, model })
    }

    /// As [`read`](Self::read), with the claimed bounds proved: what is computed with them is then proved as well.
    ///
    /// `None`, with a message, when they cannot be.
    pub fn read_proved(path: &Path) -> Result<Option<Self>> {
        let shown = path.display().to_string();
        match Model::load_verified(path) {
            Ok(model) => Ok(Some(Loaded { shown, model })),
            Err(error @ (bilip::Error::NotCertifiable { .. } | bilip::Error::ClaimNotProved { .. })) => {
                eprintln!(
                    "{}: {error}; nothing was computed, see bilip certify",
                    text::shown(&shown)
                );
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| shown),
        }
    }

    /// The names of the classes, if the model has classes.
    pub fn class_names(&self) -> Option<Vec<String>> {
        let count = self.model.classes()?;
        Some(self.names("classes", count, "class ").names)
    }

    /// The column of classes that a classifier was fitted to, where it is known.
    pub fn class_column(&self) -> Option<String> {
        self.model.classes()?;
        let text = self.model.provenance.get("targets")?;
        serde_json::from_str::<Vec<String>>(text).ok()?.pop()
    }

    /// Refuses a scalar where a map is needed.
    pub fn need_map(&self) -> Result<()> {
        ensure!(
            self.model.classes().is_none(),
            "{}: a classifier has no inverse; bilip eval gives its probabilities",
            self.shown
        );
        ensure!(
            !self.model.is_potential(),
            "{}: a {} is a scalar and has no inverse; bilip minimize gives its minimum",
            self.shown,
            self.model.kind_name()
        );
        ensure!(
            self.model.is_invertible(),
            "{}: a {} has no inverse; bilip eval gives its outputs",
            self.shown,
            self.model.kind_name()
        );
        Ok(())
    }

    /// Refuses a map where a scalar is needed.
    pub fn need_potential(&self) -> Result<()> {
        ensure!(
            self.model.is_potential(),
            "{}: a {} is not a scalar and has no minimum; fit one with --model plnet",
            self.shown,
            self.model.kind_name()
        );
        Ok(())
    }

    fn names(&self, key: &str, count: usize, prefix: &str) -> Variables {
        let stored = self
            .model
            .provenance
            .get(key)
            .and_then(|text| serde_json::from_str::<Vec<String>>(text).ok())
            .filter(|names| names.len() == count)
            // Names that are there twice name nothing.
            .filter(|names| (1..count).all(|k| !names[..k].contains(&names[k])));
        Variables {
            unnamed: stored.is_none(),
            names: stored.unwrap_or_else(|| (1..=count).map(|k| format!("{prefix}{k}")).collect()),
        }
    }

    /// x.
    pub fn input_variables(&self) -> Variables {
        self.names("inputs", self.model.dim(), "x")
    }

    /// The names of x.
    pub fn inputs(&self) -> Vec<String> {
        self.input_variables().names
    }

    /// The names of p.
    pub fn parameter_names(&self) -> Vec<String> {
        self.names("parameters", self.model.parameters(), "p").names
    }

    /// The names of what comes out.
    pub fn targets(&self) -> Vec<String> {
        self.target_variables().names
    }

    /// What comes out.
    pub fn target_variables(&self) -> Variables {
        if let Some(classes) = self.class_names() {
            // A probability for each class, and how even they are.
            let names = classes.iter().map(|c| format!("p({c})"));
            return Variables {
                names: names.chain(["uncertainty".to_string()]).collect(),
                unnamed: false,
            };
        }
        if self.model.is_potential() {
            self.names("targets", 1, "f")
        } else {
            self.names("targets", self.model.outputs(), "y")
        }
    }

    /// The ranges of the data it was fitted to, where they are known.
    pub fn ranges(&self) -> Option<Vec<(f64, f64)>> {
        let text = self.model.provenance.get("input_ranges")?;
        serde_json::from_str::<Vec<(f64, f64)>>(text)
            .ok()
            .filter(|r| r.len() == self.model.dim() && r.iter().all(|(a, b)| a < b && (b - a).is_finite()))
    }

    /// The rows of p that `--at` gives: as many as there are, or those of the table itself where it has them.
    pub fn parameters_at(&self, at: Option<&str>, table: Option<&Table>) -> Result<Vec<f64>> {
        let count = self.model.parameters();
        let variables = self.names("parameters", count, "p");
        let names = variables.names.clone();
        match (count, at) {
            (0, None) => Ok(Vec::new()),
            (0, Some(_)) => bail!(
                "{}: --at is for partial models; this is a {}",
                self.shown,
                self.model.kind_name()
            ),
            (_, Some(text)) => {
                let numbers: Option<Vec<f64>> = text.split(',').map(|v| v.trim().parse().ok()).collect();
                let values = match numbers {
                    Some(values) => {
                        ensure!(
                            values.len() == count,
                            "--at {text}: {} numbers, but the model has {count} parameters ({})",
                            values.len(),
                            text::list(&names)
                        );
                        values
                    }
                    None => {
                        let table = Table::read(Path::new(text)).context("--at")?;
                        table.matching(&variables)?.with_context(|| {
                            format!(
                                "--at {text}: {} columns, but the model has {count} parameters ({})",
                                table.columns(),
                                text::list(&names)
                            )
                        })?
                    }
                };
                ensure!(
                    values.iter().all(|v| v.is_finite()),
                    "--at {text}: not a finite number"
                );
                Ok(values)
            }
            (_, None) => table
                .filter(|t| names.iter().all(|n| (0..t.columns()).any(|k| t.name(k) == *n)))
                .and_then(|t| t.matching(&variables).transpose())
                .transpose()?
                .with_context(|| {
                    format!(
                        "{}: a {} needs its parameters ({}): give them with --at",
                        self.shown,
                        self.model.kind_name(),
                        text::list(&names)
                    )
                }),
        }
    }
}

/// The numbers of a stored tensor, or `None` when they are neither f32 nor f64.
pub fn numbers(view: &TensorView<'_>) -> Option<Vec<f64>> {
    let data = view.data();
    Some(match view.dtype() {
        Dtype::F32 => (data.as_chunks::<4>().0.iter())
            .map(|b| f64::from(f32::from_le_bytes(*b)))
            .collect(),
        Dtype::F64 => (data.as_chunks::<8>().0.iter())
            .map(|b| f64::from_le_bytes(*b))
            .collect(),
        _ => return None,
    })
}
