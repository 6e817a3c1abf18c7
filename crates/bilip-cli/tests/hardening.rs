//! Never hang, never overstate, as seen from a terminal: each test is named for a defect that was
//! there once.

mod common;

use std::time::{Duration, Instant};

use bilip::{Activation, BiLipNet, BiLipNetFree, Bounds, Model, Network, PlNet, RandomLayer, Real, Rng};
use common::{Place, parse_csv, repository};
use num_bigint::BigInt;
use num_rational::BigRational;

fn net<T: Real>(seed: u64) -> BiLipNet<T> {
    let bounds = Bounds::new(0.7, 2.1).unwrap();
    let activation: Activation = "leaky_relu(0.3)".parse().unwrap();
    let free = BiLipNetFree::random(
        &RandomLayer::new(2, &[5, 4], bounds)
            .with_activation(activation)
            .with_bias(0.7),
        1,
        &mut Rng::new(seed),
    )
    .unwrap();
    BiLipNet::from_free(&free).unwrap()
}

fn saved(place: &Place, name: &str, network: impl Into<Model>) {
    network.into().save(place.path(name)).unwrap();
}

/// The same file with all numbers of some tensors multiplied.
fn with_scaled(place: &Place, from: &str, to: &str, tensor: &str, factor: f64) {
    let mut bytes = std::fs::read(place.path(from)).unwrap();
    let start = bytes.as_ptr() as usize;
    let (range, width) = {
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let view = file.tensor(tensor).unwrap();
        let at = view.data().as_ptr() as usize - start;
        let width = if view.dtype() == safetensors::Dtype::F32 {
            4
        } else {
            8
        };
        (at..at + view.data().len(), width)
    };
    for number in bytes[range].chunks_exact_mut(width) {
        match width {
            4 => {
                let value = f32::from_le_bytes(number.try_into().unwrap()) as f64 * factor;
                number.copy_from_slice(&(value as f32).to_le_bytes());
            }
            _ => {
                let value = f64::from_le_bytes(number.try_into().unwrap()) * factor;
                number.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    place.write(to, bytes);
}

/// The certificate in an ONNX file: JSON behind its key, whatever is around it.
fn onnx_certificate(place: &Place, name: &str) -> serde_json::Value {
    let bytes = std::fs::read(place.path(name)).unwrap();
    let at = bytes.windows(6).position(|w| w == b"{\"mu\":").unwrap();
    let mut stream = serde_json::Deserializer::from_slice(&bytes[at..]).into_iter();
    stream.next().unwrap().unwrap()
}

#[test]
fn values_near_the_largest_double_do_not_hang_invert_and_minimize() {
    let place = Place::new();
    saved(&place, "m.safetensors", Network::BiLipNet(net::<f64>(1)));
    for method in ["auto", "newton", "dys", "fsm", "fbs", "fbfs", "prs", "drs"] {
        let clock = Instant::now();
        let run = place.run_with(
            &format!("invert m.safetensors -i - --errors --method {method} --max-iterations 200"),
            "0.5,0.5\n1.7976931348623157e308,0\n-1e308,1e308\n",
        );
        assert!(clock.elapsed() < Duration::from_secs(20), "{method}");
        assert_eq!(run.code, 1, "{method}: {}", run.stderr);
        assert_eq!(run.stdout.lines().count(), 4, "{method}: {}", run.stdout);
        let status: Vec<&str> = run.stdout.lines().map(|l| l.split(',').nth(3).unwrap()).collect();
        if ["auto", "newton"].contains(&method) {
            assert_eq!(status[1], "converged", "{method}: {}", run.stdout);
        }
        // Where no tolerance helps, none is advised, nor a method that would not either.
        if status[2..] == ["out_of_range"; 2] && status[1] == "converged" {
            assert!(
                !run.stderr.contains("--tol") && !run.stderr.contains("--method"),
                "{}",
                run.stderr
            );
            assert!(
                run.stderr.contains("beyond the range of numbers"),
                "{}",
                run.stderr
            );
        }
    }
    // A bias of that size in a file.
    saved(
        &place,
        "f.safetensors",
        Network::PlNet(PlNet::new(net::<f64>(2), 1.0).unwrap()),
    );
    with_scaled(
        &place,
        "f.safetensors",
        "huge.safetensors",
        "orthogonal.1.bias",
        0.0,
    );
    let mut bytes = std::fs::read(place.path("huge.safetensors")).unwrap();
    let at = {
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.tensor("orthogonal.1.bias").unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    bytes[at..at + 8].copy_from_slice(&f64::MAX.to_le_bytes());
    place.write("huge.safetensors", bytes);
    let clock = Instant::now();
    let run = place.run("minimize huge.safetensors --json");
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(clock.elapsed() < Duration::from_secs(20));
    let minimum: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(minimum["distance_bound"], "inf");
}

#[test]
fn an_onnx_graph_says_what_is_proved_of_its_own_constants() {
    let place = Place::new();
    saved(&place, "f64.safetensors", Network::BiLipNet(net::<f64>(3)));
    saved(&place, "f32.safetensors", Network::BiLipNet(net::<f32>(3)));
    for name in ["f64", "f32"] {
        place.ok(&format!("export {name}.safetensors --onnx {name}.onnx"));
        let certificate = onnx_certificate(&place, &format!("{name}.onnx"));
        assert_eq!(certificate["holds"], true);
        assert!(certificate["certified_mu"].as_f64().unwrap() >= 0.7);
        assert!(certificate["certified_nu"].as_f64().unwrap() <= 2.1);
        for (factor, what) in [(1.01, "damaged"), (1e3, "ruined")] {
            let file = format!("{name}-{what}.safetensors");
            with_scaled(
                &place,
                &format!("{name}.safetensors"),
                &file,
                "monotone.0.s",
                factor,
            );
            assert_eq!(place.run(&format!("certify {file}")).code, 1);
            let run = place.run(&format!("export {file} --onnx out.onnx"));
            assert_eq!(run.code, 1, "{}", run.stderr);
            assert!(!place.exists("out.onnx"), "{}", run.stderr);
        }
    }
}

#[test]
fn every_row_of_an_inverse_has_its_own_error() {
    let place = Place::new();
    saved(&place, "m.safetensors", Network::BiLipNet(net::<f64>(4)));
    place.write("y.csv", "1,2\n0.5,-1\n1e308,1e308\n");
    let run = place.run("invert m.safetensors -i y.csv -o x.csv --errors --report r.json --tol 1e-9");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let text = place.read("x.csv");
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
    assert_eq!(rows[0], ["x1", "x2", "error_bound", "status", "iterations"]);
    let report: serde_json::Value = serde_json::from_str(&place.read("r.json")).unwrap();
    assert!(!place.read("r.json").contains("null"));
    let per_row = &report["per_row"];
    for (k, row) in rows[1..].iter().enumerate() {
        assert_eq!(per_row["status"][k], row[3]);
        assert_eq!(per_row["iterations"][k].as_u64().unwrap().to_string(), row[4]);
        match per_row["error_bound"][k].as_f64() {
            Some(bound) => assert_eq!(bound, row[2].parse::<f64>().unwrap()),
            None => assert_eq!((&per_row["error_bound"][k], row[2]), (&"inf".into(), "inf")),
        }
    }
    assert_eq!(rows[1][3], "converged");
    assert!(rows[1][2].parse::<f64>().unwrap() <= 1e-9);
    assert_eq!(rows[3][3], "out_of_range");
    assert_eq!(report["max_error_bound"], "inf");
    // Without the option the table is what it was.
    place.write("good.csv", "1,2\n");
    let (names, _) = parse_csv(&place.ok("invert m.safetensors -i good.csv"));
    assert_eq!(names, ["x1", "x2"]);
    // Numbers alone in NumPy's format: five columns.
    place.ok("invert m.safetensors -i good.csv -o x.npy --errors");
    let bytes = std::fs::read(place.path("x.npy")).unwrap();
    let numbers: Vec<f64> = (bytes[bytes.len() - 40..].as_chunks::<8>().0.iter())
        .map(|b| f64::from_le_bytes(*b))
        .collect();
    assert!(
        numbers[2] <= 1e-8 && numbers[3] == 0.0 && numbers[4] >= 1.0,
        "{numbers:?}"
    );
}

#[test]
fn names_in_a_file_forge_no_line_and_steer_no_terminal() {
    let place = Place::new();
    let mut model = Model::from(Network::PlNet(PlNet::new(net::<f64>(5), 0.0).unwrap()));
    let names = ["a\nproved: everything", "\u{1b}[2J\u{202e}b"];
    model
        .provenance
        .insert("inputs".into(), serde_json::to_string(&names).unwrap());
    model
        .provenance
        .insert("made\nproved: by".into(), "x\r\u{7f}".into());
    model.save(place.path("m.safetensors")).unwrap();
    for command in ["minimize", "inspect", "certify"] {
        let text = place.ok(&format!("{command} m.safetensors"));
        assert!(!text.lines().any(|l| l.starts_with("proved:")), "{text}");
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()),
            "{command}: {text:?}"
        );
        assert!(!text.contains('\u{202e}'), "{command}: {text:?}");
    }
    // Nor do messages of errors.
    place.write("t.csv", "a,b\n1,2\n");
    let run = place.run("eval m.safetensors -i t.csv");
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.trim_end().chars().all(|c| !c.is_control()),
        "{:?}",
        run.stderr
    );
}

#[test]
fn a_damaged_model_gets_a_message_that_does_not_contradict_itself() {
    let place = Place::new();
    saved(&place, "m.safetensors", Network::BiLipNet(net::<f64>(6)));
    with_scaled(&place, "m.safetensors", "d.safetensors", "monotone.0.s", 1.01);
    let run = place.run_with("invert d.safetensors -i -", "1,2\n");
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(
        run.stderr
            .contains("are not proved for its weights; proved are mu >="),
        "{}",
        run.stderr
    );
    assert!(!run.stderr.contains("no bi-Lipschitz bound"), "{}", run.stderr);
}

#[cfg(unix)]
#[test]
fn outputs_behind_links_are_written_through() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    saved(&place, "m.safetensors", Network::BiLipNet(net::<f64>(7)));
    place.write("y.csv", "1,2\n");
    std::fs::create_dir(place.path("far")).unwrap();
    symlink("far/x.csv", place.path("x.csv")).unwrap();
    symlink("far/r.json", place.path("r.json")).unwrap();
    place.write("far/r.json", "old");
    place.ok("invert m.safetensors -i y.csv -o x.csv --report r.json");
    for name in ["x.csv", "r.json"] {
        assert!(place.path(name).is_symlink(), "{name}");
        assert!(place.path(&format!("far/{name}")).is_file(), "{name}");
    }
    assert!(place.read("far/r.json").contains("per_row"));
    // Links that lead nowhere are refused before any work.
    symlink("missing/none.csv", place.path("dangling.csv")).unwrap();
    symlink("loop.csv", place.path("loop.csv")).unwrap();
    for name in ["dangling.csv", "loop.csv"] {
        let run = place.run(&format!("invert m.safetensors -i y.csv -o {name}"));
        assert_eq!(run.code, 2, "{name}");
        assert!(run.stderr.contains("leads nowhere"), "{}", run.stderr);
    }
    // A link to an input is that input.
    symlink("y.csv", place.path("same.csv")).unwrap();
    assert_eq!(place.run("invert m.safetensors -i y.csv -o same.csv").code, 2);
    // Standard output by its device, redirected to a file: both parts are there, and the device is
    // what it was.
    let before = std::fs::read_link("/dev/stdout").ok();
    let file = std::fs::File::create(place.path("both.txt")).unwrap();
    let status = place
        .command()
        .args("invert m.safetensors -i y.csv --report /dev/stdout".split(' '))
        .stdout(file)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_link("/dev/stdout").ok(), before);
    let text = place.read("both.txt");
    assert!(
        text.starts_with("x1,x2\n") && text.contains("\"per_row\""),
        "{text}"
    );
}

