//! Tables as they come.

use super::*;

fn read(text: &str) -> Table {
    Table::from_bytes(text.as_bytes(), "t.csv").unwrap()
}

fn error(text: &str, columns: &[usize]) -> String {
    match Table::from_bytes(text.as_bytes(), "t.csv") {
        Ok(table) => table.select(columns).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

fn names(table: &Table) -> Vec<String> {
    (0..table.columns()).map(|k| table.name(k)).collect()
}

fn numbers(table: &Table) -> Vec<f64> {
    table.select(&(0..table.columns()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn plain_tables_have_the_fingerprint_of_the_version_before() {
    let crc = |text: &str| crc32fast::hash(&read(text).fingerprint());
    let bytes = |names: &str, values: &[f64], words: &str| {
        let mut bytes = names.as_bytes().to_vec();
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        bytes.extend(words.as_bytes());
        crc32fast::hash(&bytes)
    };
    assert_eq!(crc("a,b\n1,2\n3,4.5\n"), bytes("a,b,", &[1.0, 2.0, 3.0, 4.5], ""));
    assert_eq!(crc("1;2\n3;4\n"), bytes("1,2,", &[1.0, 2.0, 3.0, 4.0], ""));
    assert_eq!(
        crc("a,b\n1.50,2\nx,4\n"),
        bytes("a,b,", &[1.5, 2.0, f64::NAN, 4.0], "1.5,x,")
    );
}

#[test]
fn separators_decimal_commas_and_encodings_make_no_difference() {
    let expected = [1.5, 2.0, -0.25, 1e-3];
    for text in [
        "a,b\n1.5,2\n-0.25,1e-3\n",
        "a;b\n1,5;2\n-0,25;1E-3\n",
        "a\tb\n1,5\t2,0\n-0,25\t0,001\n",
        "a b\n1.5 2\n -0.25  1e-3\n",
        "\u{feff}a|b\r\n1.5|2\r\n-0.25|0.001\r\n",
        "# a comment\n% another, with a comma\na,b\n# between\n1.5,2\n\n%\n-0.25,1e-3\n# behind\n",
        "# a b\n1.5 2\n-0.25 1e-3\n",
        "# a\tb\n1.5\t2\n-0.25\t0.001\n",
        "a,b,\n1.5,2,\n-0.25,0.001,\n",
        "a,b\n1.5,2,\n-0.25,0.001,\n",
    ] {
        let table = read(text);
        assert_eq!(names(&table), ["a", "b"], "{text:?}");
        assert_eq!(numbers(&table), expected, "{text:?}");
        assert_eq!(table.index(), None);
    }
    let table = read("3,25;2,75;1,5\n2,5;3,5;1\n");
    assert_eq!(numbers(&table), [3.25, 2.75, 1.5, 2.5, 3.5, 1.0]);
    let wide: Vec<u8> = "a;b\n1,5;2\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let table = Table::from_bytes(&[&[0xff, 0xfe], &wide[..]].concat(), "t").unwrap();
    assert_eq!(numbers(&table), [1.5, 2.0]);
    let table = Table::from_bytes(b"temp\xe9rature,b\n1,2\n", "t").unwrap();
    assert_eq!(table.name(0), "température");
    assert_eq!(table.notes().len(), 1);
}

#[test]
fn thousands_are_not_taken_for_decimals() {
    // Clear from another cell, or from the separator.
    assert_eq!(numbers(&read("a\tb\n1,234\t0,5\n2\t3\n")), [1.234, 0.5, 2.0, 3.0]);
    let table = read("a;b\n1,234;5\n");
    assert_eq!(numbers(&table), [1.234, 5.0]);
    assert!(table.notes()[0].contains("1,234"), "{:?}", table.notes());
    for text in ["a\tb\n1,234\t5\n", "a;b\n1,234;0.5\n", "a\tb\n1,234\t0.5\n"] {
        let error = error(text, &[0]);
        assert!(
            error.starts_with("t.csv, line 2, column a: \"1,234\" may be"),
            "{error}"
        );
    }
    assert!(error("a;b\n1.234,5;1\n", &[0]).contains("\"1.234,5\" is not a number"));
    // One column has no separator that could tell.
    assert!(error("x\n3,14\n2,71\n", &[0]).contains("decimal commas need another separator"));
}

#[test]
fn columns_without_a_name_are_the_index() {
    for text in [
        ",a,b\n0,1,2\n1,3,4\n",
        "\"\",\"a\",\"b\"\n\"x\",1,2\n\"y\",3,4\n",
        "a,b\nx,1,2\ny,3,4\n",
        "\"a\" \"b\"\n\"1\" 1 2\n\"2\" 3 4\n",
    ] {
        let table = read(text);
        assert_eq!(table.index(), Some(0), "{text:?}");
        assert_eq!(names(&table), ["index", "a", "b"]);
        assert_eq!(table.select(&[1, 2]).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(table.find("1").unwrap(), 0);
    }
    let table = read(",0,1\n0,1,2\n1,3,4\n");
    assert_eq!(names(&table), ["index", "0", "1"]);
    assert!(error("a,,b\n1,2,3\n", &[0]).contains("column 2 has no name"));
    assert!(error("a,b\n1,2,3,4\n", &[0]).contains("line 2: 4 cells where 2"));
}

#[test]
fn a_sign_that_is_part_of_a_name_stays() {
    let table = read("#,Name,HP\n1,Bulbasaur,45\n2,Ivysaur,60\n");
    assert_eq!(names(&table), ["#", "Name", "HP"]);
    assert_eq!(table.rows(), 2);
    assert_eq!(names(&read("%Fe,%Si\n1,2\n3,4\n")), ["%Fe", "%Si"]);
    assert_eq!(names(&read("#time,loss\n1,2\n")), ["#time", "loss"]);
    // A sentence that is no header.
    assert_eq!(
        names(&read("# made in March, by hand, twice\n1,2\n3,4\n")),
        ["1", "2"]
    );
}

#[test]
fn lines_in_messages_are_those_of_the_file() {
    let text = "# one\r\n\r\na,b\r\n1,2\r\n% five\r\n\"3\r\n\",4\r\n5,x\r\n";
    assert!(error(text, &[1]).starts_with("t.csv, line 8, column b: \"x\" is not"));
    let text = "a,b\n1,2\n# three\n3,\n";
    assert_eq!(
        error(text, &[1]),
        "t.csv, line 4, column b: the cell is empty; fill it or leave the row out"
    );
    assert!(error("a,b\n1,2\n\n\n1,2,3,4\n", &[0]).starts_with("t.csv, line 5: 4 cells"));
}

#[test]
fn missing_values_are_known_and_matter_where_they_are_used() {
    for cell in ["", "NA", "NaN", "nan", "null", "?", "N/A", "-", "."] {
        let table = read(&format!("a,b,c\n1,2,x\n3,{cell},y\n5,6,z\n"));
        assert_eq!(table.missing_rows(1, false), [1], "{cell}");
        assert_eq!(table.select(&[0]).unwrap(), [1.0, 3.0, 5.0]);
        let error = table.select(&[0, 1]).unwrap_err().to_string();
        assert!(error.starts_with("t.csv, line 3, column b: "), "{error}");
    }
    // In the first row of a table without a header, too.
    let table = read("1,NA,3\n4,5,6\n");
    assert_eq!((table.rows(), table.missing_rows(1, false)), (2, vec![0]));
    let mut table = read("a,b\n1,2\n3,?\n5,6\n");
    table.fill_with_mean(1);
    assert_eq!(numbers(&table), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let table = read("a,b\n1,2\n3,?\n5,6\n").with_rows(&[0, 2]);
    assert_eq!(numbers(&table), [1.0, 2.0, 5.0, 6.0]);
    // A class may be called "-", a number not.
    let table = read("a,class\n1,+\n2,-\n3,+\n");
    assert_eq!(table.classes(1).unwrap().1, ["+", "-"]);
    assert!(error("a,b\n1,inf\n", &[1]).contains("line 2, column b: inf is not a finite number"),);
}

#[test]
fn tables_without_a_header_may_have_words() {
    let table = read("5.1,3.5,setosa\n4.9,3.0,setosa\n7.0,3.2,versicolor\n6.9,3.1,versicolor\n");
    assert_eq!((table.rows(), table.name(2)), (4, "3".to_string()));
    assert_eq!(table.classes(2).unwrap().1, ["setosa", "versicolor"]);
    assert!(table.notes()[0].contains("read as a row"), "{:?}", table.notes());
    let table = read("name,2019,2020\nx,1,2\n");
    assert_eq!(names(&table), ["name", "2019", "2020"]);
    assert!(table.notes()[0].contains("read as names"), "{:?}", table.notes());
}

#[test]
fn numbers_that_are_written_differently_are_one_class() {
    let table = read("c,x\n1.50,1\n1.5,2\nb,3\n1.500,4\n-0,5\n0,6\n");
    assert_eq!(table.classes(0).unwrap().1, ["0", "1.5", "b"]);
}

#[test]
fn columns_are_found_by_name_number_and_range() {
    let table = read("a,b,2-3,x..y,d\n1,2,3,4,5\n");
    let find = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|s| s.to_string()).collect();
        table.find_all(&list).map_err(|e| e.to_string())
    };
    assert_eq!(find(&["d", "1"]).unwrap(), [4, 0]);
    assert_eq!(find(&["b..d"]).unwrap(), [1, 2, 3, 4]);
    assert_eq!(find(&["1-2", "4..5"]).unwrap(), [0, 1, 3, 4]);
    assert_eq!(find(&["a..x..y"]).unwrap(), [0, 1, 2, 3]);
    // A column that is called so comes first.
    assert_eq!(find(&["2-3"]).unwrap(), [2]);
    assert_eq!(find(&["x..y"]).unwrap(), [3]);
    assert!(find(&["d..a"]).unwrap_err().contains("run backwards"));
    for wrong in ["1-9", "0-2", "a..z", "..", "-", ""] {
        assert!(find(&[wrong]).unwrap_err().contains("no column"), "{wrong}");
    }
}

#[test]
fn compressed_tables_are_read_and_other_files_named() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(b"a,b\n1,2\n").unwrap();
    let packed = encoder.finish().unwrap();
    let table = Table::from_bytes(&packed, "t").unwrap();
    assert_eq!(numbers(&table), [1.0, 2.0]);
    assert_eq!(table.fingerprint(), read("a,b\n1,2\n").fingerprint());
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.csv.gz", "t.csv", "t"] {
        let path = folder.path().join(name);
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(numbers(&Table::read(&path).unwrap()), [1.0, 2.0]);
    }
    let path = folder.path().join("t.npy.gz");
    std::fs::write(&path, &packed).unwrap();
    let error = Table::read(&path).unwrap_err().to_string();
    assert!(error.contains("not a NumPy file"), "{error}");
    for (bytes, what) in [
        (&b"PK\x03\x04..."[..], "zip archive"),
        (b"\x28\xb5\x2f\xfd...", "zstd"),
        (b"BZh9", "bzip2"),
        (b"\x1f\x8b\x08damaged", "gzip file is damaged"),
    ] {
        let error = Table::from_bytes(bytes, "t").unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn variables_of_categories_are_made_of_words() {
    let categories = BTreeMap::from([(
        "color".to_string(),
        vec!["blue".into(), "green".into(), "red".into()],
    )]);
    let variables = Variables {
        names: ["t", "color=green", "color=red", "u"].map(String::from).to_vec(),
        unnamed: false,
        categories,
    };
    assert_eq!(variables.columns(), ["t", "color", "u"]);
    let expected = [1.0, 0.0, 1.0, 0.5, 2.0, 0.0, 0.0, 6.0];
    for text in [
        "u,color,t,more\n0.5,red,1,0\n6,blue,2,0\n",
        "t,color=green,color=red,u\n1,0,1,0.5\n2,0,0,6\n",
        "1,red,0.5\n2,blue,6\n",
    ] {
        let table = read(text);
        assert_eq!(table.matching(&variables).unwrap().unwrap(), expected, "{text}");
    }
    assert!(read("t,color\n1,red\n").matching(&variables).unwrap().is_none());
    assert!(read("color,t,u\nred,1,1\n").has(&variables));
    let error = |text: &str| read(text).matching(&variables).unwrap_err().to_string();
    assert_eq!(
        error("t,color,u\n1,red,1\n1,purple,1\n"),
        "t.csv, line 3, column color: \"purple\" is none of the model's categories (blue, green, red)"
    );
    assert!(error("t,color,u\n1,,1\n").contains("line 2, column color: the cell is empty"));
    assert_eq!(
        variables.row(&["1", " red", "5"]).unwrap().unwrap(),
        [1.0, 0.0, 1.0, 5.0]
    );
    assert!(variables.row(&["1", "2"]).unwrap().is_none());
    assert!(variables.row(&["1", "purple", "2"]).is_err());
}

#[test]
fn no_bytes_make_a_panic() {
    let mut rng = bilip::Rng::new(5);
    let alphabet = b"019.,;\t |\"#%\n\r-+eEnaNA?x=\xe9\xff\0";
    for _ in 0..20_000 {
        let length = (rng.uniform() * 40.0) as usize;
        let bytes: Vec<u8> = (0..length)
            .map(|_| alphabet[(rng.uniform() * alphabet.len() as f64) as usize % alphabet.len()])
            .collect();
        if let Ok(table) = Table::from_bytes(&bytes, "t") {
            let _ = table.find_all(&["1-2".into(), "a..b".into()]);
            for k in 0..table.columns() {
                let _ = (table.select(&[k]), table.classes(k));
            }
        }
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_of_pandas_and_polars_are_read_and_damaged_ones_refused() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (file, index) in [("pandas.parquet", Some(4)), ("polars.parquet", None)] {
        let table = Table::read(folder.join(file)).unwrap();
        assert_eq!(names(&table)[..4], ["a", "n", "on", "color"]);
        assert_eq!((table.rows(), table.index()), (4, index));
        assert_eq!(
            table.select(&[1, 2]).unwrap(),
            [1.0, 1.0, 2.0, 0.0, 3.0, 1.0, 4.0, 0.0]
        );
        assert_eq!(table.missing_rows(0, false), [2]);
        assert_eq!(table.missing_rows(3, true), [3]);
        assert_eq!(table.with_rows(&[0, 1, 2]).classes(3).unwrap().1, ["blue", "red"]);
        let bytes = std::fs::read(folder.join(file)).unwrap();
        for length in [4, 8, 100, bytes.len() / 2, bytes.len() - 1] {
            let error = Table::from_bytes(&bytes[..length], "t").unwrap_err().to_string();
            assert!(error.starts_with("t: ") && error.lines().count() == 1, "{error}");
        }
    }
}
