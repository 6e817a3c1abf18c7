//! Model files and checkpoints of the version before are read, and give the answers that they gave.

mod common;

use std::path::{Path, PathBuf};

use common::Place;
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-0.1.0")
}

/// The numbers of a table, row by row; cells that are none are left out.
fn numbers(table: &str) -> Vec<f64> {
    (table.lines().skip(1))
        .flat_map(|line| {
            line.split(',')
                .filter_map(|cell| cell.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

fn assert_close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{what}: {a} {b}");
    }
}

#[test]
fn model_files_of_the_version_before_give_the_same_answers() {
    let folder = fixtures();
    let place = Place::new();
    for (name, header, rows) in [
        ("plnet", "temperature,minutes", "210,25\n221.5,33\n"),
        ("plnet_known", "temperature,minutes", "210,25\n221.5,33\n"),
        ("bilipnet", "azimuth,elevation", "10,5\n-3,12\n"),
        ("monlip", "azimuth,elevation", "10,5\n-3,12\n"),
        (
            "partial_plnet",
            "temperature,minutes,humidity",
            "210,25,50\n221.5,33,60\n",
        ),
        ("classifier", "x,y", "0,1.2\n0.5,0.3\n6,6\n"),
    ] {
        let file = format!("{name}.safetensors");
        std::fs::copy(folder.join(&file), place.path(&file)).unwrap();
        let read = |extension: &str| std::fs::read_to_string(folder.join(format!("{name}.{extension}")));
        place.write("rows.csv", format!("{header}\n{rows}"));

        // f32 models round in another order of sums.
        let ours = place.ok(&format!("eval {file} -i rows.csv"));
        assert_close(name, &numbers(&ours), &numbers(&read("eval.csv").unwrap()), 1e-5);
        if let Ok(inverse) = read("inverse.csv") {
            place.write("values.csv", read("eval.csv").unwrap());
            let ours = place.ok(&format!("invert {file} -i values.csv"));
            assert_close(name, &numbers(&ours), &numbers(&inverse), 1e-7);
        }
        if let Ok(minimum) = read("minimum.json") {
            let ours = place.json(&format!("minimize {file} --json"));
            let theirs: Value = serde_json::from_str(&minimum).unwrap();
            let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            for key in keys(&theirs) {
                assert!(keys(&ours).contains(&key), "{name}: {key}");
            }
            let x = |v: &Value| -> Vec<f64> {
                let x = v["x"].as_array().unwrap();
                x.iter().map(|x| x.as_f64().unwrap()).collect()
            };
            assert_close(name, &x(&ours), &x(&theirs), 1e-7);
        }
        let ours = place.json(&format!("certify {file} --json"));
        let theirs: Value = serde_json::from_str(&read("certificate.json").unwrap()).unwrap();
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn a_run_that_the_version_before_left_goes_on() {
    let place = Place::new();
    let run = fixtures().join("run");
    let checkpoints = "model.safetensors.checkpoints";
    std::fs::create_dir(place.path(checkpoints)).unwrap();
    std::fs::copy(run.join("oven.csv"), place.path("oven.csv")).unwrap();
    for file in std::fs::read_dir(run.join(checkpoints)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), place.path(checkpoints).join(file.file_name())).unwrap();
    }
    let run = place
        .run("fit oven.csv --target loss --hidden 6,5 --epochs 150 --batch 1 -o model.safetensors --resume");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("resumed after epoch 27"), "{}", run.stderr);
    assert!(place.exists("model.safetensors"));
}
