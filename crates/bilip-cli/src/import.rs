//! `import`: weights of the published JAX and PyTorch layers, made certified models.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bilip::faer::Mat;
use bilip::{
    Activation, BiLipNet, BiLipNetFree, Bounds, Mlp, Model, MonLip, MonLipFree, Network, Orthogonal,
    PartialBiLipNet, PartialPlNet, PlNet, Real, with_norm,
};
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::Outcome;
use crate::args::{self, Digits, Source};
use crate::model::numbers;
use crate::table::check_file;
use crate::text::print;

/// What has to be known besides the weights.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    kind: Option<String>,
    n: Option<usize>,
    p: Option<usize>,
    units: Option<Vec<usize>>,
    depth: Option<usize>,
    mu: Option<f64>,
    nu: Option<f64>,
    activation: Option<String>,
    /// Told by the files, not needed here.
    #[serde(rename = "potential")]
    _potential: Option<String>,
    #[serde(rename = "source")]
    _source: Option<String>,
    #[serde(rename = "orthogonal_bias_mlp")]
    _orthogonal_bias_mlp: Option<Vec<usize>>,
    #[serde(rename = "hidden_bias_mlp")]
    _hidden_bias_mlp: Option<Vec<usize>>,
}

impl Config {
    fn read(path: Option<&Path>, metadata: &HashMap<String, String>) -> Result<Self> {
        let written: Config = match path {
            None => Config::default(),
            Some(path) => {
                let shown = path.display().to_string();
                let text = std::fs::read_to_string(path).with_context(|| shown.clone())?;
                toml::from_str(&text).map_err(|e| {
                    let reason = e
                        .message()
                        .lines()
                        .next()
                        .unwrap_or("not a configuration")
                        .to_string();
                    anyhow::anyhow!("{shown}: {reason}")
                })?
            }
        };
        fn value<T: serde::de::DeserializeOwned>(metadata: &HashMap<String, String>, key: &str) -> Option<T> {
            serde_json::from_str(metadata.get(key)?).ok()
        }
        Ok(Config {
            kind: written.kind.or_else(|| value(metadata, "kind")),
            n: written.n.or_else(|| value(metadata, "n")),
            p: written.p.or_else(|| value(metadata, "p")),
            units: written.units.or_else(|| value(metadata, "units")),
            depth: written.depth.or_else(|| value(metadata, "depth")),
            mu: written.mu.or_else(|| value(metadata, "mu")),
            nu: written.nu.or_else(|| value(metadata, "nu")),
            activation: written.activation.or_else(|| value(metadata, "activation")),
            ..Config::default()
        })
    }

    fn bounds(&self) -> Result<Bounds> {
        let need =
            |v: Option<f64>, name: &str| v.with_context(|| format!("the configuration does not name {name}"));
        Ok(Bounds::new(need(self.mu, "mu")?, need(self.nu, "nu")?)?)
    }

    fn activation(&self) -> Result<Activation> {
        Ok(self.activation.as_deref().unwrap_or("relu").parse()?)
    }
}

