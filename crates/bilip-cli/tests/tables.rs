//! Tables as they come: fitted all the same, or refused in one line with exit code 2.

mod common;

use common::{Place, Run};

/// Options of a fit that takes no time.
const TINY: &str = "--hidden 8 --epochs 2 --batch 20 -o m.safetensors";

/// A row of the table that the cases are about: a smooth function of two columns.
fn row(k: usize) -> (f64, f64, f64) {
    let (a, b) = ((k % 6) as f64, (k / 6) as f64 / 2.0);
    (a, b, (a - 2.0).powi(2) + (b - 1.0).powi(2))
}

fn table(header: &str, line: impl Fn(usize, (f64, f64, f64)) -> String) -> String {
    let lines: String = (0..36).map(|k| line(k, row(k)) + "\n").collect();
    format!("{header}\n{lines}")
}

/// Fits, expects success, and returns what was said on the way.
fn fit(place: &Place, arguments: &str) -> String {
    let run = place.run(&format!("fit {arguments} {TINY}"));
    assert_eq!(run.code, 0, "{arguments}\n{}", run.stderr);
    run.stderr
}

/// Expects one line and exit code 2.
fn refused(place: &Place, arguments: &str, message: &str) {
    let run = place.run(arguments);
    one_line(&run, arguments, message);
}

fn one_line(run: &Run, arguments: &str, message: &str) {
    assert_eq!(run.code, 2, "{arguments}\n{}", run.stderr);
    assert!(run.stderr.contains(message), "{arguments}\n{}", run.stderr);
    assert_eq!(run.stderr.trim().lines().count(), 1, "{}", run.stderr);
}

fn inputs(place: &Place) -> serde_json::Value {
    let model = place.json("inspect m.safetensors --json");
    serde_json::from_str(model["provenance"]["inputs"].as_str().unwrap()).unwrap()
}

#[test]
fn the_same_table_in_every_dress_gives_the_same_model() {
    use std::io::Write;
    let place = Place::new();
    let plain = table("a,b,y", |_, (a, b, y)| format!("{a},{b},{y}"));
    place.write("plain.csv", &plain);
    let comma = |v: f64| v.to_string().replace('.', ",");
    place.write(
        "comma.csv",
        table("a;b;y", |_, (a, b, y)| {
            format!("{};{};{}", comma(a), comma(b), comma(y))
        }),
    );
    place.write(
        "comments.csv",
        format!("# by hand\n%\n{}", plain.replacen("\n", "\n# rows\n", 1)),
    );
    place.write(
        "spaces.txt",
        table("# a b y", |_, (a, b, y)| format!(" {a}  {b} {y}")),
    );
    place.write(
        "index.csv",
        table(",a,b,y", |k, (a, b, y)| format!("{k},{a},{b},{y}")),
    );
    place.write(
        "rownames.txt",
        table("\"a\" \"b\" \"y\"", |k, (a, b, y)| {
            format!("\"r{k}\" {a} {b} {y}")
        }),
    );
    let wide: Vec<u8> = plain.encode_utf16().flat_map(u16::to_le_bytes).collect();
    place.write("wide.csv", [&[0xff, 0xfe], &wide[..]].concat());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain.as_bytes()).unwrap();
    place.write("packed.csv.gz", encoder.finish().unwrap());
    place.write(
        "constant.csv",
        table("a,five,b,y", |_, (a, b, y)| format!("{a},5,{b},{y}")),
    );
    fit(&place, "plain.csv --target y");
    place.write("x.csv", "a,b\n1,2\n3,0.5\n");
    let expected = place.ok("eval m.safetensors -i x.csv");
    for (file, said) in [
        ("comma.csv", ""),
        ("comments.csv", ""),
        ("spaces.txt", "names of columns are those in a comment"),
        ("index.csv", "column 1 has no name and is left out"),
        ("rownames.txt", "column 1 has no name and is left out"),
        ("wide.csv", ""),
        ("packed.csv.gz", ""),
        (
            "constant.csv",
            "input column five: its values are all alike (5); it is left out",
        ),
        ("plain.csv --inputs a..b", ""),
        ("plain.csv --inputs 1-2", ""),
        ("plain.csv --inputs 1..3 --exclude y", ""),
    ] {
        let stderr = fit(&place, &format!("{file} --target y"));
        let warnings: Vec<&str> = stderr.lines().filter(|l| l.starts_with("warning")).collect();
        match said {
            "" => assert!(warnings.is_empty(), "{file}: {stderr}"),
            said => assert!(
                warnings.len() == 1 && warnings[0].contains(said),
                "{file}: {stderr}"
            ),
        }
        assert_eq!(place.ok("eval m.safetensors -i x.csv"), expected, "{file}");
    }
    // The index column can be asked for by its number.
    fit(&place, "index.csv --target y --inputs 1,a,b");
    assert_eq!(inputs(&place), serde_json::json!(["index", "a", "b"]));
    // A compressed table is evaluated, too, and from standard input.
    fit(&place, "plain.csv --target y");
    place.ok("eval m.safetensors -i packed.csv.gz");
}

