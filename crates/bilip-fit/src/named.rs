//! A model with the names of its variables.

use std::collections::BTreeMap;
use std::path::Path;

use bilip::Model;

use crate::answer::{self, Answer};
use crate::error::Result;
use crate::interval::{KEY, UnseenErrors};
use crate::table::Variables;

/// A model and what its file says of the data that it was fitted to: names of columns and classes,
/// ranges.
///
/// It does what a [`Model`] does.
#[derive(Clone, Debug)]
pub struct NamedModel {
    /// Where it came from, for messages.
    pub source: String,
    /// The model.
    pub model: Model,
}

impl std::ops::Deref for NamedModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl NamedModel {
    /// Reads a model file.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Ok(NamedModel {
            model: Model::load(path)?,
            source: path.display().to_string(),
        })
    }

    /// Reads a model file and proves the bounds that it claims.
    ///
    /// # Errors
    /// As [`Model::load_verified`].
    pub fn load_verified(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Ok(NamedModel {
            model: Model::load_verified(path)?,
            source: path.display().to_string(),
        })
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

    /// The stored names of variables, or numbered ones.
    pub fn names(&self, key: &str, count: usize, prefix: &str) -> Variables {
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
            categories: self.categories(),
        }
    }

    /// The columns of words that it was fitted to, with their categories; the first of each has no
    /// variable.
    fn categories(&self) -> BTreeMap<String, Vec<String>> {
        let stored = self.model.provenance.get("categories");
        stored
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
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
                ..Variables::default()
            };
        }
        if self.model.is_potential() {
            self.names("targets", 1, "f")
        } else {
            self.names("targets", self.model.outputs(), "y")
        }
    }

    /// What its minimum was worth when it was fitted, where that is known. Measured then, and taken
    /// from the file as it is.
    pub fn answer(&self) -> Option<Answer> {
        serde_json::from_str(self.model.provenance.get(answer::KEY)?).ok()
    }

    /// How far off the model was on rows that it had not seen, where that is known.
    pub fn unseen_errors(&self) -> Option<UnseenErrors> {
        serde_json::from_str(self.model.provenance.get(KEY)?).ok()
    }

    /// The ranges of the data it was fitted to, where they are known.
    pub fn ranges(&self) -> Option<Vec<(f64, f64)>> {
        let text = self.model.provenance.get("input_ranges")?;
        serde_json::from_str::<Vec<(f64, f64)>>(text)
            .ok()
            .filter(|r| r.len() == self.model.dim() && r.iter().all(|(a, b)| a < b && (b - a).is_finite()))
    }
}
