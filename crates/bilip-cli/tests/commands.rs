//! Every command, end to end, on files.

mod common;

use common::{Place, QUICK, parse_csv, repository};

fn oven() -> String {
    repository("examples/oven.csv").display().to_string()
}

fn lens() -> String {
    repository("examples/lens.csv").display().to_string()
}

fn humidity() -> String {
    repository("examples/humidity.csv").display().to_string()
}

#[test]
fn a_table_becomes_a_certified_minimum() {
    let place = Place::new();
    let summary = place.json(&format!(
        "fit {} --target loss --hidden 32,32 --epochs 60 --json --metrics run.csv -o oven.safetensors",
        oven()
    ));
    assert!(summary["validation_r2"][0].as_f64().unwrap() > 0.98, "{summary}");
    assert_eq!(summary["rows"], 1800);
    assert_eq!(place.csv("run.csv").1.len(), 60);
    // Nothing but the model and the figures is left behind.
    assert_eq!(place.names(), ["oven.safetensors", "run.csv"]);

    let certificate = place.json("certify oven.safetensors --json");
    assert_eq!(certificate["holds"], true);
    let number = |key: &str| certificate[key].as_f64().unwrap();
    assert!(number("certified_mu") >= number("mu") && number("certified_nu") <= number("nu"));
    // The columns are scaled by 1/32 and 1/16: a distortion of 100 becomes 200 in the user's units.
    assert!((number("distortion") - 200.0).abs() < 1e-9);
    assert!((number("nu") / number("mu") - 200.0).abs() < 1e-9);
    assert!((number("pl_constant") / number("mu").powi(2) - 1.0).abs() < 1e-9);
    for layer in certificate["layers"].as_array().unwrap() {
        assert!(layer["kind"].is_string() && layer["margin"].is_number());
    }

    let minimum = place.json("minimize oven.safetensors --json");
    for key in ["x", "value", "gap", "distance_bound", "iterations", "status"] {
        assert!(!minimum[key].is_null(), "{key}");
    }
    assert_eq!(minimum["status"], "converged");
    let x: Vec<f64> = minimum["x"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect();
    // The data's own minimum is at (220, 30).
    assert!((x[0] - 220.0).abs() < 8.0 && (x[1] - 30.0).abs() < 8.0, "{x:?}");
    // It is the minimum of the stored function: eval agrees, and no measured row is below.
    place.write("x.csv", format!("temperature,minutes\n{},{}\n", x[0], x[1]));
    place.ok("eval oven.safetensors -i x.csv -o y.csv");
    let (header, rows) = place.csv("y.csv");
    assert_eq!(header, ["loss"]);
    assert!((rows[0][0] - minimum["value"].as_f64().unwrap()).abs() < 1e-9);
    place.ok(&format!("eval oven.safetensors -i {} -o all.csv", oven()));
    let (_, all) = place.csv("all.csv");
    assert_eq!(all.len(), 2000);
    assert!(all.iter().all(|r| r[0] >= rows[0][0] - 1e-12));

    let text = place.ok("inspect oven.safetensors");
    for part in [
        "PLNet, f64",
        "temperature, minutes",
        "loss",
        "monotone: widths [32, 32]",
        "oven.csv",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let inspected = place.json("inspect oven.safetensors --json");
    assert_eq!(inspected["n"], 2);
    assert_eq!(inspected["inputs"][0], "temperature");

    place.ok(&format!("plot oven.safetensors --data {} -o oven.svg", oven()));
    let svg = place.read("oven.svg");
    assert!(svg.starts_with("<svg") && svg.contains("temperature") && svg.contains("minimum"));
    assert!(svg.matches("<circle").count() >= 2000);
}

#[test]
fn bounds_given_hold_in_the_user_s_units() {
    let place = Place::new();
    for (model, target, more) in [
        ("plnet", "u", ""),
        ("bilipnet", "u,v", ""),
        ("monlip", "u,v", "--activation tanh"),
        ("bilipnet", "u,v", "--householder 2 --general --precision f32"),
        (
            "plnet",
            "u",
            "--no-standardize --optimizer sgd --lr 1e-9 --clip 1",
        ),
    ] {
        place.ok(&format!(
            "fit {} --target {target} --inputs azimuth,elevation --model {model} --mu 2 --nu 60 --in-units {QUICK} {more} -o m.safetensors",
            lens()
        ));
        let certificate = place.json("certify m.safetensors --json");
        assert_eq!(certificate["mu"], 2.0, "{model}");
        assert_eq!(certificate["nu"], 60.0, "{model}");
        assert_eq!(certificate["holds"], true, "{model}");
    }
    // A distortion that is given is that of the standardized variables, unless it is to hold in the
    // user's units.
    for (more, distortion) in [("", 10.0), ("--per-column", 10.0), ("--in-units", 5.0)] {
        place.ok(&format!(
            "fit {} --target loss --tau 5 {QUICK} {more} -o m.safetensors",
            oven()
        ));
        let found = place.json("certify m.safetensors --json")["distortion"]
            .as_f64()
            .unwrap();
        assert!((found - distortion).abs() < 1e-9, "{more}: {found}");
    }
    // Two of three are enough, and three that agree.
    place.ok(&format!(
        "fit {} --target loss --nu 8 --tau 4 --in-units {QUICK} -o m.safetensors",
        oven()
    ));
    assert_eq!(place.json("certify m.safetensors --json")["mu"], 2.0);
    place.ok(&format!(
        "fit {} --target loss --mu 2 --nu 8 --tau 4 {QUICK} -o m.safetensors",
        oven()
    ));
    // The default given by hand is the default.
    let of = |more: &str| {
        place.ok(&format!(
            "fit {} --target loss {QUICK} {more} -o m.safetensors",
            oven()
        ));
        std::fs::read(place.path("m.safetensors")).unwrap()
    };
    assert_eq!(of("--tau 100"), of(""));
}

#[test]
fn a_map_is_inverted_with_a_report() {
    let place = Place::new();
    place.ok(&format!(
        "fit {} --target u,v --model bilipnet --tau 6 --hidden 16,16 --epochs 20 -o lens.safetensors",
        lens()
    ));
    place.ok(&format!("eval lens.safetensors -i {} -o y.npy", lens()));
    for method in ["auto", "newton", "dys", "fsm", "fbfs", "drs"] {
        place.ok(&format!(
            "invert lens.safetensors -i y.npy -o x.csv --method {method} --tol 1e-6 --report r.json"
        ));
        let report: serde_json::Value = serde_json::from_str(&place.read("r.json")).unwrap();
        assert_eq!(report["rows"], 1500);
        assert_eq!(report["converged"], 1500, "{method}");
        assert!(report["max_error_bound"].as_f64().unwrap() <= 1e-6);
        assert!(report["max_residual"].as_f64().unwrap() < 1e-3);
        assert!(
            report["iterations"]["mean"].as_f64().unwrap() <= report["iterations"]["max"].as_f64().unwrap()
        );
        assert!(report["seconds"].as_f64().unwrap() > 0.0);
        let (header, x) = place.csv("x.csv");
        assert_eq!(header, ["azimuth", "elevation"]);
        let (_, data) = parse_csv(&std::fs::read_to_string(lens()).unwrap());
        for (row, expected) in x.iter().zip(&data) {
            let error = (row[0] - expected[0]).hypot(row[1] - expected[1]);
            assert!(error < 2e-6, "{method}: {error}");
        }
    }
    // A tolerance beyond reach: the rows are written, and the exit code says so.
    let run = place.run(
        "invert lens.safetensors -i y.npy -o x.csv --method fsm --tol 1e-9 --max-iterations 2 --report -",
    );
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("1500 of 1500 rows"), "{}", run.stderr);
    assert!(run.stdout.contains("max_error_bound"));
    place.ok("plot lens.safetensors -o grid.svg");
    assert!(place.read("grid.svg").contains("outputs"));
}

#[test]
fn partial_models_take_their_parameters_from_options_and_tables() {
    let place = Place::new();
    place.ok(&format!(
        "fit {} --target loss --params humidity --hidden 12,12 --epochs 4 -o h.safetensors",
        humidity()
    ));
    assert!(place.ok("inspect h.safetensors").contains("partial PLNet"));
    // The table has the column itself.
    let all = place.ok(&format!("eval h.safetensors -i {}", humidity()));
    assert_eq!(all.lines().count(), 3001);
    place.write("x.csv", "temperature,minutes\n200,20\n210,25\n");
    place.write("p.csv", "humidity\n40\n60\n");
    let (_, both) = parse_csv(&place.ok("eval h.safetensors -i x.csv --at p.csv"));
    let (_, first) = parse_csv(&place.ok("eval h.safetensors -i x.csv --at 40"));
    let (_, second) = parse_csv(&place.ok("eval h.safetensors -i x.csv --at 60"));
    assert_eq!(both, [first[0].clone(), second[1].clone()]);
    let minima = place.json("minimize h.safetensors --at p.csv --json");
    assert_eq!(minima.as_array().unwrap().len(), 2);
    let one = place.json("minimize h.safetensors --at 40 --json");
    assert_eq!(one, minima[0]);
    place.ok("plot h.safetensors --at 40 -o h.svg");
    assert!(place.read("h.svg").contains("humidity = 40"));
    // A partial map is inverted at its parameters.
    place.ok(&format!(
        "fit {} --target u,v --inputs azimuth,elevation --params 5 --model bilipnet {QUICK} -o g.safetensors",
        {
            let (_, rows) = parse_csv(&std::fs::read_to_string(lens()).unwrap());
            let mut text = "azimuth,elevation,u,v,zoom\n".to_string();
            for (k, r) in rows.iter().enumerate() {
                let zoom = 1.0 + 0.1 * (k % 5) as f64;
                text += &format!("{},{},{},{},{zoom}\n", r[0], r[1], r[2] * zoom, r[3] * zoom);
            }
            place.write("zoom.csv", text).display().to_string()
        }
    ));
    place.write("x.csv", "azimuth,elevation\n10,-5\n0,0\n");
    place.ok("eval g.safetensors -i x.csv -o y.csv --at 1.2");
    place.ok("invert g.safetensors -i y.csv -o back.csv --at 1.2");
    let (_, back) = place.csv("back.csv");
    assert!(
        (back[0][0] - 10.0).abs() < 1e-6 && (back[0][1] + 5.0).abs() < 1e-6,
        "{back:?}"
    );
}

#[test]
fn a_classifier_says_what_it_does_not_know() {
    let place = Place::new();
    let moons = repository("examples/moons.csv").display().to_string();
    let summary = place.json(&format!(
        "fit {moons} --target class --model classifier --features 256 --hidden 32,32 --epochs 150 --json -o m.safetensors"
    ));
    assert_eq!(summary["classes"], serde_json::json!(["lower", "upper"]));
    assert!(
        summary["validation"]["accuracy"].as_f64().unwrap() >= 0.97,
        "{summary}"
    );
    assert!(summary["validation"]["ece"].as_f64().unwrap() < 0.1, "{summary}");
    assert_eq!(summary["certificate"]["holds"], true);
    let certificate = place.json("certify m.safetensors --json");
    assert_eq!(certificate["holds"], true);
    // Standardized variables within a factor of two either way; the columns' own factors are 1 and
    // 2.
    assert!(certificate["nu"].as_f64().unwrap() <= 4.0 && certificate["mu"].as_f64().unwrap() >= 0.5 - 1e-9);

    // The table may keep its column of classes; the class comes first, then the numbers.
    let text = place.ok(&format!("eval m.safetensors -i {moons}"));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("class,p(lower),p(upper),uncertainty"));
    let given = std::fs::read_to_string(&moons).unwrap();
    let (mut right, mut sum) = (0, 0.0);
    for (line, truth) in lines.zip(given.lines().skip(1)) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |k: usize| cells[k].parse::<f64>().unwrap();
        assert!((number(1) + number(2) - 1.0).abs() < 1e-12, "{line}");
        assert!((number(3) - 4.0 * number(1) * number(2)).abs() < 1e-12, "{line}");
        right += usize::from(truth.ends_with(cells[0]));
        sum += number(3);
    }
    assert!(right >= 390, "{right}");
    // Where there are no data the classes are about even.
    place.write("far.csv", "x,y\n8,8\n-8,8\n8,-8\n-8,-8\n0,9\n");
    let far = place.ok("eval m.safetensors -i far.csv");
    let far: f64 = far
        .lines()
        .skip(1)
        .map(|l| l.rsplit(',').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!(far / 5.0 > 0.6 && sum / 400.0 < 0.2, "{far} {sum}");
    // NumPy has no words.
    place.ok("eval m.safetensors -i far.csv -o far.npy");
    assert!(place.exists("far.npy"));
    for (command, message) in [
        ("invert m.safetensors -i far.csv", "a classifier has no inverse"),
        ("minimize m.safetensors", "has no minimum"),
    ] {
        let run = place.run(command);
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
    place.ok(&format!("plot m.safetensors --data {moons} -o m.svg"));
    let svg = place.read("m.svg");
    assert!(svg.contains("upper") && svg.contains("uncertainty"));
    assert!(
        place
            .ok("inspect m.safetensors")
            .contains("256 random features, 2 classes")
    );

    // Classes may be numbers, and more than two.
    let rows: String = (0..60)
        .map(|k| format!("{},{}\n", k % 3 * 10 + k / 20, 7 * (k % 3)))
        .collect();
    place.write("three.csv", format!("x,label\n{rows}"));
    place.ok("fit three.csv --target label --model classifier --features 64 --hidden 8 --epochs 100 --lr 0.02 -o three.safetensors --precision f32");
    let text = place.ok("eval three.safetensors -i three.csv");
    assert!(text.starts_with("class,p(0),p(7),p(14),uncertainty\n"), "{text}");
    let right = text.lines().skip(1).zip(rows.lines());
    let right = right
        .filter(|(a, b)| a.split(',').next() == b.split(',').next_back())
        .count();
    assert!(right >= 55, "{right}\n{text}");
}

#[test]
fn tables_come_in_several_forms() {
    let place = Place::new();
    let (_, rows) = parse_csv(&std::fs::read_to_string(oven()).unwrap());
    let join = |delimiter: &str, header: &str| {
        let mut text = header.to_string();
        for r in &rows[..200] {
            text += &format!("{}{delimiter}{}{delimiter}{}\r\n", r[0], r[1], r[2]);
        }
        text
    };
    place.write("none.csv", join(",", ""));
    place.write(
        "semicolon.csv",
        join(";", "\u{feff}temperature;minutes ;\"the loss\"\r\n"),
    );
    place.write("tab.tsv", join("\t", "a\tb\tc\n"));
    place.ok(&format!("fit none.csv --target 3 {QUICK} -o a.safetensors"));
    place.ok(&format!("fit tab.tsv --target c {QUICK} -o c.safetensors"));
    let run = place
        .command()
        .args([
            "fit",
            "semicolon.csv",
            "--target",
            "the loss",
            "-o",
            "b.safetensors",
        ])
        .args(QUICK.split_whitespace())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    // The same numbers give the same model, whatever the columns are called.
    let weights = |name: &str| {
        let text = place.ok(&format!("eval {name} -i none-x.csv"));
        text.lines().skip(1).map(str::to_string).collect::<Vec<_>>()
    };
    place.write("none-x.csv", "200,20\n180,40\n");
    assert_eq!(weights("a.safetensors"), weights("b.safetensors"));
    assert_eq!(weights("a.safetensors"), weights("c.safetensors"));
    // A table without names is known by the numbers of its columns.
    assert_eq!(place.ok("eval a.safetensors -i none.csv").lines().count(), 201);
    // Standard input and output, and NumPy both ways.
    let run = place.run_with(
        &format!("fit - --target 3 {QUICK} -o d.safetensors"),
        &place.read("none.csv"),
    );
    assert_eq!(run.code, 0, "{}", run.stderr);
    let run = place.run_with("eval d.safetensors -i - -o -", "200,20\n180,40\n");
    assert_eq!(
        run.stdout.lines().skip(1).collect::<Vec<_>>(),
        weights("a.safetensors")
    );
    place.ok("eval a.safetensors -i none-x.csv -o y.npy");
    let bytes = std::fs::read(place.path("y.npy")).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY"));
    let last = f64::from_le_bytes(bytes[bytes.len() - 8..].try_into().unwrap());
    assert_eq!(last.to_string(), weights("a.safetensors")[1]);
}

#[test]
fn a_known_minimum_stays_and_single_precision_is_certified() {
    let place = Place::new();
    place.ok(&format!(
        "fit {} --target loss --minimum 220,30 --precision f32 {QUICK} -o m.safetensors",
        oven()
    ));
    let minimum = place.json("minimize m.safetensors --json");
    assert_eq!(minimum["x"], serde_json::json!([220.0, 30.0]));
    assert_eq!(place.json("certify m.safetensors --json")["holds"], true);
    assert!(place.ok("inspect m.safetensors").contains("f32"));
}

#[test]
fn an_interrupted_fit_goes_on_where_it_was() {
    let place = Place::new();
    let command = format!("fit {} --target loss --hidden 32,32 --epochs 150", oven());
    place.ok(&format!("{command} -o whole.safetensors"));
    let arguments = format!("{command} -o part.safetensors");
    let mut child = place
        .command()
        .args(arguments.split_whitespace())
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Killed once there is a checkpoint.
    let folder = place.path("part.safetensors.checkpoints");
    let clock = std::time::Instant::now();
    let written = || {
        std::fs::read_dir(&folder).is_ok_and(|all| {
            all.flatten()
                .any(|e| e.file_name().to_string_lossy().ends_with(".safetensors"))
        })
    };
    while !written() && clock.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.exists("part.safetensors") && folder.exists());
    // Nothing is thrown away by mistake, and nothing else is taken for the same run.
    let again = place.run(&arguments);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("--resume"), "{}", again.stderr);
    let other = place.run(&format!("{arguments} --resume --seed 7"));
    assert_eq!(other.code, 2);
    assert!(
        other.stderr.contains("other data or settings"),
        "{}",
        other.stderr
    );
    let resumed = place.run(&format!("{arguments} --resume"));
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert!(
        resumed.stderr.contains("resumed after epoch"),
        "{}",
        resumed.stderr
    );
    assert!(!folder.exists());
    let bytes = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert_eq!(bytes("whole.safetensors"), bytes("part.safetensors"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_word_and_no_model() {
    let place = Place::new();
    let arguments = format!("fit {} --target loss --epochs 100000 -o m.safetensors", oven());
    let child = place
        .command()
        .args(arguments.split_whitespace())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let clock = std::time::Instant::now();
    while !place.exists("m.safetensors.checkpoints") && clock.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let status = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    let run = common::Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, 130);
    assert!(run.stderr.contains("--resume"), "{}", run.stderr);
    assert_eq!(place.names(), ["m.safetensors.checkpoints"]);
}

#[test]
fn models_of_many_inputs_are_drawn_as_slices() {
    let place = Place::new();
    place.ok(&format!(
        "fit {} --target loss {QUICK} -o m.safetensors",
        humidity()
    ));
    place.ok("plot m.safetensors -o a.svg");
    assert!(place.read("a.svg").contains("loss at humidity ="));
    place.ok("plot m.safetensors --axes humidity,minutes --range 20:80,10:50 -o b.svg");
    assert!(place.read("b.svg").contains("loss at temperature ="));
    place.ok("plot m.safetensors --axes 2 -o -");
}

#[test]
fn weights_are_exported_as_tables() {
    let place = Place::new();
    place.ok(&format!("fit {} --target loss {QUICK} -o m.safetensors", oven()));
    place.ok("export m.safetensors --csv csv --npy npy");
    let (_, s) = parse_csv(&std::fs::read_to_string(place.path("csv/monotone.0.s.csv")).unwrap());
    assert_eq!((s.len(), s[0].len()), (16, 2));
    let npy = std::fs::read(place.path("npy/monotone.0.s.npy")).unwrap();
    let last = f64::from_le_bytes(npy[npy.len() - 8..].try_into().unwrap());
    assert_eq!(last, s[15][1]);
    assert!(place.exists("csv/input.scale.csv") && place.exists("npy/orthogonal.2.bias.npy"));
}

#[test]
fn benches_report_what_they_say() {
    let place = Place::new();
    for what in ["train", "forward", "inverse"] {
        let report = place.json(&format!("bench {what} --config step --seconds 0.2 --json"));
        for key in ["config", "device", "median_ms", "p10_ms", "p90_ms"] {
            assert!(!report[key].is_null(), "{what}: {key}");
        }
        assert!(report["p10_ms"].as_f64() <= report["median_ms"].as_f64());
        if what != "inverse" {
            let share = report["gemm_share"].as_f64().unwrap();
            assert!(share > 0.0 && share < 1.5 && report["gflops"].as_f64().unwrap() > 0.0);
        }
        assert!(
            place
                .ok(&format!("bench {what} --config step --seconds 0.2"))
                .contains("median")
        );
    }
}

#[test]
fn a_minimum_in_a_box_has_a_proved_gap() {
    let place = Place::new();
    place.ok(&format!(
        "fit {} --target loss --hidden 16,16 --epochs 20 -o m.safetensors",
        oven()
    ));
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let free = place.json("minimize m.safetensors --json");
    assert_eq!(free["at"]["temperature"], free["x"][0]);
    assert_eq!(free["within_data"], true);
    // The minimum without a box is within the data.
    let data = place.json("minimize m.safetensors --box data --json");
    assert_eq!(data["inside"], true);
    assert!((number(&data["value"]) - number(&free["value"])).abs() <= 1e-9 * number(&free["value"]).abs());
    let edge = number(&free["x"][0]) + 20.0;
    let found = place.json(&format!(
        "minimize m.safetensors --box temperature={edge}: --json"
    ));
    assert_eq!(
        (&found["status"], &found["inside"]),
        (&"converged".into(), &false.into())
    );
    assert_eq!(number(&found["at"]["temperature"]), edge);
    assert!(number(&found["cells"]) >= 1.0 && number(&found["gap"]) <= 1e-6 * number(&found["spread"]));
    assert!(number(&found["lower"]) > number(&free["value"]));
    // No value in the box is below it.
    let rows: String = (0..400)
        .map(|k| format!("{},{}\n", edge + f64::from(k % 20), 4 * (k / 20)))
        .collect();
    place.write("x.csv", format!("temperature,minutes\n{rows}"));
    place.ok("eval m.safetensors -i x.csv -o y.csv");
    for row in place.csv("y.csv").1 {
        assert!(number(&found["lower"]) <= row[0] + 1e-9, "{row:?}");
    }
    let fixed = place.json(&format!(
        "minimize m.safetensors --fix temperature={edge},minutes=30 --json"
    ));
    assert_eq!(fixed["x"], serde_json::json!([edge, 30.0]));
    assert!(number(&fixed["value"]) >= number(&found["lower"]));
    let text = place.ok(&format!(
        "minimize m.safetensors --box \"temperature\"={edge}:400,minutes=:50"
    ));
    assert!(
        text.contains("minimum in the box loss = ") && text.contains("every value in the box >= "),
        "{text}"
    );
    // A gap that cannot be reached is stated, and is no success.
    let run = place.run("minimize m.safetensors --box temperature=0:100 --gap 1e-300");
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stderr.contains("the proved gap is "), "{}", run.stderr);
    // A model that leads out of its data says so.
    let rows: String = (0..60)
        .map(|k| format!("{k},{}\n", (k + 40) * (k + 40)))
        .collect();
    place.write("slope.csv", format!("a,y\n{rows}"));
    place.ok("fit slope.csv --target y --hidden 8,8 --epochs 20 -o s.safetensors");
    let text = place.ok("minimize s.safetensors");
    if place.json("minimize s.safetensors --json")["within_data"] == false {
        assert!(text.contains("--box data"), "{text}");
    }
    let data = place.json("minimize s.safetensors --box data --json");
    let at = number(&data["at"]["a"]);
    assert!((0.0..=59.0).contains(&at), "{at}");
}