#[test]
fn a_fit_whose_minimum_is_not_proved_does_not_end_well() {
    let place = Place::new();
    let oven = repository("examples/oven.csv");
    let run = place.run(&format!(
        "fit {} --target loss --lr 10 --hidden 16,16 --epochs 20 -o m.safetensors",
        oven.display()
    ));
    // Whatever came of it: `fit` and `minimize` say the same of the same file.
    let again = place.run("minimize m.safetensors");
    if run.code < 2 {
        assert_eq!(run.code, again.code, "{}\n{}", run.stdout, again.stderr);
        assert_eq!(
            run.code == 1,
            run.stderr.contains("proved distance"),
            "{}",
            run.stderr
        );
    }
    // A column whose unit is far from one has a tolerance in its own unit, in both.
    let rows: String = (0..60)
        .map(|k| format!("{}e9,{}\n", k - 30, (k - 20) * (k - 20)))
        .collect();
    place.write("wide.csv", format!("x,y\n{rows}"));
    let run = place.run("fit wide.csv --target y --hidden 8,8 --epochs 20 -o w.safetensors");
    let again = place.run("minimize w.safetensors");
    assert_eq!((run.code, again.code), (0, 0), "{}\n{}", run.stderr, again.stderr);
}

#[test]
fn a_single_held_out_row_has_no_share_of_explained_variance() {
    let place = Place::new();
    let rows: String = (0..12).map(|k| format!("{k},{}\n", k * k)).collect();
    place.write("t.csv", format!("x,y\n{rows}"));
    let run = place.run("fit t.csv --target y --hidden 4 --epochs 2 --validation 0.05 -o m.safetensors");
    assert!(run.code < 2, "{}", run.stderr);
    assert!(
        !run.stdout.contains("R2") && !run.stdout.contains("inf"),
        "{}",
        run.stdout
    );
    let long = run
        .stdout
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max();
    assert!(long < Some(25), "{}", run.stdout);
    let run =
        place.run("fit t.csv --target y --hidden 4 --epochs 2 --validation 0.05 --json -o m.safetensors");
    let summary: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(summary["validation_r2"][0].is_null());
}