#[test]
fn missing_values_are_refused_left_out_or_filled() {
    let place = Place::new();
    place.write(
        "t.csv",
        table("a,b,y,note", |k, (a, b, y)| match k {
            3 => format!("NA,{b},{y},x"),
            4 => format!("{a},,{y},"),
            5 => format!(",?,{y},z"),
            7 => format!("{a},{b},null,z"),
            _ => format!("{a},{b},{y},z"),
        }),
    );
    let with = |more: &str| format!("fit t.csv --target y --exclude note {TINY} {more}");
    refused(
        &place,
        &with(""),
        "t.csv, line 5, column a: NA stands for a missing value; 5 missing values in 4 rows: --na drop leaves out the 4 rows",
    );
    let rows = |arguments: &str| {
        let run = place.run(&with(&format!("--json --validation 0 {arguments}")));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let summary: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        (summary["rows"].as_u64().unwrap(), run.stderr)
    };
    let (count, said) = rows("--na drop");
    assert_eq!(count, 32);
    assert!(
        said.contains("4 of 36 rows are left out for missing values"),
        "{said}"
    );
    // Without the target there is nothing to fit.
    let (count, said) = rows("--na mean");
    assert_eq!(count, 35);
    assert!(said.contains("1 of 36 rows are left out"), "{said}");
    assert!(
        said.contains("4 missing values replaced by the mean of the column (a, b)"),
        "{said}"
    );
    // Columns that are not used do not count.
    let (count, said) = rows("--inputs b --na drop");
    assert!(count == 33 && said.contains("3 of 36 rows"), "{said}");
    place.write("x.csv", "a,b\n1,NA\n");
    refused(
        &place,
        "eval m.safetensors -i x.csv",
        "x.csv, line 2, column b: NA stands for a missing value",
    );
    place.write("none.csv", table("a,b,y", |_, (a, _, y)| format!("{a},NA,{y}")));
    refused(
        &place,
        &format!("fit none.csv --target y --na drop {TINY}"),
        "something is missing in every row; --exclude leaves out columns with missing values (b)",
    );
    refused(
        &place,
        &format!("fit none.csv --target y --na mean {TINY}"),
        "column b: all values are missing",
    );
}

#[test]
fn words_become_variables_and_are_evaluated_as_words() {
    let place = Place::new();
    let color = |k: usize| ["red", "blue", "green"][k % 3];
    place.write(
        "t.csv",
        table("a,color,b,y", |k, (a, b, y)| {
            format!("{a},{},{b},{}", color(k), y + (k % 3) as f64)
        }),
    );
    refused(
        &place,
        &format!("fit t.csv --target y {TINY}"),
        "t.csv, line 2, column color: \"red\" is not a number; --categories color makes variables of its words, --exclude color leaves it out",
    );
    fit(&place, "t.csv --target y --categories color");
    assert_eq!(
        inputs(&place),
        serde_json::json!(["a", "color=green", "color=red", "b"])
    );
    place.write("words.csv", "b,color,a\n1,red,2\n0.5,blue,3\n");
    place.write("numbers.csv", "a,color=green,color=red,b\n2,0,1,1\n3,0,0,0.5\n");
    let words = place.ok("eval m.safetensors -i words.csv");
    assert_eq!(words, place.ok("eval m.safetensors -i numbers.csv"));
    place.ok("eval m.safetensors -i t.csv");
    place.ok("plot m.safetensors --data t.csv -o m.svg");
    place.write("unknown.csv", "a,color,b\n1,red,2\n1,purple,2\n");
    refused(
        &place,
        "eval m.safetensors -i unknown.csv",
        "unknown.csv, line 3, column color: \"purple\" is none of the model's categories (blue, green, red)",
    );
    // As parameters: the guarantee holds in the inputs for each color.
    fit(&place, "t.csv --target y --params color --categories color");
    let red = place.ok("minimize m.safetensors --at red");
    assert!(red.starts_with("at color=green = 0, color=red = 1"), "{red}");
    assert_eq!(red, place.ok("minimize m.safetensors --at 0,1"));
    place.ok("eval m.safetensors -i t.csv");
    refused(
        &place,
        "minimize m.safetensors --at purple",
        "--at purple: color: \"purple\" is none of the model's categories",
    );
    refused(
        &place,
        "minimize m.safetensors --at red,1",
        "2 cells, but the model has 1 parameters (color)",
    );
}

