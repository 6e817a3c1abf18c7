//! Proved numbers as text: decimals on the safe side, and JSON that can say "infinite".

/// `value` as a decimal of at most `digits` significant digits that is **not below** it: what is
/// proved to be at most `value` is at most this.
///
/// The comparison is with the exact binary number, not with a rounding of it.
///
/// ```
/// use bilip::{at_least, at_most};
/// assert_eq!(at_most(1.0 / 3.0, 3), "0.334");
/// assert_eq!(at_least(1.0 / 3.0, 3), "0.333");
/// // The double nearest to 0.7 is below 0.7.
/// assert_eq!(at_least(0.7, 17), "0.69999999999999995");
/// assert_eq!(at_most(f64::INFINITY, 3), "inf");
/// ```
pub fn at_most(value: f64, digits: usize) -> String {
    directed(value, digits, value > 0.0)
}

/// `value` as a decimal of at most `digits` significant digits that is **not above** it; see
/// [`at_most`].
pub fn at_least(value: f64, digits: usize) -> String {
    directed(value, digits, value < 0.0)
}

/// The first digits of a number; `away` says whether the rest is rounded away from zero or cut off.
fn directed(value: f64, digits: usize, away: bool) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = digits.max(1);
    // No double has more than 767 significant digits: this is the number itself.
    let exact = format!("{:.766e}", value.abs());
    let (mantissa, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
    let mut exponent: i32 = exponent.parse().unwrap_or(0);
    let mut all: Vec<u8> = mantissa
        .bytes()
        .filter(u8::is_ascii_digit)
        .map(|d| d - b'0')
        .collect();
    let rest = all.split_off(digits.min(all.len()));
    if away && rest.iter().any(|d| *d != 0) {
        let mut carry = true;
        for digit in all.iter_mut().rev() {
            if !carry {
                break;
            }
            carry = *digit == 9;
            *digit = if carry { 0 } else { *digit + 1 };
        }
        if carry {
            all.insert(0, 1);
            exponent += 1;
        }
    }
    while all.len() > 1 && all.last() == Some(&0) {
        all.pop();
    }
    let text: String = all.iter().map(|d| char::from(b'0' + d)).collect();
    let sign = if value < 0.0 { "-" } else { "" };
    let length = text.len() as i32;
    let plain = match exponent {
        0..=20 if exponent + 1 >= length => format!("{text}{}", "0".repeat((exponent + 1 - length) as usize)),
        0..=20 => format!(
            "{}.{}",
            &text[..=exponent as usize],
            &text[exponent as usize + 1..]
        ),
        -5..0 => format!("0.{}{text}", "0".repeat((-exponent - 1) as usize)),
        _ if length == 1 => format!("{text}e{exponent}"),
        _ => format!("{}.{}e{exponent}", &text[..1], &text[1..]),
    };
    format!("{sign}{plain}")
}

/// Numbers in JSON: as they are, or one of the strings `"inf"`, `"-inf"` and `"nan"`, which JSON
/// has no numbers for.
///
/// For `#[serde(with = "bilip::json_number")]`.
pub mod json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// A finite number as a number, any other as a string.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match value.is_finite() {
            true => value.serialize(serializer),
            false => text(*value).serialize(serializer),
        }
    }

    /// The string of a number that is not finite.
    pub fn text(value: f64) -> &'static str {
        match value {
            v if v.is_nan() => "nan",
            v if v > 0.0 => "inf",
            _ => "-inf",
        }
    }

    /// Reads either form.
    ///
    /// # Errors
    /// On anything else.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(value) => Ok(value),
            Either::Text(text) => match text.as_str() {
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                "nan" => Ok(f64::NAN),
                _ => Err(serde::de::Error::custom("expected a number or \"inf\"")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_short_and_carry_over() {
        assert_eq!(at_most(9.9999, 2), "10");
        assert_eq!(at_least(9.9999, 2), "9.9");
        assert_eq!(at_most(-9.9999, 2), "-9.9");
        assert_eq!(at_least(-9.9999, 2), "-10");
        assert_eq!(at_most(0.5, 5), "0.5");
        assert_eq!(at_most(5e-324, 1), "5e-324");
        assert_eq!(at_least(5e-324, 1), "4e-324");
        assert_eq!(at_most(f64::MAX, 3), "1.8e308");
        assert_eq!(at_least(f64::MAX, 3), "1.79e308");
        assert_eq!(at_most(4096.0, 17), "4096");
        assert_eq!(at_least(123456.789, 4), "123400");
        assert_eq!((at_most(0.0, 3), at_least(-0.0, 3)), ("0".into(), "0".into()));
        assert_eq!(at_least(0.0025655, 5), "0.0025655");
        assert_eq!(at_least(4.517755e-12, 5), "4.5177e-12");
    }
}