/// The tensors of a file by name, in f64.
struct Weights {
    shown: String,
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Weights {
    /// Reads a file; prefixes that do not matter are taken off the names.
    fn read(path: &Path, prefixes: &[&str]) -> Result<(Self, HashMap<String, String>)> {
        let shown = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| shown.clone())?;
        let bad =
            |e: &dyn std::fmt::Display| anyhow::anyhow!("{shown}: not a complete safetensors file ({e})");
        let file = SafeTensors::deserialize(&bytes).map_err(|e| bad(&e))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| bad(&e))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        ensure!(
            !metadata.contains_key("bilip"),
            "{shown}: is a bilip model already; nothing to import"
        );
        let mut tensors = HashMap::new();
        for (name, view) in file.tensors() {
            let Some(values) = numbers(&view) else {
                bail!(
                    "{shown}: tensor {name} has type {:?}; only F32 and F64 are read",
                    view.dtype()
                );
            };
            ensure!(
                values.iter().all(|v| v.is_finite()),
                "{shown}: tensor {name} holds a number that is not finite"
            );
            let mut short = name.as_str();
            for prefix in prefixes {
                short = short.strip_prefix(prefix).unwrap_or(short);
            }
            tensors.insert(short.to_string(), (view.shape().to_vec(), values));
        }
        Ok((Weights { shown, tensors }, metadata))
    }

    fn get(&self, name: &str) -> Result<&(Vec<usize>, Vec<f64>)> {
        self.tensors.get(name).with_context(|| {
            format!(
                "{}: tensor {name} is missing; is --from, kind or depth right?",
                self.shown
            )
        })
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// How many of `prefix0`, `prefix1`, … there are.
    fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..).take_while(|k| self.has(&name(*k))).count()
    }

    fn vector(&self, name: &str, length: Option<usize>) -> Result<Vec<f64>> {
        let (_, values) = self.get(name)?;
        if let Some(length) = length {
            ensure!(
                values.len() == length,
                "{}: tensor {name} has {} numbers, expected {length}",
                self.shown,
                values.len()
            );
        }
        Ok(values.clone())
    }

    fn scalar(&self, name: &str) -> Result<f64> {
        Ok(self.vector(name, Some(1))?[0])
    }

    fn matrix(&self, name: &str) -> Result<Mat<f64>> {
        let (shape, values) = self.get(name)?;
        let [rows, columns] = shape[..] else {
            bail!(
                "{}: tensor {name} has shape {shape:?}, expected a matrix",
                self.shown
            );
        };
        Ok(Mat::from_fn(rows, columns, |i, j| values[i * columns + j]))
    }

    /// A free matrix brought to the norm of its gain.
    fn scaled(&self, name: &str, gain: &str) -> Result<Mat<f64>> {
        Ok(with_norm(self.matrix(name)?.as_ref(), self.scalar(gain)?))
    }
}