#[test]
fn the_value_of_the_minimum_depends_on_the_parameters() {
    let place = Place::new();
    let rows: String = (0..600)
        .map(|k| {
            let (x, p) = (f64::from(k % 25) / 12.0 - 1.0, f64::from(k / 25) / 12.0 - 1.0);
            format!("{x},{p},{}\n", 2.0 * (x - 0.5 * p).powi(2) + 5.0 * p)
        })
        .collect();
    place.write("t.csv", format!("x,p,y\n{rows}"));
    let fit = |more: &str, file: &str| {
        let summary = place.json(&format!(
            "fit t.csv --target y --params p --hidden 8,8 --epochs 40 --json {more} -o {file}"
        ));
        summary["train_rmse"][0].as_f64().unwrap()
    };
    let with = fit("", "with.safetensors");
    let constant = fit("--constant-offset", "constant.safetensors");
    assert!(with < 0.2 * constant, "{with} {constant}");
    assert_eq!(place.json("certify with.safetensors --json")["holds"], true);
    place.write("p.csv", "p\n-0.8\n0.8\n");
    let minima = place.json("minimize with.safetensors --at p.csv --json");
    for (k, p) in [-0.8, 0.8].into_iter().enumerate() {
        let value = minima[k]["value"].as_f64().unwrap();
        assert!((value - 5.0 * p).abs() < 0.5, "{value} at {p}");
        let x = minima[k]["at"]["x"].as_f64().unwrap();
        assert!((x - 0.5 * p).abs() < 0.3, "{x} at {p}");
    }
    assert!(
        place
            .ok("inspect with.safetensors")
            .contains("offset network: [1, 64, 64, 1]")
    );
    place.ok("export with.safetensors --onnx with.onnx");
    // In a box, too.
    let bounded = place.json("minimize with.safetensors --at p.csv --box x=0.6: --json");
    assert!(bounded[1]["lower"].as_f64() >= minima[1]["value"].as_f64());
    let run = place.run("fit t.csv --target y --constant-offset -o m.safetensors");
    assert_eq!(run.code, 2);
    assert!(
        run.stderr
            .contains("--constant-offset: only a plnet of parameters"),
        "{}",
        run.stderr
    );
}