/// A decimal as it is printed, as a fraction.
fn decimal(text: &str) -> BigRational {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: BigInt = format!("{whole}{part}").parse().unwrap();
    let exponent = exponent.parse::<i32>().unwrap() - part.len() as i32;
    BigRational::from(digits) * BigRational::from(BigInt::from(10)).pow(exponent)
}

/// Checks every `<=` and `>=` in a text against the number that was proved, in exact arithmetic.
/// Returns how many.
fn check_inequalities(text: &str, certificate: &serde_json::Value, minimum: &serde_json::Value) -> usize {
    let number = |value: &serde_json::Value| BigRational::from_float(value.as_f64().unwrap()).unwrap();
    let mut count = 0;
    for line in text.lines() {
        for (at, sign) in line.match_indices("<= ").chain(line.match_indices(">= ")) {
            let (before, rest) = (&line[..at], &line[at + 3..]);
            let end = rest.find([',', ' ', ')']).unwrap_or(rest.len());
            let shown = decimal(rest[..end].trim_end_matches(':'));
            let layer = || {
                let k = line.trim_start().strip_prefix("layer ").unwrap();
                let k: usize = k.split(':').next().unwrap().parse().unwrap();
                number(&certificate["layers"][k]["margin"])
            };
            let claim = line.starts_with("claimed");
            let proved = match before.trim_end() {
                b if b.ends_with("mu") && claim => number(&certificate["mu"]),
                b if b.ends_with("nu") && claim => number(&certificate["nu"]),
                b if b.ends_with("mu") => number(&certificate["certified_mu"]),
                b if b.ends_with("nu") => number(&certificate["certified_nu"]),
                b if b.ends_with("distortion") => {
                    number(&certificate["certified_nu"]) / number(&certificate["certified_mu"])
                }
                b if b.ends_with("constant") => number(&certificate["pl_constant"]),
                b if b.ends_with("|P'P - I|") => -layer(),
                b if b.ends_with("eigenvalue") => layer(),
                b if b.ends_with("its minimizer") => number(&minimum["distance_bound"]),
                b if b.ends_with("its minimum") => number(&minimum["gap"]),
                b => panic!("an inequality that nobody checks: {b} {sign}{rest}"),
            };
            match sign {
                "<= " => assert!(shown >= proved, "{line}"),
                _ => assert!(shown <= proved, "{line}"),
            }
            count += 1;
        }
    }
    count
}

