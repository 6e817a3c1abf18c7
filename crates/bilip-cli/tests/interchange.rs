//! Weights of other programs come in, ONNX goes out; both checked against references of their own.

mod common;

use std::path::PathBuf;

use common::{Place, parse_csv, repository, run_python};
use safetensors::SafeTensors;

/// Fixtures: file, source, and whether the output is a scalar.
const FIXTURES: [(&str, &str); 8] = [
    ("monlip_1d", "plnet-jax"),
    ("monlip_small", "plnet-jax"),
    ("monlip_wide", "plnet-jax"),
    ("bilipnet", "plnet-jax"),
    ("plnet", "plnet-jax"),
    ("partial_bilipnet", "plnet-jax"),
    ("torch_bilipnet", "robustnn-torch"),
    ("torch_plnet", "robustnn-torch"),
];

fn fixture(name: &str) -> PathBuf {
    repository(&format!("crates/bilip/tests/fixtures/{name}.safetensors"))
}

struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    fn read(name: &str) -> Self {
        Golden {
            bytes: std::fs::read(fixture(name)).unwrap(),
        }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    fn values(&self, key: &str) -> Option<Vec<f64>> {
        let file = self.file();
        let view = file.tensor(key).ok()?;
        Some(
            view.data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
        )
    }

    fn columns(&self, key: &str) -> usize {
        self.file()
            .tensor(key)
            .unwrap()
            .shape()
            .get(1)
            .copied()
            .unwrap_or(1)
    }

    fn metadata(&self, key: &str) -> Option<String> {
        let (_, header) = SafeTensors::read_metadata(&self.bytes).unwrap();
        header.metadata().as_ref()?.get(key).cloned()
    }
}

fn table(values: &[f64], columns: usize) -> String {
    values
        .chunks_exact(columns)
        .map(|row| row.iter().map(f64::to_string).collect::<Vec<_>>().join(",") + "\n")
        .collect()
}

#[test]
fn every_fixture_is_imported_and_gives_its_golden_values() {
    let place = Place::new();
    for (name, source) in FIXTURES.into_iter().chain([("orthogonal", "plnet-jax")]) {
        let golden = Golden::read(name);
        place.write("x.csv", table(&golden.values("x").unwrap(), golden.columns("x")));
        // Once with a configuration, once from the file's own metadata.
        let mut config = String::new();
        for key in ["kind", "n", "p", "units", "depth", "mu", "nu", "activation"] {
            if let Some(value) = golden.metadata(key) {
                config += &format!("{key} = {value}\n");
            }
        }
        place.write("config.toml", config);
        for (precision, with, tolerance) in [
            ("f64", "--config config.toml", 1e-10),
            ("f64", "", 1e-10),
            ("f32", "", 2e-5),
        ] {
            let run = place.run(&format!(
                "import {} --from {source} {with} --precision {precision} -o m.safetensors",
                fixture(name).display()
            ));
            assert_eq!(run.code, 0, "{name}: {}", run.stderr);
            assert!(run.stdout.contains("proved"), "{}", run.stdout);
            let mut at = String::new();
            if let Some(p) = golden.values("p") {
                place.write("p.csv", table(&p, golden.columns("p")));
                at = "--at p.csv".into();
            }
            place.ok(&format!("eval m.safetensors -i x.csv -o y.csv {at}"));
            let found: Vec<f64> = place.csv("y.csv").1.concat();
            let expected = golden.values("y").unwrap();
            assert_eq!(found.len(), expected.len());
            let mut worst = 0.0f64;
            for (a, b) in found.iter().zip(&expected) {
                worst = worst.max((a - b).abs() / (1.0 + b.abs()));
            }
            println!("{name:18} {precision} {worst:.1e}");
            assert!(worst <= tolerance, "{name} {precision}: {worst:e}");
            assert_eq!(
                place.json("certify m.safetensors --json")["holds"],
                true,
                "{name}"
            );
        }
    }
}