#[test]
fn help_fits_the_screen_and_has_an_example() {
    let place = Place::new();
    let top = place.ok("--help");
    for command in [
        "fit",
        "eval",
        "invert",
        "minimize",
        "certify",
        "inspect",
        "plot",
        "import",
        "export",
        "bench",
        "repro",
        "data",
        "completions",
        "man",
    ] {
        assert!(top.contains(command), "{command}");
        let run = place
            .command()
            .args([command, "--help"])
            .env("COLUMNS", "120")
            .output()
            .unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        assert!(text.contains("Example:\n  bilip "), "{command} has no example");
        // A tall terminal for the one with all the settings, an ordinary one for the others.
        let lines = text.lines().count();
        assert!(
            lines <= if command == "fit" { 80 } else { 30 },
            "{command}: {lines} lines"
        );
        assert!(
            text.lines().all(|l| l.chars().count() <= 120),
            "{command}: a line is too long"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.ok(&format!("completions {shell}")).contains("minimize"));
    }
    assert!(place.ok("man").contains(".TH bilip"));
    assert!(place.ok("man fit").contains("\\-\\-tau"));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let place = Place::new();
    place.ok(&format!("fit {} --target loss {QUICK} -o m.safetensors", oven()));
    let mut big = String::from("temperature,minutes\n");
    for k in 0..100_000 {
        big += &format!("{},20\n", 200 + k % 7);
    }
    place.write("big.csv", big);
    let mut child = place
        .command()
        .args(["eval", "m.safetensors", "-i", "big.csv"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_model_that_does_not_keep_its_bounds_is_found_out() {
    use bilip::{Activation, Bounds, Model, MonLip, MonLipExplicit, MonLipFree, Network, RandomLayer, Rng};
    let place = Place::new();
    let bounds = Bounds::new(0.5, 4.0).unwrap();
    let free = MonLipFree::random(&RandomLayer::new(2, &[6, 6], bounds), &mut Rng::new(1)).unwrap();
    let (v, s) = free.explicit_weights().unwrap();
    // Weights a thousandth too large.
    let explicit = MonLipExplicit {
        bounds,
        activation: Activation::Relu,
        v,
        s: s * bilip::faer::Scale(1.001),
        psi: None,
        hidden_bias: free.hidden_bias.clone(),
        output_bias: free.output_bias.clone(),
    };
    let model = Model::from(Network::MonLip(MonLip::from_explicit(explicit).unwrap()));
    model.save(place.path("m.safetensors")).unwrap();
    let run = place.run("certify m.safetensors --json");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let certificate: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(certificate["holds"], false);
    assert!(certificate["certified_nu"].as_f64().unwrap() > 4.0);
    assert!(certificate["certified_mu"].as_f64().unwrap() <= 0.5);
    assert!(place.run("certify m.safetensors").stdout.contains("NOT proved"));
    // Nothing is called proved that rests on it.
    place.write("y.csv", "1,2\n");
    let run = place.run("invert m.safetensors -i y.csv");
    assert_eq!(run.code, 1);
    assert!(
        run.stdout.is_empty() && run.stderr.contains("nothing was computed"),
        "{}",
        run.stderr
    );
}

#[test]
fn experiments_run_in_their_short_version_and_make_a_page() {
    let place = Place::new();
    place.ok("repro all --quick --seeds 1 --out out --jobs 2");
    for (name, figure, keys) in [
        (
            "step",
            "step",
            vec!["loss", "slope_min", "slope_max", "certified_mu", "certified_nu"],
        ),
        (
            "rosenbrock",
            "surfaces",
            vec![
                "plnet(0.04,16).grid_loss",
                "plnet(0.04,16).value_at_minimum",
                "mlp.max_error",
                "random_search.value",
            ],
        ),
        (
            "rosenbrock-sine",
            "errors",
            vec!["plnet(0.5,2).train_loss", "icnn.grid_loss"],
        ),
        ("parametric", "contours", vec!["partial-plnet(0.04,16).test_loss"]),
        (
            "rosenbrock20",
            "distortion",
            vec!["plnet(5).test_loss", "plnet(5).mu", "plnet(5).value_at_minimum"],
        ),
        ("solver", "solver", vec!["newton.steps_to_1e-10.tau5"]),
        ("inverse", "inverse", vec!["newton.steps_to_1e-6(n8,6x64)"]),
        (
            "cifar10",
            "corruptions",
            vec!["bilipnet(0.65).accuracy", "bilipnet(0.65).certified_nu"],
        ),
    ] {
        let result: serde_json::Value =
            serde_json::from_str(&place.read(&format!("out/{name}/result.json"))).unwrap();
        for key in keys {
            let entry = &result["summary"][key];
            assert!(
                entry["mean"].is_number(),
                "{name}: {key} in {:?}",
                result["summary"]
            );
            for part in ["std", "seeds", "paper", "published_code"] {
                assert!(entry.get(part).is_some(), "{name}: {key}.{part}");
            }
        }
        assert!(
            place
                .read(&format!("out/{name}/{figure}.svg"))
                .starts_with("<svg")
        );
        assert!(
            place
                .read(&format!("out/{name}/README.md"))
                .contains("| metric |")
        );
    }
    // The certified bounds are those asked for, and measured slopes are between them.
    let step: serde_json::Value = serde_json::from_str(&place.read("out/step/result.json")).unwrap();
    let mean = |key: &str| step["summary"][key]["mean"].as_f64().unwrap();
    assert!(mean("certified_mu") >= 0.1 && mean("certified_nu") <= 10.0);
    assert!(mean("slope_min") >= 0.1 * (1.0 - 1e-9) && mean("slope_max") <= 10.0 * (1.0 + 1e-9));
    // What was trained on images is kept.
    assert!(
        place
            .path("out/cifar10/models/bilipnet_0.65_-seed0.mpk")
            .is_file()
    );
    // A second time nothing is trained.
    let again = place.run("repro step --quick --seeds 1 --out out/step");
    assert!(
        again.stderr.contains("6 of 6 runs are there already"),
        "{}",
        again.stderr
    );
    // What is there is not taken for something else.
    let other = place.run("repro step --quick --seeds 1 --epochs 3 --out out/step");
    assert_eq!(other.code, 2);
    assert!(other.stderr.contains("epochs 2 instead of 3"), "{}", other.stderr);
    // Without the networks of another experiment it says how to come by them; short versions have a
    // folder of their own.
    let alone = place.run("repro solver --quick");
    assert_eq!(alone.code, 2);
    for part in [
        "results-quick/rosenbrock20/models",
        "bilip repro rosenbrock20 --quick --only",
    ] {
        assert!(alone.stderr.contains(part), "{}", alone.stderr);
    }
    assert!(place.ok("repro report --out out").contains("9 experiments"));
    let page = place.read("out/report.html");
    for part in ["<svg", "rosenbrock20", "published", "bilip repro step"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        !page.contains("href=\"http") && !page.contains("src="),
        "the page stands alone"
    );
}

#[test]
fn a_search_says_what_its_answer_is_worth() {
    let place = Place::new();
    let found = place.json(&format!(
        "fit {} --target loss --hidden 16,16 --budget 0.05 -o m.safetensors --json",
        oven()
    ));
    let answer = &found["answer"];
    for key in ["temperature", "minutes"] {
        for value in [&answer["x"], &answer["spread"]["x"], &answer["best_row"]["x"]] {
            assert!(value[key].is_number(), "{key}");
        }
    }
    assert_eq!(answer["inside_data"], true);
    assert_eq!(answer["single_minimum"], true);
    assert!(
        answer["rows_below"].is_number() && answer["interval"][0].as_f64() < answer["interval"][1].as_f64()
    );
    assert!(found["search"]["trials"].as_array().unwrap().len() > 9);
    assert!(found["search"]["chosen"]["activation"].is_string());
    assert!(!place.exists("m.safetensors.checkpoints"));
    assert_eq!(place.json("minimize m.safetensors --json")["answer"], *answer);
    // What is given by hand is kept.
    let run = place.run(&format!(
        "fit {} --target loss --hidden 16,16 --budget 0.05 -o m.safetensors --json --activation tanh --tau 30",
        oven()
    ));
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(found["search"]["chosen"]["activation"], "tanh");
    assert!(found["certificate"]["distortion"].as_f64().unwrap() <= 31.0 * 16.0);
    // Several minima: the summary begins with that.
    let mut rows = String::from("a,b,y\n");
    for k in 0..400 {
        let (a, b) = ((k % 20) as f64 / 10.0 - 0.95, (k / 20) as f64 / 10.0 - 0.95);
        rows += &format!("{a},{b},{}\n", (4.0 * a * a - 1.0).powi(2) + b * b);
    }
    place.write("wells.csv", rows);
    let run = place.run("fit wells.csv --target y --hidden 16,16 --budget 0.1 -o w.safetensors");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let again = place.run("minimize w.safetensors");
    assert_eq!(again.code, 1);
    assert!(again.stdout.starts_with("DOUBTFUL   "), "{}", again.stdout);
    assert!(
        run.stdout.starts_with("DOUBTFUL   ") && run.stdout.contains("single minimum"),
        "{}",
        run.stdout
    );
}

#[test]
fn intervals_cover_the_rows_they_are_asked_to() {
    let place = Place::new();
    place.ok(&format!(
        "fit {} --target loss --hidden 16,16 --epochs 20 -o m.safetensors",
        oven()
    ));
    let table = place.ok(&format!("eval m.safetensors -i {} --interval 0.9", oven()));
    assert!(
        table.starts_with("loss,loss_low,loss_high,outside_data\n"),
        "{table:.80}"
    );
    let (_, found) = parse_csv(&table);
    let (_, measured) = parse_csv(&std::fs::read_to_string(oven()).unwrap());
    let covered = (found.iter().zip(&measured))
        .filter(|(f, m)| f[1] <= m[2] && m[2] <= f[2])
        .count();
    let share = covered as f64 / found.len() as f64;
    assert!((0.85..=0.95).contains(&share), "{share}");
    assert!(found.iter().all(|row| row[3] == 0.0));
    place.write("far.csv", "temperature,minutes\n900,30\n");
    let (_, far) = parse_csv(&place.ok("eval m.safetensors -i far.csv --interval 0.5"));
    assert_eq!(far[0][3], 1.0);
    for (share, what) in [
        ("0.9999", "rows that it had not seen"),
        ("1.5", "between 0 and 1"),
    ] {
        let run = place.run(&format!("eval m.safetensors -i far.csv --interval {share}"));
        assert_eq!((run.code, run.stderr.lines().count()), (2, 1));
        assert!(run.stderr.contains(what), "{}", run.stderr);
    }
    place.ok(&format!(
        "fit {} --target loss --epochs 2 --hidden 4 --validation 0 -o n.safetensors",
        oven()
    ));
    assert_eq!(place.run("eval n.safetensors -i far.csv --interval 0.5").code, 2);
}
