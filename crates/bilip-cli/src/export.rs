//! `export`: a model for other programs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bilip::{at_least, at_most, write_file};
use safetensors::SafeTensors;

use crate::Outcome;
use crate::args;
use crate::model::{self, numbers};
use crate::table::{Output, check_file};
use crate::text::shown;
use bilip_fit::NamedModel;

pub fn run(args: &args::Export) -> Result<Outcome> {
    let model = model::read(&args.model)?;
    let mut outcome = Outcome::Done;
    if let Some(path) = &args.onnx {
        check_file(path, &[&args.model])?;
        outcome = write_onnx(&model, path)?;
    }
    for (folder, extension) in [(&args.csv, "csv"), (&args.npy, "npy")] {
        if let Some(folder) = folder {
            weights(&model, folder, extension)?;
        }
    }
    Ok(outcome)
}

/// A graph with what is proved of its own constants; none where nothing is.
fn write_onnx(model: &NamedModel, path: &Path) -> Result<Outcome> {
    let mut names = BTreeMap::new();
    for (key, list) in [("inputs", model.inputs()), ("targets", model.targets())] {
        names.insert(key.to_string(), serde_json::to_string(&list)?);
    }
    let graph = match model.to_onnx(&names) {
        Ok(graph) => graph,
        Err(error @ bilip::Error::NotCertifiable { .. }) => {
            eprintln!(
                "{}: {error}; nothing was written, see bilip certify",
                shown(&model.source)
            );
            return Ok(Outcome::NotMet);
        }
        Err(error) => return Err(error).with_context(|| model.source.clone()),
    };
    write_file(path, &graph.bytes)?;
    if graph.certificate.holds() {
        return Ok(Outcome::Done);
    }
    let (claimed, proved) = (graph.certificate.claimed(), graph.certificate.proved());
    eprintln!(
        "{}: the graph does not keep the claimed mu = {}, nu = {}; proved of it, and written into it, are mu >= {}, nu <= {}",
        shown(&model.source),
        claimed.mu(),
        claimed.nu(),
        at_least(proved.mu(), 8),
        at_most(proved.nu(), 8)
    );
    Ok(Outcome::NotMet)
}

/// Every stored tensor as a table of its own, under the names of the model file.
fn weights(model: &NamedModel, folder: &Path, extension: &str) -> Result<()> {
    let shown = folder.display().to_string();
    ensure!(
        !folder.exists() || folder.is_dir(),
        "{shown}: is a file; name a folder for the weights"
    );
    std::fs::create_dir_all(folder).with_context(|| shown)?;
    // The file's own container lists all of them.
    let bytes = model.to_bytes()?;
    let file = SafeTensors::deserialize(&bytes)?;
    for (name, view) in file.tensors() {
        // Models hold nothing but f32 and f64.
        let values = numbers(&view).unwrap_or_default();
        let columns = view.shape().last().copied().unwrap_or(1);
        let names: Vec<String> = (1..=columns).map(|k| format!("c{k}")).collect();
        Output {
            names: &names,
            values: &values,
            single: view.dtype() == safetensors::Dtype::F32,
            words: None,
            more: Vec::new(),
        }
        .write(&folder.join(format!("{name}.{extension}")))?;
    }
    Ok(())
}
