//! A model file as the commands use it: any kind and precision, in and out in f64.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bilip::{BiLipschitz, Inverse, InverseOptions, Minimum, Model, Network, Real, Stored};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::table::{Table, Variables};
use crate::text;

pub struct Loaded {
    pub shown: String,
    pub model: Model,
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

    /// Whether the weights are single precision.
    pub fn single(&self) -> bool {
        matches!(self.model.network, Stored::F32(_))
    }

    pub fn kind(&self) -> &'static str {
        match &self.model.network {
            Stored::F32(n) => n.kind_name(),
            Stored::F64(n) => n.kind_name(),
        }
    }

    pub fn n(&self) -> usize {
        self.model.dim()
    }

    /// Number of parameters p; zero unless the model is partial.
    pub fn parameters(&self) -> usize {
        fn of<T: Real>(network: &Network<T>) -> usize {
            match network {
                Network::PartialBiLipNet(g) => g.parameters(),
                Network::PartialPlNet(f) => f.net().parameters(),
                _ => 0,
            }
        }
        match &self.model.network {
            Stored::F32(n) => of(n),
            Stored::F64(n) => of(n),
        }
    }

    /// Whether the model is a scalar with a minimum.
    pub fn is_potential(&self) -> bool {
        fn of<T: Real>(network: &Network<T>) -> bool {
            matches!(network, Network::PlNet(_) | Network::PartialPlNet(_))
        }
        match &self.model.network {
            Stored::F32(n) => of(n),
            Stored::F64(n) => of(n),
        }
    }

    /// The distance to a minimum that makes sense: a hundred-millionth of the largest unit that inputs are divided by.
    pub fn natural_tolerance(&self) -> f64 {
        fn of<T: Real>(network: &Network<T>) -> f64 {
            let net = match network {
                Network::PlNet(f) => f.net(),
                Network::PartialPlNet(f) => f.net().net(),
                _ => return 1.0,
            };
            let scale = net.input().map_or(&[][..], |s| s.scale());
            scale.iter().map(|d| 1.0 / d.as_f64()).fold(1.0, f64::max)
        }
        1e-8 * match &self.model.network {
            Stored::F32(n) => of(n),
            Stored::F64(n) => of(n),
        }
    }

    /// The names of the classes, if the model has classes.
    pub fn classes(&self) -> Option<Vec<String>> {
        fn of<T: Real>(network: &Network<T>) -> Option<usize> {
            match network {
                Network::Classifier(c) => Some(c.classes()),
                _ => None,
            }
        }
        let count = match &self.model.network {
            Stored::F32(n) => of(n),
            Stored::F64(n) => of(n),
        };
        count.map(|count| self.names("classes", count, "class ").names)
    }

    /// The column of classes that a classifier was fitted to, where it is known.
    pub fn class_column(&self) -> Option<String> {
        self.classes()?;
        let text = self.model.provenance.get("targets")?;
        serde_json::from_str::<Vec<String>>(text).ok()?.pop()
    }

    /// Refuses a scalar where a map is needed.
    pub fn need_map(&self) -> Result<()> {
        ensure!(
            self.classes().is_none(),
            "{}: a classifier has no inverse; bilip eval gives its probabilities",
            self.shown
        );
        ensure!(
            !self.is_potential(),
            "{}: a {} is a scalar and has no inverse; bilip minimize gives its minimum",
            self.shown,
            self.kind()
        );
        Ok(())
    }

    /// Refuses a map where a scalar is needed.
    pub fn need_potential(&self) -> Result<()> {
        ensure!(
            self.is_potential(),
            "{}: a {} is not a scalar and has no minimum; fit one with --model plnet",
            self.shown,
            self.kind()
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
        self.names("inputs", self.n(), "x")
    }

    /// The names of x.
    pub fn inputs(&self) -> Vec<String> {
        self.input_variables().names
    }

    /// The names of p.
    pub fn parameter_names(&self) -> Vec<String> {
        self.names("parameters", self.parameters(), "p").names
    }

    /// The names of what comes out.
    pub fn targets(&self) -> Vec<String> {
        self.target_variables().names
    }

    /// What comes out.
    pub fn target_variables(&self) -> Variables {
        if let Some(classes) = self.classes() {
            // A probability for each class, and how even they are.
            let names = classes.iter().map(|c| format!("p({c})"));
            return Variables {
                names: names.chain(["uncertainty".to_string()]).collect(),
                unnamed: false,
            };
        }
        if self.is_potential() {
            self.names("targets", 1, "f")
        } else {
            self.names("targets", self.n(), "y")
        }
    }

    /// The ranges of the data it was fitted to, where they are known.
    pub fn ranges(&self) -> Option<Vec<(f64, f64)>> {
        let text = self.model.provenance.get("input_ranges")?;
        serde_json::from_str::<Vec<(f64, f64)>>(text)
            .ok()
            .filter(|r| r.len() == self.n() && r.iter().all(|(a, b)| a < b && (b - a).is_finite()))
    }

    /// Outputs of rows x with one row of p each.
    pub fn evaluate(&self, x: &[f64], p: &[f64]) -> Result<Vec<f64>> {
        fn of<T: Real>(network: &Network<T>, x: &[f64], p: &[f64]) -> bilip::Result<Vec<f64>> {
            let narrow = |v: &[f64]| v.iter().map(|v| T::round_from(*v)).collect::<Vec<T>>();
            let (x, p) = (narrow(x), narrow(p));
            let y = match network {
                Network::MonLip(l) => l.forward(&x)?,
                Network::BiLipNet(g) => g.forward(&x)?,
                Network::PlNet(f) => f.value(&x)?,
                Network::PartialBiLipNet(g) => g.forward(&x, &p)?,
                Network::PartialPlNet(f) => f.value(&x, &p)?,
                Network::Classifier(c) => {
                    let probabilities = c.probabilities(&x)?;
                    let uncertainty = bilip::metrics::uncertainty(&probabilities, c.classes())?;
                    let rows = probabilities.chunks_exact(c.classes()).zip(uncertainty);
                    return Ok(rows.flat_map(|(row, u)| row.iter().copied().chain([u])).collect());
                }
                _ => return Err(unknown()),
            };
            Ok(y.iter().map(|v| v.as_f64()).collect())
        }
        Ok(match &self.model.network {
            Stored::F32(n) => of(n, x, p),
            Stored::F64(n) => of(n, x, p),
        }?)
    }

    /// The x of rows y.
    pub fn inverse(&self, y: &[f64], p: &[f64], options: &InverseOptions) -> Result<Inverse> {
        fn of<T: Real>(
            network: &Network<T>,
            y: &[f64],
            p: &[f64],
            options: &InverseOptions,
        ) -> bilip::Result<Inverse> {
            match network {
                Network::MonLip(l) => l.inverse(y, options),
                Network::BiLipNet(g) => g.inverse(y, options),
                Network::PartialBiLipNet(g) => g.inverse(y, p, options),
                _ => Err(unknown()),
            }
        }
        Ok(match &self.model.network {
            Stored::F32(n) => of(n, y, p, options),
            Stored::F64(n) => of(n, y, p, options),
        }?)
    }

    /// The minimum, one for every row of p.
    pub fn minimize(&self, p: &[f64], options: &InverseOptions) -> Result<Vec<Minimum>> {
        fn of<T: Real>(
            network: &Network<T>,
            p: &[f64],
            options: &InverseOptions,
        ) -> bilip::Result<Vec<Minimum>> {
            match network {
                Network::PlNet(f) => Ok(vec![f.minimize(options)?]),
                Network::PartialPlNet(f) => f.minimize(p, options),
                _ => Err(unknown()),
            }
        }
        Ok(match &self.model.network {
            Stored::F32(n) => of(n, p, options),
            Stored::F64(n) => of(n, p, options),
        }?)
    }

    /// The rows of p that `--at` gives: as many as there are, or those of the table itself where it has them.
    pub fn parameters_at(&self, at: Option<&str>, table: Option<&Table>) -> Result<Vec<f64>> {
        let count = self.parameters();
        let variables = self.names("parameters", count, "p");
        let names = variables.names.clone();
        match (count, at) {
            (0, None) => Ok(Vec::new()),
            (0, Some(_)) => bail!(
                "{}: --at is for partial models; this is a {}",
                self.shown,
                self.kind()
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
                        self.kind(),
                        text::list(&names)
                    )
                }),
        }
    }
}

fn unknown() -> bilip::Error {
    bilip::Error::ModelFile {
        reason: "a kind of network that this program does not know".into(),
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
