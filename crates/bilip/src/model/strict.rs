//! JSON that says everything once, and objects where objects belong.
//!
//! Readers of JSON differ in what they make of a key that is there twice, and derived ones take a
//! list for an object; a file whose meaning depends on its reader is refused.

use std::collections::HashSet;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Checks the header of a container: an object of objects, no name twice.
pub(crate) fn check_container(text: &[u8]) -> Result<(), serde_json::Error> {
    check(
        serde_json::Deserializer::from_slice(text),
        Expect::ObjectOfObjects,
    )
}

/// Checks the metadata of a model: an object, no key twice anywhere, objects where there must be
/// some.
pub(crate) fn check_metadata(text: &str) -> Result<(), serde_json::Error> {
    check(serde_json::Deserializer::from_str(text), Expect::Object)
}

fn check<'de, R: serde_json::de::Read<'de>>(
    mut deserializer: serde_json::Deserializer<R>,
    expect: Expect,
) -> Result<(), serde_json::Error> {
    expect.deserialize(&mut deserializer)?;
    deserializer.end()
}

#[derive(Clone, Copy, PartialEq)]
enum Expect {
    Anything,
    Object,
    ObjectOfObjects,
    ListOfObjects,
}

impl Expect {
    /// What belongs under a key of a model's metadata.
    fn under(key: &str) -> Self {
        match key {
            "bounds" | "claimed" | "certificate" | "provenance" => Expect::Object,
            "blocks" | "layers" => Expect::ListOfObjects,
            _ => Expect::Anything,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Expect {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Expect {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Expect::Anything => "any value",
            Expect::Object | Expect::ObjectOfObjects => "an object",
            Expect::ListOfObjects => "a list of objects",
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self == Expect::ListOfObjects {
            return Err(A::Error::custom("an object where a list belongs"));
        }
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let under = match self {
                Expect::ObjectOfObjects => Expect::Object,
                _ => Expect::under(&key),
            };
            map.next_value_seed(under)?;
            if seen.contains(&key) {
                let shown: String = key.escape_debug().take(40).collect();
                return Err(A::Error::custom(format!("the key \"{shown}\" is there twice")));
            }
            seen.insert(key);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let element = match self {
            Expect::Anything => Expect::Anything,
            Expect::ListOfObjects => Expect::Object,
            _ => {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Err(A::Error::custom("a list where an object belongs"));
            }
        };
        while list.next_element_seed(element)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.scalar()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.scalar()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.scalar()
    }
}

impl Expect {
    fn scalar<E: serde::de::Error>(self) -> Result<(), E> {
        match self {
            Expect::Anything => Ok(()),
            Expect::ListOfObjects => Err(E::custom("a single value where a list belongs")),
            _ => Err(E::custom("a single value where an object belongs")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_twice_and_lists_for_objects_are_refused_at_any_depth() {
        for good in [r#"{}"#, r#"{"a":{"b":[1,{"c":null}]},"bounds":{"mu":1,"nu":2}}"#] {
            check_metadata(good).unwrap();
        }
        for (bad, what) in [
            (r#"{"a":1,"a":2}"#, "twice"),
            (r#"{"a":[{"b":1,"b":1}]}"#, "twice"),
            (r#"{"bounds":[1,2]}"#, "list"),
            (r#"{"blocks":[[1,2]]}"#, "list"),
            (r#"{"blocks":{"0":{}}}"#, "object"),
            (r#"{"certificate":{"layers":[{"claimed":[1,2]}]}}"#, "list"),
            (r#"[1]"#, "list"),
            (r#"7"#, "single value"),
            (r#"{} {}"#, "trailing"),
        ] {
            let error = check_metadata(bad).unwrap_err().to_string();
            assert!(error.contains(what), "{bad}: {error}");
        }
        assert!(check_container(br#"{"a":{},"a":{}}"#).is_err());
        assert!(check_container(br#"{"a":[1]}"#).is_err());
        assert!(check_metadata(&"[".repeat(1_000_000)).is_err());
    }
}
