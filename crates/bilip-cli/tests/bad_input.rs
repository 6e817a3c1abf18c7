//! Bad input: a message that says what, where and what to do, exit code 2, nothing written, never a
//! panic.

mod common;

use common::{Place, QUICK, repository};

/// The files that the cases are about.
fn prepare() -> Place {
    let place = Place::new();
    let oven = std::fs::read_to_string(repository("examples/oven.csv")).unwrap();
    let lens = std::fs::read_to_string(repository("examples/lens.csv")).unwrap();
    let head = |text: &str, lines: usize| text.lines().take(lines).collect::<Vec<_>>().join("\n") + "\n";
    let good = head(&oven, 101);
    place.write("good.csv", &good);
    place.write("lens.csv", head(&lens, 101));
    place.write("empty.csv", "");
    place.write("header.csv", "a,b,c\n");
    place.write("one.csv", head(&oven, 2));
    place.write("nan.csv", good.replacen("\n", "\n200,nan,1\n", 1));
    place.write("inf.csv", good.replacen("\n", "\n200,20,inf\n", 1));
    place.write("hole.csv", good.replacen("\n", "\n200,,1\n", 1));
    place.write("text.csv", good.replacen("\n", "\n200,twenty,1\n", 1));
    place.write("short.csv", good.replacen("\n", "\n200,20\n", 1));
    place.write(
        "twice.csv",
        good.replacen("temperature,minutes", "minutes,minutes", 1),
    );
    place.write(
        "unnamed.csv",
        good.replacen("temperature,minutes", "temperature,", 1),
    );
    let words = |class: &dyn Fn(usize) -> String| -> String {
        (0..20)
            .map(|k| format!("{},{k},{}\n", k * k, class(k)))
            .collect::<String>()
    };
    place.write("one-class.csv", format!("a,b,class\n{}", words(&|_| "x".into())));
    place.write(
        "many-classes.csv",
        format!("a,b,class\n{}", words(&|k| format!("c{k}"))),
    );
    place.write(
        "class-hole.csv",
        format!("a,b,class\n{}", words(&|k| ["x", "y", ""][k % 3].into())),
    );
    place.write(
        "classes.csv",
        format!("a,b,class\n{}", words(&|k| ["x", "y"][k % 2].into())),
    );
    place.write("binary.csv", [0xff, 0xfe, 0x00, 0x80, 0x81]);
    place.write("fake.npy", "1,2,3\n");
    place.write("table.parquet", "PAR1");
    let constant: String = (0..20).map(|k| format!("5,{k},{}\n", k * k)).collect();
    place.write("constant.csv", constant);
    let flat: String = (0..20).map(|k| format!("{},{k},7\n", k * k)).collect();
    place.write("flat.csv", flat);
    let huge: String = (0..20).map(|k| format!("{k},{}e307,1\n", 1 + k % 7)).collect();
    place.write("huge.csv", huge);
    // NumPy files: cut short, of three dimensions, of text.
    let npy = |header: &str, data: &[u8]| {
        let mut text = header.to_string();
        while !(text.len() + 11).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    };
    let shape = |shape: &str, kind: &str| {
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}")
    };
    place.write("cut.npy", npy(&shape("(20, 3)", "<f8"), &[0; 100]));
    place.write(
        "lie.npy",
        npy(&shape("(4000000000, 4000000000)", "<f8"), &[0; 16]),
    );
    place.write("cube.npy", npy(&shape("(2, 2, 2)", "<f8"), &[0; 64]));
    place.write("words.npy", npy(&shape("(2, 2)", "<U1"), &[0; 16]));
    // Models: good ones of several kinds, and damaged ones.
    place.ok(&format!("fit good.csv --target loss {QUICK} -o pl.safetensors"));
    place.ok(&format!(
        "fit lens.csv --target u,v --model bilipnet {QUICK} -o map.safetensors"
    ));
    place.ok(&format!(
        "fit good.csv --target loss --inputs temperature --params minutes {QUICK} -o partial.safetensors"
    ));
    let model = std::fs::read(place.path("pl.safetensors")).unwrap();
    place.write("truncated.safetensors", &model[..model.len() / 2]);
    place.write("garbage.safetensors", "this is not a model");
    place.write("newer.safetensors", {
        let text = String::from_utf8_lossy(&model[..model.len().min(12_000)]).into_owned();
        let at = text.find("format_version\\\":1").unwrap() + "format_version\\\":".len();
        let mut newer = model.clone();
        newer[at] = b'9';
        newer
    });
    let fixture = repository("crates/bilip/tests/fixtures/plnet.safetensors");
    std::fs::copy(fixture, place.path("weights.safetensors")).unwrap();
    place.write("x.csv", "200,20\n");
    place.write("swapped.csv", "Minutes,Temperature\n20,200\n");
    place.write("far.csv", "1e200,20\n");
    let numbers = good.split_once('\n').unwrap().1;
    place.write("damaged.csv", format!("1,NA,3\n{numbers}"));
    place.write("damaged2.csv", format!("1.0,2.0x,3.0\n{numbers}"));
    place.write("single.csv", "200\n");
    place.write("wide.csv", "1,2,3,4,5\n");
    place.write("kind.toml", "kind = \"resnet\"\n");
    place.write("n.toml", "n = 17\n");
    place.write("units.toml", "units = [3]\n");
    place.write("key.toml", "widths = [12, 12]\n");
    place.write("syntax.toml", "kind = = 3\n");
    place.write("gelu.toml", "activation = \"gelu\"\n");
    place.write("nu.toml", "mu = 3.0\nnu = 1.0\n");
    std::fs::create_dir(place.path("folder")).unwrap();
    let path = place.write("locked.safetensors", "");
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    place
}