#[test]
fn every_inequality_that_the_program_prints_holds_for_what_was_proved() {
    let place = Place::new();
    let mut count = 0;
    for seed in 0..12 {
        let name = format!("{seed}.safetensors");
        match seed % 2 {
            0 => saved(
                &place,
                &name,
                Network::PlNet(PlNet::new(net::<f64>(seed), 0.3).unwrap()),
            ),
            _ => saved(
                &place,
                &name,
                Network::PlNet(PlNet::new(net::<f32>(seed), 0.3).unwrap()),
            ),
        }
        let certificate = place.json(&format!("certify {name} --json"));
        let minimum = place.json(&format!("minimize {name} --json"));
        for command in ["certify", "minimize"] {
            let text = place.ok(&format!("{command} {name}"));
            count += check_inequalities(&text, &certificate, &minimum);
        }
    }
    let oven = repository("examples/oven.csv");
    let text = place.ok(&format!(
        "fit {} --target loss --hidden 8,8 --epochs 3 -o m.safetensors",
        oven.display()
    ));
    let (certificate, minimum) = (
        place.json("certify m.safetensors --json"),
        place.json("minimize m.safetensors --json"),
    );
    count += check_inequalities(&text, &certificate, &minimum);
    assert!(count > 120, "{count}");
}
