//! `--box` and `--fix`: limits of inputs by their names.

use anyhow::{Context, Result, bail, ensure};
use bilip_fit::NamedModel;

use crate::text::{list, shown};

/// The box that the options describe, one interval per input; `None` without any.
pub fn limits(model: &NamedModel, boxes: &[String], fixed: &[String]) -> Result<Option<Vec<(f64, f64)>>> {
    if boxes.is_empty() && fixed.is_empty() {
        return Ok(None);
    }
    let names = model.inputs();
    let mut limits = vec![(f64::NEG_INFINITY, f64::INFINITY); names.len()];
    let mut named = vec![false; names.len()];
    let index = |option: &str, name: &str| {
        names.iter().position(|n| n == name).with_context(|| {
            format!(
                "{option}: the model has no input \"{name}\"; its inputs are {}",
                list(&names)
            )
        })
    };
    for text in boxes {
        for entry in entries("--box", text)? {
            let Some(value) = entry.value else {
                ensure!(
                    entry.name == "data",
                    "--box {}: give NAME=LOW:HIGH, or data for the ranges of the data",
                    shown(text)
                );
                let ranges = model.ranges().with_context(|| {
                    format!(
                        "--box data: {} does not say which ranges its data had",
                        model.source
                    )
                })?;
                for k in 0..names.len() {
                    if !named[k] {
                        limits[k] = ranges[k];
                    }
                }
                continue;
            };
            let k = index("--box", &entry.name)?;
            ensure!(!named[k], "--box: {} is there twice", shown(&entry.name));
            named[k] = true;
            limits[k] = interval(&entry.name, &value)?;
        }
    }
    let mut fixed_already = vec![false; names.len()];
    for text in fixed {
        for entry in entries("--fix", text)? {
            let value = (entry.value).with_context(|| format!("--fix {}: give NAME=VALUE", shown(text)))?;
            let k = index("--fix", &entry.name)?;
            let name = shown(&entry.name);
            ensure!(!fixed_already[k], "--fix: {name} is there twice");
            fixed_already[k] = true;
            let number = number("--fix", &name, &value)?;
            ensure!(number.is_finite(), "--fix {name}={value}: not a finite number");
            let (low, high) = limits[k];
            ensure!(
                !named[k] || (low <= number && number <= high),
                "--fix {name}={number} contradicts --box {name}={low}:{high}"
            );
            limits[k] = (number, number);
        }
    }
    Ok(Some(limits))
}

fn interval(name: &str, text: &str) -> Result<(f64, f64)> {
    let name = shown(name);
    let (low, high) = text
        .split_once(':')
        .with_context(|| format!("--box {name}={}: give LOW:HIGH", shown(text)))?;
    let side = |side: &str, open: f64| match side.trim() {
        "" => Ok(open),
        side => number("--box", &name, side),
    };
    let limits = (side(low, f64::NEG_INFINITY)?, side(high, f64::INFINITY)?);
    ensure!(
        limits.0 <= limits.1,
        "--box {name}={}: the first number must not be the larger",
        shown(text)
    );
    ensure!(
        limits.0 < f64::INFINITY && limits.1 > f64::NEG_INFINITY,
        "--box {name}={}: there is no number in it",
        shown(text)
    );
    Ok(limits)
}

fn number(option: &str, name: &str, text: &str) -> Result<f64> {
    match text.trim().parse::<f64>() {
        Ok(number) if !number.is_nan() => Ok(number),
        _ => bail!("{option} {name}: \"{}\" is not a number", shown(text)),
    }
}

/// `NAME=VALUE`, or `NAME` alone.
struct Entry {
    name: String,
    value: Option<String>,
}

/// The parts between commas; a name with a comma or an equals sign goes between quotes, as in CSV.
fn entries(option: &str, text: &str) -> Result<Vec<Entry>> {
    let mut parts: Vec<(String, Option<usize>)> = vec![(String::new(), None)];
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let Some((part, equals)) = parts.last_mut() else {
            break;
        };
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                part.push('"');
            }
            '"' if quoted || part.trim().is_empty() => {
                quoted = !quoted;
            }
            ',' if !quoted => parts.push((String::new(), None)),
            c => {
                if c == '=' && !quoted {
                    *equals = Some(part.len());
                }
                part.push(c);
            }
        }
    }
    ensure!(
        !quoted,
        "{option} {}: a quotation mark is not closed",
        shown(text)
    );
    (parts.into_iter())
        .map(|(part, equals)| {
            let (name, value) = match equals {
                Some(at) => (&part[..at], Some(part[at + 1..].trim().to_string())),
                None => (&part[..], None),
            };
            let name = name.trim().to_string();
            ensure!(
                !name.is_empty() && value.as_deref() != Some(""),
                "{option} \"{}\": an entry is empty",
                shown(text)
            );
            Ok(Entry { name, value })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_quoted_and_hold_commas_and_equals_signs() {
        let read = |text: &str| -> Vec<(String, Option<String>)> {
            let entries = entries("--box", text).unwrap();
            entries.into_iter().map(|e| (e.name, e.value)).collect()
        };
        let pair = |name: &str, value: &str| (name.to_string(), Some(value.to_string()));
        assert_eq!(read("a=0:1, b=:2"), [pair("a", "0:1"), pair("b", ":2")]);
        assert_eq!(read("\"a, \"\"b\"\" = c\"=1:2"), [pair("a, \"b\" = c", "1:2")]);
        assert_eq!(
            read("data,a=b=3:4"),
            [("data".to_string(), None), pair("a=b", "3:4")]
        );
        for bad in ["", "a=1:2,", "\"a=1:2", "=1:2", "a="] {
            assert!(entries("--box", bad).is_err(), "{bad}");
        }
        for bad in ["1", "2:1", "nan:1", "x:1", "inf:", ":-inf"] {
            assert!(interval("a", bad).is_err(), "{bad}");
        }
        assert_eq!(interval("a", ":").unwrap(), (f64::NEG_INFINITY, f64::INFINITY));
        assert_eq!(interval("a", "-1e3:2").unwrap(), (-1e3, 2.0));
    }
}