#[test]
fn every_bad_input_is_one_clear_message() {
    let place = prepare();
    let fit = |data: &str, more: &str| format!("fit {data} --target loss {QUICK} {more} -o out.safetensors");
    let cases: Vec<(String, &str)> = vec![
        // Files.
        (fit("missing.csv", ""), "missing.csv: No such file"),
        (fit("empty.csv", ""), "empty.csv: the file is empty"),
        (fit("header.csv", ""), "header.csv: there are no rows"),
        (fit("folder", ""), "folder: is a folder"),
        (fit("one.csv", ""), "1 rows are too few"),
        (
            fit("nan.csv", ""),
            "nan.csv, line 2, column minutes: nan stands for a missing value; 1 missing value in 1 row: --na drop leaves out the row",
        ),
        (
            fit("inf.csv", ""),
            "inf.csv, line 2, column loss: inf is not a finite",
        ),
        (
            fit("hole.csv", ""),
            "hole.csv, line 2, column minutes: the cell is empty",
        ),
        (
            fit("text.csv", ""),
            "text.csv, line 2, column minutes: \"twenty\" is not a number",
        ),
        (fit("short.csv", ""), "short.csv, line 2: 2 cells where 3"),
        (fit("twice.csv", ""), "two columns are called \"minutes\""),
        (fit("unnamed.csv", ""), "column 2 has no name"),
        (fit("binary.csv", ""), "begins like text in UTF-16 and is damaged"),
        (fit("fake.npy", ""), "not a NumPy file"),
        (fit("table.parquet", ""), "table.parquet: "),
        (fit("cut.npy", ""), "cut.npy: the file is cut short"),
        (fit("lie.npy", ""), "lie.npy: the file is cut short"),
        (fit("cube.npy", ""), "no column \"loss\""),
        (fit("words.npy", ""), "words.npy"),
        (
            "fit constant.csv --target 3 --inputs 1,2 -o out.safetensors".into(),
            "input column 1: its values are all alike",
        ),
        (
            "fit flat.csv --target 3 -o out.safetensors".into(),
            "target column 3: its values are all alike",
        ),
        ("fit huge.csv --target 1 -o out.safetensors".into(), "column 2"),
        (
            "fit damaged.csv --target 3 -o out.safetensors".into(),
            "damaged.csv, line 1, column 2: NA stands for a missing value",
        ),
        (
            "fit damaged2.csv --target 3 -o out.safetensors".into(),
            "\"2.0x\" is not a number",
        ),
        // Columns.
        (
            "eval pl.safetensors -i swapped.csv".into(),
            "2 columns of other names",
        ),
        ("eval pl.safetensors -i far.csv".into(), "out of range"),
        (
            "fit good.csv --target price -o out.safetensors".into(),
            "no column \"price\"; there are temperature, minutes, loss",
        ),
        (
            "fit good.csv --target 9 -o out.safetensors".into(),
            "no column \"9\"",
        ),
        ("fit good.csv -o out.safetensors".into(), "--target"),
        (
            "fit good.csv --target loss,minutes -o out.safetensors".into(),
            "a plnet has one target, not 2",
        ),
        (
            "fit good.csv --target loss --model bilipnet -o out.safetensors".into(),
            "1 targets for 2 inputs",
        ),
        (fit("good.csv", "--inputs loss"), "column \"loss\" is named twice"),
        (
            fit("good.csv", "--params minutes --inputs minutes"),
            "column \"minutes\" is named twice",
        ),
        (
            "fit x.csv --target 1,2 --model monlip -o out.safetensors".into(),
            "no columns are left",
        ),
        // Bounds.
        (fit("good.csv", "--mu 1 --nu 10 --tau 5"), "--mu, --nu, --tau"),
        (fit("good.csv", "--mu 10 --nu 1"), "nu"),
        (fit("good.csv", "--mu 0 --nu 1"), "mu"),
        (fit("good.csv", "--mu -1 --nu 1"), "mu"),
        (fit("good.csv", "--mu 1 --nu 1"), "nu"),
        (fit("good.csv", "--mu nan --nu 1"), "mu"),
        (fit("good.csv", "--mu 1"), "--mu, --nu, --tau"),
        (fit("good.csv", "--tau 1"), "distortion"),
        (fit("good.csv", "--tau 0.5"), "distortion"),
        (fit("good.csv", "--tau inf"), "distortion"),
        (fit("good.csv", "--mu 1e-200 --nu 1"), "mu"),
        // Sizes and settings.
        (
            "fit good.csv --target loss --hidden 0 -o out.safetensors".into(),
            "--hidden: every width",
        ),
        (
            "fit good.csv --target loss --hidden 8,-3 -o out.safetensors".into(),
            "--hidden",
        ),
        (
            "fit good.csv --target loss --hidden 99999999 -o out.safetensors".into(),
            "the limit is",
        ),
        (
            "fit good.csv --target loss --hidden 18446744073709551615 -o out.safetensors".into(),
            "the limit is",
        ),
        (fit("good.csv", "--blocks 0"), "--blocks 0"),
        (fit("good.csv", "--blocks 999999999"), "the limit is"),
        (fit("good.csv", "--householder 0"), "--householder 0"),
        (
            fit("good.csv", "--householder 1000000000000000000"),
            "the limit is",
        ),
        (fit("good.csv", "--per-column --no-standardize"), "--per-column"),
        (fit("good.csv", "--activation swoosh"), "swoosh"),
        (fit("good.csv", "--activation gelu"), "gelu"),
        (
            "fit good.csv --target loss --epochs 0 -o out.safetensors".into(),
            "--epochs 0",
        ),
        (
            "fit good.csv --target loss --batch 0 -o out.safetensors".into(),
            "--batch 0",
        ),
        (fit("good.csv", "--lr -1"), "--lr -1"),
        (fit("good.csv", "--lr nan"), "--lr"),
        (fit("good.csv", "--lr 1e9"), "no longer a number"),
        (fit("good.csv", "--decay -1"), "--decay -1"),
        (fit("good.csv", "--clip 0"), "clip"),
        (fit("good.csv", "--validation 1.5"), "--validation 1.5"),
        (
            fit("good.csv", "--validation 0 --patience 3"),
            "--patience: needs held-out rows",
        ),
        (fit("good.csv", "--minimum 1"), "--minimum: 2 numbers"),
        (fit("good.csv", "--minimum 1,nan"), "--minimum: 2 numbers"),
        (
            fit("good.csv", "--params minutes --minimum 1"),
            "--minimum: only a plnet without parameters",
        ),
        (
            "fit lens.csv --target u,v --model monlip --blocks 3 -o out.safetensors".into(),
            "--blocks: a monotone layer",
        ),
        (
            "fit lens.csv --target u --inputs azimuth --params v --model monlip -o out.safetensors".into(),
            "--params: a monotone layer",
        ),
        (fit("good.csv", "--device cuda"), "device cuda: "),
        (fit("good.csv", "--device gpu"), "must be cpu, cuda"),
        (fit("good.csv", "--device cuda:x"), "must be cpu, cuda"),
        (fit("good.csv", "--model resnet"), "resnet"),
        (fit("good.csv", "--no-such-option"), "--no-such-option"),
        // Outputs.
        (
            format!("fit good.csv --target loss {QUICK} -o nowhere/out.safetensors"),
            "nowhere/out.safetensors",
        ),
        (
            format!("fit good.csv --target loss {QUICK} -o folder"),
            "folder: is a folder",
        ),
        (
            format!("fit good.csv --target loss {QUICK} -o good.csv"),
            "good.csv: is named twice",
        ),
        (
            format!("fit good.csv --target loss {QUICK} -o locked.safetensors"),
            "locked.safetensors: is read-only",
        ),
        (fit("good.csv", "--metrics nowhere/run.csv"), "nowhere/run.csv"),
        (
            "eval pl.safetensors -i x.csv -o x.csv".into(),
            "x.csv: is named twice",
        ),
        (
            "eval pl.safetensors -i x.csv -o pl.safetensors".into(),
            "pl.safetensors: is named twice",
        ),
        (
            "invert map.safetensors -i lens.csv -o r.csv --report r.csv".into(),
            "r.csv: is named twice",
        ),
        (fit("good.csv", "--metrics out.safetensors"), "is named twice"),
        (
            format!("fit good.csv --target loss {QUICK} -o -"),
            "cannot go to standard output",
        ),
        (fit("good.csv", "--metrics -"), "cannot go to standard output"),
        ("plot pl.safetensors -o picture.png".into(), "written as .svg"),
        (
            "export pl.safetensors --csv good.csv".into(),
            "good.csv: is a file",
        ),
        ("export pl.safetensors".into(), "--onnx"),
        (
            "export pl.safetensors --onnx nowhere/m.onnx".into(),
            "nowhere/m.onnx",
        ),
        // Models.
        ("certify missing.safetensors".into(), "missing.safetensors"),
        ("certify truncated.safetensors".into(), "truncated.safetensors: "),
        ("certify garbage.safetensors".into(), "garbage.safetensors: "),
        ("certify newer.safetensors".into(), "format version 9"),
        ("certify empty.csv".into(), "empty.csv"),
        ("certify folder".into(), "folder"),
        ("inspect weights.safetensors".into(), "bilip import"),
        (
            "eval truncated.safetensors -i x.csv".into(),
            "truncated.safetensors",
        ),
        ("eval pl.safetensors -i missing.csv".into(), "missing.csv"),
        (
            "eval pl.safetensors -i wide.csv".into(),
            "2 inputs (temperature, minutes), the table 5 columns",
        ),
        (
            "invert pl.safetensors -i x.csv".into(),
            "has no inverse; bilip minimize",
        ),
        (
            "invert map.safetensors -i wide.csv".into(),
            "2 outputs (u, v), the table 5 columns",
        ),
        ("invert map.safetensors -i x.csv --method magic".into(), "magic"),
        ("invert map.safetensors -i x.csv --tol -1".into(), "tolerance"),
        ("invert map.safetensors -i x.csv --tol nan".into(), "tolerance"),
        (
            "invert map.safetensors -i x.csv --max-iterations 0".into(),
            "max_iterations",
        ),
        ("minimize map.safetensors".into(), "has no minimum"),
        (
            "minimize pl.safetensors --at 3".into(),
            "--at is for partial models",
        ),
        (
            "minimize partial.safetensors".into(),
            "needs its parameters (minutes)",
        ),
        (
            "minimize partial.safetensors --at 3,4".into(),
            "2 numbers, but the model has 1 parameters",
        ),
        (
            "minimize partial.safetensors --at nan".into(),
            "not a finite number",
        ),
        (
            "minimize partial.safetensors --at missing.csv".into(),
            "missing.csv",
        ),
        (
            "minimize pl.safetensors --box pressure=0:1".into(),
            "no input \"pressure\"; its inputs are temperature, minutes",
        ),
        (
            "minimize pl.safetensors --box minutes=9:2".into(),
            "must not be the larger",
        ),
        (
            "minimize pl.safetensors --box minutes=nan:2".into(),
            "\"nan\" is not a number",
        ),
        (
            "minimize pl.safetensors --box minutes".into(),
            "give NAME=LOW:HIGH",
        ),
        ("minimize pl.safetensors --box minutes=3".into(), "give LOW:HIGH"),
        (
            "minimize pl.safetensors --box minutes=1:2,minutes=1:3".into(),
            "minutes is there twice",
        ),
        (
            "minimize pl.safetensors --box minutes=inf:".into(),
            "no number in it",
        ),
        ("minimize pl.safetensors --box minutes=1:2,".into(), "is empty"),
        (
            "minimize pl.safetensors --fix minutes=9 --box minutes=1:2".into(),
            "contradicts --box",
        ),
        (
            "minimize pl.safetensors --fix minutes=inf".into(),
            "not a finite number",
        ),
        (
            "minimize pl.safetensors --fix minutes=1 --gap 0".into(),
            "tolerance = 0",
        ),
        (
            "minimize pl.safetensors --fix minutes=1 --max-cells 0".into(),
            "max_cells = 0",
        ),
        (
            "eval partial.safetensors -i single.csv --at wide.csv".into(),
            "5 columns, but the model has 1 parameters",
        ),
        ("plot pl.safetensors --axes 1,7 -o p.svg".into(), "no input \"7\""),
        (
            "plot pl.safetensors --axes 1,1 -o p.svg".into(),
            "one or two different inputs",
        ),
        (
            "plot pl.safetensors --range 3 -o p.svg".into(),
            "1 ranges for 2 axes",
        ),
        (
            "plot pl.safetensors --range 3:1,0:1 -o p.svg".into(),
            "must be the smaller",
        ),
        (
            "plot pl.safetensors --range a:b,0:1 -o p.svg".into(),
            "is not a number",
        ),
        (
            "plot pl.safetensors --data wide.csv -o p.svg".into(),
            "not the columns of the model",
        ),
        // Classes.
        (
            "fit one-class.csv --target class --model classifier -o out.safetensors".into(),
            "all rows of class are of one class (x)",
        ),
        (
            "fit many-classes.csv --target class --model classifier -o out.safetensors".into(),
            "20 different values in 20 rows, too many for classes",
        ),
        (
            "fit class-hole.csv --target class --model classifier -o out.safetensors".into(),
            "class-hole.csv, line 4, column class: the cell is empty",
        ),
        (
            "fit classes.csv --target class --model classifier --inputs a,text -o out.safetensors".into(),
            "no column \"text\"",
        ),
        (
            "fit classes.csv --target a,class --model classifier -o out.safetensors".into(),
            "one target",
        ),
        (
            "fit classes.csv --target class --params b --model classifier -o out.safetensors".into(),
            "--params: a classifier has none",
        ),
        (
            "fit classes.csv --target class --model classifier --width 1 -o out.safetensors".into(),
            "--width 1",
        ),
        (
            "fit classes.csv --target class --model classifier --features 0 -o out.safetensors".into(),
            "--features 0",
        ),
        (
            "fit classes.csv --target class --model classifier --length-scale -1 -o out.safetensors".into(),
            "--length-scale -1",
        ),
        (
            "fit good.csv --target loss --features 10 -o out.safetensors".into(),
            "--features: only for classifiers",
        ),
        (
            "fit classes.csv --target class --model plnet -o out.safetensors".into(),
            "classes are for classifiers",
        ),
        // Data.
        (
            "data cifar10 good.csv --from good.csv".into(),
            "is a file; name a folder",
        ),
        ("data cifar10 out --from missing.tgz".into(), "missing.tgz"),
        (
            "data cifar10 out --from good.csv".into(),
            "not a package's archive",
        ),
        ("data cifar11 out".into(), "cifar10"),
        (
            "repro cifar10 --out out --data missing".into(),
            "missing: there are no data; `bilip data cifar10 missing` makes them",
        ),
        (
            "bench inverse --config cifar10".into(),
            "--config cifar10: only training is timed",
        ),
        // Imports.
        (
            "import missing.safetensors --from plnet-jax -o out.safetensors".into(),
            "missing.safetensors",
        ),
        (
            "import garbage.safetensors --from plnet-jax -o out.safetensors".into(),
            "not a complete safetensors file",
        ),
        (
            "import pl.safetensors --from plnet-jax -o out.safetensors".into(),
            "is a bilip model already",
        ),
        (
            "import weights.safetensors --from robustnn-torch -o out.safetensors".into(),
            "is missing",
        ),
        (
            "import weights.safetensors --from elsewhere -o out.safetensors".into(),
            "elsewhere",
        ),
        (
            "import weights.safetensors --from plnet-jax --config kind.toml -o out.safetensors".into(),
            "kind \"resnet\" is not known",
        ),
        (
            "import weights.safetensors --from plnet-jax --config n.toml -o out.safetensors".into(),
            "says n = 17, the weights 4",
        ),
        (
            "import weights.safetensors --from plnet-jax --config units.toml -o out.safetensors".into(),
            "says units = [3]",
        ),
        (
            "import weights.safetensors --from plnet-jax --config key.toml -o out.safetensors".into(),
            "widths",
        ),
        (
            "import weights.safetensors --from plnet-jax --config syntax.toml -o out.safetensors".into(),
            "syntax.toml",
        ),
        (
            "import weights.safetensors --from plnet-jax --config gelu.toml -o out.safetensors".into(),
            "gelu",
        ),
        (
            "import weights.safetensors --from plnet-jax --config nu.toml -o out.safetensors".into(),
            "nu",
        ),
        (
            "import weights.safetensors --from plnet-jax --config missing.toml -o out.safetensors".into(),
            "missing.toml",
        ),
        // Experiments.
        ("repro nothing --out o".into(), "choose one of step"),
        ("repro step --seeds 0 --out o".into(), "seeds"),
        ("repro step --jobs 0 --out o".into(), "--jobs 0"),
        (
            "repro step --only alexnet --out o".into(),
            "no model has this in its name",
        ),
        ("repro step --config missing.toml --out o".into(), "missing.toml"),
        ("repro step --config key.toml --out o".into(), "key.toml"),
        (
            "repro all --config key.toml --out o".into(),
            "belongs to one experiment",
        ),
        ("repro solver --out o".into(), "bilip repro rosenbrock20 --only"),
        ("repro report --out folder".into(), "no results"),
        (
            "repro step --width 4 --out o".into(),
            "width: belongs to image networks",
        ),
        (
            "repro cifar10 --width 0 --out o".into(),
            "width: must be at least 1",
        ),
        (
            "repro cifar10 --c 0.5 --out o".into(),
            "c = 0.5: models have 0.35, 0.65, 0.95",
        ),
        ("repro step --device cuda:7".into(), "device cuda:7: "),
        // The rest.
        ("bench train --config step --device cuda".into(), "device cuda: "),
        (
            "bench forward --config step --device cuda".into(),
            "only training",
        ),
        ("bench train --config huge".into(), "huge"),
        ("bench train --config step --seconds 0".into(), "--seconds 0"),
        ("man nothing".into(), "no command \"nothing\""),
        ("frobnicate".into(), "frobnicate"),
    ];
    println!("{} cases", cases.len());
    let before = place.names();
    let mut wrong = Vec::new();
    for (arguments, message) in &cases {
        let run = place.run(arguments);
        let usage = run.stderr.contains("For more information, try");
        let mut complain = |what: String| {
            wrong.push(format!(
                "bilip {arguments}\n  {what}\n  {}",
                run.stderr.replace('\n', "\n  ")
            ))
        };
        if run.code != 2 {
            complain(format!("exit code {}", run.code));
        }
        if !run.stderr.contains(message) {
            complain(format!("the message lacks {message:?}"));
        }
        if run.stderr.contains("panicked") {
            complain("it panicked".into());
        }
        if !run.stdout.is_empty() {
            complain("something was printed".into());
        }
        // One or two lines; clap's own usage errors add a usage line and a hint.
        if run.stderr.trim().lines().count() > if usage { 10 } else { 2 } {
            complain("the message is too long".into());
        }
        if place.names() != before {
            complain(format!("files appeared: {:?}", place.names()));
            break;
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let place = prepare();
    // The device that is always full.
    let run = place.run("eval pl.safetensors -i x.csv -o /dev/full");
    assert_eq!(run.code, 2);
    let output = place
        .command()
        .args(["eval", "pl.safetensors", "-i", "x.csv"])
        .stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("standard output") && text.lines().count() == 1,
        "{text}"
    );
}