#[test]
fn names_with_commas_and_columns_that_cannot_be() {
    let place = Place::new();
    place.write(
        "t.csv",
        table("\"a, left\",b,w,y,one", |k, (a, b, y)| {
            format!("{a},{b},{},{y},x", if k == 0 { -1 } else { 1 })
        }),
    );
    let mut command = place.command();
    command.args(["fit", "t.csv", "--target", "y", "--inputs", "b,\"a, left\""]);
    let run = Run::from(command.args(TINY.split_whitespace()).output().unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(inputs(&place), serde_json::json!(["b", "a, left"]));
    let cases = [
        ("--inputs \"b", "--inputs \"b: a quote is not closed"),
        ("--inputs b..1", "run backwards"),
        ("--inputs 2-9", "--inputs: t.csv: no column \"2-9\""),
        ("--exclude z", "--exclude: t.csv: no column \"z\""),
        ("--exclude 1-5", "no columns are left for the inputs"),
        ("--inputs b --weights b", "column \"b\" is named twice"),
        (
            "--inputs b --weights w",
            "--weights: column w has a negative weight, -1",
        ),
        ("--inputs b --weights one", "\"x\" is not a number"),
        ("--inputs b --weights z", "--weights: t.csv: no column \"z\""),
        (
            "--inputs b --categories w",
            "--categories: column \"w\" is neither an input nor a parameter",
        ),
        (
            "--inputs b,one --categories one",
            "input column one: its values are all alike (x)",
        ),
        ("--inputs b --categories b --na never", "never"),
    ];
    for (options, message) in cases {
        let run = place.run(&format!("fit t.csv --target y {options} {TINY}"));
        assert_eq!(run.code, 2, "{options}\n{}", run.stderr);
        assert!(run.stderr.contains(message), "{options}\n{}", run.stderr);
    }
    // A category that all rows share says nothing.
    let stderr = fit(&place, "t.csv --target y --exclude w --categories one");
    assert!(
        stderr.contains("input column one: its values are all alike (x); it is left out"),
        "{stderr}"
    );
    place.write(
        "many.csv",
        table("a,id,y", |k, (a, _, y)| format!("{a},r{k},{y}")),
    );
    refused(
        &place,
        &format!("fit many.csv --target y --categories id {TINY}"),
        "--categories: id has 36 different values in 36 rows, too many for categories",
    );
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let place = Place::new();
    for (name, bytes, message) in [
        (
            "bad.csv.gz",
            &b"\x1f\x8b\x08\x00damaged"[..],
            "the gzip file is damaged or cut short",
        ),
        (
            "book.xlsx",
            b"PK\x03\x04....",
            "is a zip archive (.xlsx and .npz files are, too)",
        ),
        (
            "t.csv.zst",
            b"\x28\xb5\x2f\xfd...",
            "compressed with zstd; unpack it, or use gzip",
        ),
        (
            "wide.csv",
            b"a\0,\0b\0\n\0",
            "looks like UTF-16 without its mark; save it as UTF-8",
        ),
        (
            "half.csv",
            b"\xff\xfea\0,",
            "begins like text in UTF-16 and is damaged",
        ),
        (
            "binary.csv",
            b"\xe9\x01\x02\x03",
            "neither text nor another table that is known",
        ),
        (
            "fake.parquet",
            b"a,b\n1,2\n",
            "not a Parquet file, whatever its name says",
        ),
        ("t.parquet", b"PAR1", "t.parquet: "),
        ("name.csv", b"a,,c\n1,2,3\n", "column 2 has no name"),
        (
            "thousands.tsv",
            b"a\ty\n1,234\t2\n2\t3\n",
            "\"1,234\" may be a decimal comma or a separator of thousands",
        ),
    ] {
        place.write(name, bytes);
        refused(&place, &format!("fit {name} --target 2 {TINY}"), message);
    }
    let latin: Vec<u8> = table("größe,b,y", |_, (a, b, y)| format!("{a},{b},{y}"))
        .chars()
        .map(|c| c as u8)
        .collect();
    place.write("latin.csv", latin);
    let stderr = fit(&place, "latin.csv --target y");
    assert!(
        stderr.contains("read as Windows-1252 (Latin-1), with words like \"größe\""),
        "{stderr}"
    );
    assert_eq!(inputs(&place), serde_json::json!(["größe", "b"]));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_are_tables() {
    let place = Place::new();
    place.write(
        "t.csv",
        table("n,color,y", |k, (a, _, y)| {
            format!("{a},{},{y}", ["red", "blue"][k % 2])
        }),
    );
    fit(&place, "t.csv --target y --categories color");
    let file = common::repository("crates/bilip-fit/tests/fixtures/pandas.parquet");
    std::fs::copy(file, place.path("t.parquet")).unwrap();
    refused(
        &place,
        "eval m.safetensors -i t.parquet",
        "t.parquet, row 4, column color: the cell is empty",
    );
    fit(&place, "t.csv --target y --inputs n");
    place.write("n.csv", "n\n1\n2\n3\n4\n");
    assert_eq!(
        place.ok("eval m.safetensors -i t.parquet"),
        place.ok("eval m.safetensors -i n.csv")
    );
}