#[test]
fn names_may_come_without_their_prefixes() {
    let place = Place::new();
    for (name, source, prefixes) in [
        ("plnet", "plnet-jax", ["param/", "BiLipBlock."]),
        ("torch_plnet", "robustnn-torch", ["state/", "bln."]),
    ] {
        let golden = Golden::read(name);
        let file = golden.file();
        let (_, header) = SafeTensors::read_metadata(&golden.bytes).unwrap();
        let stripped: Vec<(String, safetensors::tensor::TensorView<'_>)> = file
            .tensors()
            .into_iter()
            .filter(|(k, _)| k.starts_with(prefixes[0]))
            .map(|(k, v)| (k.replace(prefixes[0], "").replace(prefixes[1], ""), v))
            .collect();
        let bytes = safetensors::serialize(stripped, header.metadata().clone()).unwrap();
        place.write("bare.safetensors", bytes);
        place.ok(&format!(
            "import bare.safetensors --from {source} -o bare-model.safetensors"
        ));
        place.ok(&format!(
            "import {} --from {source} -o model.safetensors",
            fixture(name).display()
        ));
        place.write("x.csv", table(&golden.values("x").unwrap(), golden.columns("x")));
        assert_eq!(
            place.ok("eval bare-model.safetensors -i x.csv"),
            place.ok("eval model.safetensors -i x.csv")
        );
    }
}

const RUN_ONNX: &str = r#"
import sys, json, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
feed = {}
for value, path in zip(session.get_inputs(), sys.argv[2:]):
    feed[value.name] = np.loadtxt(path, delimiter=",", ndmin=2).astype(kinds[value.type])
y = session.run(None, feed)[0]
np.savetxt(sys.stdout, y.reshape(y.shape[0], -1), delimiter=",", fmt="%.17g")
meta = session.get_modelmeta().custom_metadata_map
assert json.loads(meta["bilip"])["holds"] is True
"#;

#[test]
fn exported_graphs_run_in_onnxruntime_and_agree() {
    let place = Place::new();
    let script = place.write("run.py", RUN_ONNX);
    let check = |what: &str, tolerance: f64, with_p: bool| {
        place.ok("export m.safetensors --onnx m.onnx");
        let mut files = vec![place.path("m.onnx"), place.path("x.csv")];
        if with_p {
            files.push(place.path("p.csv"));
        }
        let output = run_python(&script, &files);
        let at = if with_p { "--at p.csv" } else { "" };
        let mut text = place.ok(&format!("eval m.safetensors -i x.csv {at}"));
        if text.starts_with("class,") {
            // The word for the most probable class is not part of the graph.
            text = text
                .lines()
                .map(|l| l.split_once(',').unwrap().1.to_string() + "\n")
                .collect();
        }
        let (_, ours) = parse_csv(&text);
        let theirs: Vec<Vec<f64>> = output
            .lines()
            .map(|l| l.split(',').map(|c| c.parse().unwrap()).collect())
            .collect();
        assert_eq!(ours.len(), theirs.len());
        let mut worst = 0.0f64;
        for (a, b) in ours.concat().iter().zip(theirs.concat()) {
            worst = worst.max((a - b).abs() / (1.0 + a.abs()));
        }
        println!("{what:40} {worst:.1e}");
        assert!(worst < tolerance, "{what}: {worst:e}");
    };
    for (name, source) in FIXTURES {
        let golden = Golden::read(name);
        place.write("x.csv", table(&golden.values("x").unwrap(), golden.columns("x")));
        let p = golden.values("p");
        if let Some(p) = &p {
            place.write("p.csv", table(p, golden.columns("p")));
        }
        for (precision, tolerance) in [("f64", 1e-12), ("f32", 1e-5)] {
            place.ok(&format!(
                "import {} --from {source} --precision {precision} -o m.safetensors",
                fixture(name).display()
            ));
            check(&format!("{name} {precision}"), tolerance, p.is_some());
        }
    }
    // Every activation, with learned ψ, changes of variables, partial potentials, and a known
    // minimum.
    let lens = repository("examples/lens.csv");
    let humidity = repository("examples/humidity.csv");
    place.write("x.csv", "10,-5\n0,0\n-29,19.5\n");
    for activation in [
        "relu",
        "leaky_relu",
        "tanh",
        "sigmoid",
        "arctan",
        "softplus",
        "elu",
        "identity",
    ] {
        for (model, target, precision) in [
            ("bilipnet", "u,v", "f64"),
            ("monlip", "u,v", "f32"),
            ("plnet", "u", "f64"),
        ] {
            place.ok(&format!(
                "fit {} --inputs azimuth,elevation --target {target} --model {model} --activation {activation} --hidden 7,9 --epochs 2 --precision {precision} -o m.safetensors",
                lens.display()
            ));
            check(&format!("{model} {activation} {precision}"), 1e-5, false);
        }
    }
    place.write("x.csv", "180,20\n220,40\n");
    place.write("p.csv", "30\n70\n");
    place.ok(&format!(
        "fit {} --target loss --params humidity --hidden 7,9 --epochs 2 -o m.safetensors",
        humidity.display()
    ));
    check("partial plnet", 1e-10, true);
    place.ok(&format!(
        "fit {} --target loss --inputs temperature,minutes --minimum 220,30 --hidden 7 --epochs 2 -o m.safetensors",
        humidity.display()
    ));
    check("plnet with a known minimum", 1e-10, false);
    place.write("x.csv", "0,1\n0.5,0.3\n9,-9\n");
    for (precision, tolerance) in [("f64", 1e-10), ("f32", 1e-3)] {
        place.ok(&format!(
            "fit {} --target class --model classifier --hidden 7,9 --features 50 --epochs 20 --precision {precision} -o m.safetensors",
            repository("examples/moons.csv").display()
        ));
        check(&format!("classifier {precision}"), tolerance, false);
    }
}
