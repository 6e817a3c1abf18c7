//! A model file as the commands use it.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bilip_fit::{Error, NamedModel, Table};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::{table, text};

pub fn read(path: &Path) -> Result<NamedModel> {
    NamedModel::load(path).with_context(|| path.display().to_string())
}

/// As [`read`], with the claimed bounds proved: what is computed with them is then proved as well.
///
/// `None`, with a message, when they cannot be.
pub fn read_proved(path: &Path) -> Result<Option<NamedModel>> {
    use bilip::Error::{ClaimNotProved, NotCertifiable};
    match NamedModel::load_verified(path) {
        Ok(model) => Ok(Some(model)),
        Err(Error::Network(error @ (NotCertifiable { .. } | ClaimNotProved { .. }))) => {
            let shown = text::shown(&path.display().to_string());
            eprintln!("{shown}: {error}; nothing was computed, see bilip certify");
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// What commands ask of a model.
pub trait Asked {
    /// Refuses a scalar where a map is needed.
    fn need_map(&self) -> Result<()>;

    /// Refuses a map where a scalar is needed.
    fn need_potential(&self) -> Result<()>;

    /// The rows of p that `--at` gives: as many as there are, or those of the table itself where it
    /// has them.
    fn parameters_at(&self, at: Option<&str>, table: Option<&Table>) -> Result<Vec<f64>>;
}

impl Asked for NamedModel {
    fn need_map(&self) -> Result<()> {
        ensure!(
            self.model.classes().is_none(),
            "{}: a classifier has no inverse; bilip eval gives its probabilities",
            self.source
        );
        ensure!(
            !self.model.is_potential(),
            "{}: a {} is a scalar and has no inverse; bilip minimize gives its minimum",
            self.source,
            self.model.kind_name()
        );
        ensure!(
            self.model.is_invertible(),
            "{}: a {} has no inverse; bilip eval gives its outputs",
            self.source,
            self.model.kind_name()
        );
        Ok(())
    }

    fn need_potential(&self) -> Result<()> {
        ensure!(
            self.model.is_potential(),
            "{}: a {} is not a scalar and has no minimum; fit one with --model plnet",
            self.source,
            self.model.kind_name()
        );
        Ok(())
    }

    fn parameters_at(&self, at: Option<&str>, table: Option<&Table>) -> Result<Vec<f64>> {
        let count = self.model.parameters();
        let variables = self.names("parameters", count, "p");
        let names = variables.names.clone();
        match (count, at) {
            (0, None) => Ok(Vec::new()),
            (0, Some(_)) => bail!(
                "{}: --at is for partial models; this is a {}",
                self.source,
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
                    // Categories by their names.
                    None if variables.columns() != names && !Path::new(text).exists() => {
                        let cells: Vec<&str> = text.split(',').collect();
                        let row = variables.row(&cells).with_context(|| format!("--at {text}"))?;
                        row.with_context(|| {
                            format!(
                                "--at {text}: {} cells, but the model has {} parameters ({})",
                                cells.len(),
                                variables.columns().len(),
                                text::list(&variables.columns())
                            )
                        })?
                    }
                    None => {
                        let table = table::read(Path::new(text)).context("--at")?;
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
                .filter(|t| t.has(&variables))
                .and_then(|t| t.matching(&variables).transpose())
                .transpose()?
                .with_context(|| {
                    format!(
                        "{}: a {} needs its parameters ({}): give them with --at",
                        self.source,
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