/// A monotone layer in either naming.
fn monotone(
    w: &Weights,
    prefix: &str,
    from: Source,
    bounds: Bounds,
    activation: Activation,
    biased: bool,
) -> Result<MonLipFree> {
    let at = |name: &str| format!("{prefix}{name}");
    let torch = from == Source::RobustnnTorch;
    let (free, gain, bias) = if torch {
        ("Fr.", "fr.", "bs.")
    } else {
        ("Fab", "fab", "b")
    };
    let layers = w.count(|k| at(&format!("{free}{k}")));
    ensure!(
        layers > 0,
        "{}: tensor {} is missing",
        w.shown,
        at(&format!("{free}0"))
    );
    let q = w.scaled(&at("Fq"), &at("fq"))?;
    let fq = if torch { q } else { q.transpose().to_owned() };
    let fab = (0..layers)
        .map(|k| {
            let f = w.scaled(&at(&format!("{free}{k}")), &at(&format!("{gain}{k}")))?;
            Ok(if torch { f.transpose().to_owned() } else { f })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut hidden_bias = Vec::new();
    for (k, f) in fab.iter().enumerate() {
        hidden_bias.extend(match biased {
            true => w.vector(&at(&format!("{bias}{k}")), Some(f.ncols()))?,
            false => vec![0.0; f.ncols()],
        });
    }
    let n = fq.ncols();
    Ok(MonLipFree {
        bounds,
        activation,
        fq,
        fp: None,
        fab,
        log_psi: None,
        hidden_bias,
        output_bias: w.vector(&at("by"), Some(n))?,
    })
}

/// A perceptron of p: `kernel` is inputs × outputs.
fn perceptron(w: &Weights, prefix: &str) -> Result<Mlp<f64>> {
    let layers = w.count(|k| format!("{prefix}.Dense_{k}.kernel"));
    ensure!(
        layers > 0,
        "{}: tensor {prefix}.Dense_0.kernel is missing",
        w.shown
    );
    let layers = (0..layers)
        .map(|k| {
            let kernel = w.matrix(&format!("{prefix}.Dense_{k}.kernel"))?;
            let bias = w.vector(&format!("{prefix}.Dense_{k}.bias"), Some(kernel.ncols()))?;
            Ok((kernel.transpose().to_owned(), bias))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Mlp::new(layers)?)
}

/// The free parameters of a network.
fn network(w: &Weights, config: &Config, from: Source, biased: bool) -> Result<BiLipNetFree> {
    let torch = from == Source::RobustnnTorch;
    let activation = config.activation()?;
    let mon = |k: usize| match torch {
        true => format!("mon_layers.{k}."),
        false => format!("mon_{k}."),
    };
    let depth = w.count(|k| format!("{}Fq", mon(k)));
    ensure!(depth > 0, "{}: tensor {}Fq is missing", w.shown, mon(0));
    let share = |b: Bounds| {
        let root = |v: f64| v.powf(1.0 / depth as f64);
        Bounds::new(root(b.mu()), root(b.nu()))
    };
    let monotone = (0..depth)
        .map(|k| {
            let at = mon(k);
            // The PyTorch layers store the bounds that they use.
            let bounds = if torch {
                Bounds::new(w.scalar(&format!("{at}mu"))?, w.scalar(&format!("{at}nu"))?)?
            } else {
                share(config.bounds()?)?
            };
            monotone(w, &at, from, bounds, activation, biased)
        })
        .collect::<Result<Vec<_>>>()?;
    let n = monotone[0].fq.ncols();
    let orthogonal = (0..=depth)
        .map(|k| {
            let (prefix, matrix, gain, bias) = match torch {
                true => (format!("orth_layers.{k}."), "weight", "alpha", "bias"),
                false => (format!("uni_{k}."), "W", "a", "b"),
            };
            let at = |name: &str| format!("{prefix}{name}");
            let bias = match biased {
                true => w.vector(&at(bias), Some(n))?,
                false => vec![0.0; n],
            };
            Ok((w.scaled(&at(matrix), &at(gain))?, bias))
        })
        .collect::<Result<Vec<_>>>()?;
    let product = |f: fn(&Bounds) -> f64| monotone.iter().map(|m| f(&m.bounds)).product();
    let bounds = if torch {
        Bounds::new(product(Bounds::mu), product(Bounds::nu))?
    } else {
        config.bounds()?
    };
    Ok(BiLipNetFree {
        bounds,
        orthogonal,
        monotone,
    })
}

/// The same network times a constant, which goes into the last monotone layer and what comes after
/// it.
fn times(mut free: BiLipNetFree, factor: f64) -> Result<BiLipNetFree> {
    if let Some(last) = free.monotone.last_mut() {
        let zero = vec![0.0; last.fq.ncols()];
        *last = last.in_variables((&zero, 1.0), (&zero, factor))?;
    }
    if let Some((_, bias)) = free.orthogonal.last_mut() {
        bias.iter_mut().for_each(|b| *b *= factor);
    }
    free.bounds = Bounds::new(free.bounds.mu() * factor, free.bounds.nu() * factor)?;
    Ok(free)
}

fn build<T: Real>(w: &Weights, config: &Config, from: Source) -> Result<Network<T>> {
    let kind = config.kind.as_deref().with_context(|| {
        format!(
            "{}: the configuration does not name the kind; give --config",
            w.shown
        )
    })?;
    let partial = || -> Result<PartialBiLipNet<T>> {
        let free = network(w, config, from, false)?;
        let depth = free.monotone.len();
        let biases = |name: &str, count: usize| {
            (0..count)
                .map(|k| Ok(perceptron(w, &format!("{name}_{k}"))?.convert()))
                .collect::<Result<Vec<_>>>()
        };
        Ok(PartialBiLipNet::new(
            BiLipNet::from_free(&free)?,
            biases("uni_b", depth + 1)?,
            biases("mon_b", depth)?,
        )?)
    };
    Ok(match (kind, from) {
        ("monlip", _) => {
            let prefix = match from {
                Source::RobustnnTorch if w.has("mon_layers.0.Fq") => "mon_layers.0.",
                _ => "",
            };
            let bounds = match w.has(&format!("{prefix}mu")) {
                true => Bounds::new(
                    w.scalar(&format!("{prefix}mu"))?,
                    w.scalar(&format!("{prefix}nu"))?,
                )?,
                false => config.bounds()?,
            };
            let free = monotone(w, prefix, from, bounds, config.activation()?, true)?;
            Network::MonLip(MonLip::from_free(&free)?)
        }
        ("orthogonal", Source::PlnetJax) => {
            let matrix = w.scaled("W", "a")?;
            let bias = w.vector("b", Some(matrix.ncols()))?;
            let layer = Orthogonal::from_free(matrix.as_ref(), &bias)?;
            Network::BiLipNet(BiLipNet::from_layers(vec![layer], Vec::new())?)
        }
        ("bilipnet", _) => Network::BiLipNet(BiLipNet::from_free(&network(w, config, from, true)?)?),
        ("plnet", Source::PlnetJax) => {
            let net = BiLipNet::from_free(&network(w, config, from, true)?)?;
            Network::PlNet(PlNet::new(net, w.scalar("QuadPotential_0.c")?)?)
        }
        ("plnet", Source::RobustnnTorch) => {
            // Its potential is ½·mean(G²) + c: the network divided by √n under ours.
            let free = network(w, config, from, true)?;
            let n = free.orthogonal[0].0.nrows();
            let net = BiLipNet::from_free(&times(free, 1.0 / (n as f64).sqrt())?)?;
            Network::PlNet(PlNet::new(net, w.scalar("bias")?)?)
        }
        ("partial_bilipnet", Source::PlnetJax) => Network::PartialBiLipNet(partial()?),
        ("partial_plnet", Source::PlnetJax) => {
            Network::PartialPlNet(PartialPlNet::new(partial()?, w.scalar("QuadPotential_0.c")?)?)
        }
        (other, _) => bail!(
            "kind {other:?} is not known for these weights; choose monlip, bilipnet, plnet, partial_bilipnet, partial_plnet or orthogonal"
        ),
    })
}

/// What the configuration says of sizes must be what the weights are.
fn check<T: Real>(network: &Network<T>, config: &Config) -> Result<()> {
    let agree = |name: &str, said: Option<usize>, found: usize| match said {
        Some(said) if said != found => bail!("the configuration says {name} = {said}, the weights {found}"),
        _ => Ok(()),
    };
    agree("n", config.n, network.dim())?;
    let (layers, parameters): (Vec<&MonLip<T>>, usize) = match network {
        Network::MonLip(l) => (vec![l], 0),
        Network::BiLipNet(g) => (g.monotone().iter().collect(), 0),
        Network::PlNet(f) => (f.net().monotone().iter().collect(), 0),
        Network::PartialBiLipNet(g) => (g.net().monotone().iter().collect(), g.parameters()),
        Network::PartialPlNet(f) => (f.net().net().monotone().iter().collect(), f.net().parameters()),
        _ => (Vec::new(), 0),
    };
    if !layers.is_empty() {
        agree("depth", config.depth, layers.len())?;
    }
    if parameters > 0 {
        agree("p", config.p, parameters)?;
    }
    if let Some(units) = &config.units {
        for layer in layers {
            ensure!(
                layer.units() == units,
                "the configuration says units = {units:?}, the weights {:?}",
                layer.units()
            );
        }
    }
    Ok(())
}

pub fn run(args: &args::Import) -> Result<Outcome> {
    let mut inputs: Vec<&Path> = vec![&args.source];
    inputs.extend(args.config.as_deref());
    check_file(&args.output, &inputs)?;
    let prefixes: &[&str] = match args.from {
        Source::PlnetJax => &["param/", "params/", "BiLipBlock."],
        Source::RobustnnTorch => &["state/", "bln."],
    };
    let (weights, metadata) = Weights::read(&args.source, prefixes)?;
    let config = Config::read(args.config.as_deref(), &metadata)?;
    let mut model = match args.precision {
        Digits::F32 => {
            let network = build::<f32>(&weights, &config, args.from)?;
            check(&network, &config)?;
            Model::from(network)
        }
        Digits::F64 => {
            let network = build::<f64>(&weights, &config, args.from)?;
            check(&network, &config)?;
            Model::from(network)
        }
    };
    let source = args.source.file_name().unwrap_or(args.source.as_os_str());
    model
        .provenance
        .insert("imported_from".into(), source.to_string_lossy().into_owned());
    model.provenance.insert(
        "program".into(),
        concat!("bilip ", env!("CARGO_PKG_VERSION")).into(),
    );
    let certificate = model.certificate();
    model
        .save(&args.output)
        .with_context(|| args.output.display().to_string())?;
    print(&format!("{certificate}written to {}\n", args.output.display()))?;
    Ok(match certificate.holds() {
        true => Outcome::Done,
        false => Outcome::NotMet,
    })
}
