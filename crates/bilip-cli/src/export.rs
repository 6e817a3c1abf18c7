//! `export`: a model for other programs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bilip::{Stored, write_file};
use safetensors::{Dtype, SafeTensors};

use crate::Outcome;
use crate::args;
use crate::model::Loaded;
use crate::onnx;
use crate::table::{Output, check_file};

pub fn run(args: &args::Export) -> Result<Outcome> {
    let model = Loaded::read(&args.model)?;
    if let Some(path) = &args.onnx {
        check_file(path, &[&args.model])?;
        let mut metadata = BTreeMap::new();
        metadata.insert(
            "bilip".to_string(),
            serde_json::to_string(&model.model.certificate())?,
        );
        for (key, names) in [("inputs", model.inputs()), ("targets", model.targets())] {
            metadata.insert(key.to_string(), serde_json::to_string(&names)?);
        }
        let bytes = match &model.model.network {
            Stored::F32(n) => onnx::encode(n, &metadata),
            Stored::F64(n) => onnx::encode(n, &metadata),
        }?;
        write_file(path, &bytes)?;
    }
    for (folder, extension) in [(&args.csv, "csv"), (&args.npy, "npy")] {
        if let Some(folder) = folder {
            weights(&model, folder, extension)?;
        }
    }
    Ok(Outcome::Done)
}

/// Every stored tensor as a table of its own, under the names of the model file.
fn weights(model: &Loaded, folder: &Path, extension: &str) -> Result<()> {
    let shown = folder.display().to_string();
    ensure!(
        !folder.exists() || folder.is_dir(),
        "{shown}: is a file; name a folder for the weights"
    );
    std::fs::create_dir_all(folder).with_context(|| shown)?;
    // The file's own container lists all of them.
    let bytes = model.model.to_bytes()?;
    let file = SafeTensors::deserialize(&bytes)?;
    for (name, view) in file.tensors() {
        let values: Vec<f64> = match view.dtype() {
            Dtype::F32 => view
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect(),
            _ => view
                .data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
        };
        let columns = view.shape().last().copied().unwrap_or(1);
        let names: Vec<String> = (1..=columns).map(|k| format!("c{k}")).collect();
        Output {
            names: &names,
            values: &values,
            single: model.single(),
        }
        .write(&folder.join(format!("{name}.{extension}")))?;
    }
    Ok(())
}
