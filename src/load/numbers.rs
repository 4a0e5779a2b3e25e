//! Numbers of a vendor's enumerations that the user gives, because no document that we know has
//! them: `FLAGOSCOMM_<VENDOR>_NUMBERS`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::config;
use crate::{Error, Result};

/// The numbers that the user gave for one vendor.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    key: &'static str,
    values: BTreeMap<String, i64>,
}

impl Numbers {
    /// What the environment says now for the vendor with this key, which takes these names.
    pub(crate) fn of_vendor(key: &'static str, names: &[&str]) -> Result<Numbers> {
        Numbers::of_text(key, config::numbers_text(key).as_deref(), names)
    }

    /// As [`Numbers::of_vendor`], for a text.
    pub(crate) fn of_text(
        key: &'static str,
        text: Option<&str>,
        names: &[&str],
    ) -> Result<Numbers> {
        let variable = config::numbers_name(key);
        let values = text
            .map_or(Ok(BTreeMap::new()), Numbers::parse)
            .map_err(|error| error.context(&variable))?;
        if let Some(stranger) = values.keys().find(|name| !names.contains(&name.as_str())) {
            let known = match names {
                [] => "none".to_string(),
                names => names.join(", "),
            };
            return Err(Error::invalid_argument(format!(
                "{variable}: {stranger} is no number of {key} that can be given; those that can \
                 be: {known}"
            )));
        }
        Ok(Numbers { key, values })
    }

    /// Understands `name=number,name=number`. Numbers are decimal or, after `0x`, hexadecimal.
    pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, i64>> {
        let mut values = BTreeMap::new();
        let text = text.trim();
        for item in text.strip_suffix(',').unwrap_or(text).split(',') {
            let parsed = item.split_once('=').and_then(|(name, number)| {
                let name = name.trim().to_lowercase();
                let number = number.trim();
                let value = match number.strip_prefix("0x") {
                    Some(hex) => i64::from_str_radix(hex, 16).ok()?,
                    None => number.parse().ok()?,
                };
                (!name.is_empty()).then_some((name, value))
            });
            let Some((name, value)) = parsed else {
                return Err(Error::invalid_argument(format!(
                    "{:?} is not understood; expected name=number, with commas between several",
                    item.trim()
                )));
            };
            if values.insert(name.clone(), value).is_some() {
                return Err(Error::invalid_argument(format!("{name} is there twice")));
            }
        }
        Ok(values)
    }

    /// The variable that they came from.
    pub(crate) fn variable(&self) -> String {
        config::numbers_name(self.key)
    }

    /// Every name with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
    }

    /// The number with this name, if it was given.
    pub(crate) fn get(&self, name: &str) -> Option<i64> {
        self.values.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn what_is_understood() {
        let values = Numbers::parse(" not_ready = 34 ,ID_BYTES=0x88, x=-1").unwrap();
        let values: Vec<(&str, i64)> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        assert_eq!(values, [("id_bytes", 136), ("not_ready", 34), ("x", -1)]);
    }

    #[test]
    fn a_comma_at_the_end_is_no_matter() {
        assert_eq!(
            Numbers::parse("a=1, b=2, ").unwrap(),
            Numbers::parse("a=1,b=2").unwrap()
        );
    }

    #[test]
    fn what_is_not() {
        for text in [
            "not_ready",
            "=1",
            "a=b",
            "a=1,,",
            ",",
            "a=0x",
            "a=1;b=2",
            "a=1,a=2",
        ] {
            let error = Numbers::parse(text).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{text}");
        }
    }

    #[test]
    fn names_that_the_vendor_does_not_take_are_refused_with_a_list() {
        let names = ["not_ready", "busy"];
        let numbers = Numbers::of_text("mthreads", Some("busy=7"), &names).unwrap();
        assert_eq!(numbers.get("busy"), Some(7));
        assert_eq!(numbers.get("not_ready"), None);
        assert_eq!(numbers.variable(), "FLAGOSCOMM_MTHREADS_NUMBERS");
        let error = Numbers::of_text("mthreads", Some("redy=7"), &names).unwrap_err();
        for words in ["FLAGOSCOMM_MTHREADS_NUMBERS", "redy", "not_ready, busy"] {
            assert!(error.text().contains(words), "{error}");
        }
        let error = Numbers::of_text("nvidia", Some("a=1"), &[]).unwrap_err();
        assert!(error.text().contains("none"), "{error}");
        let error = Numbers::of_text("nvidia", Some("a"), &[]).unwrap_err();
        assert!(
            error.text().contains("FLAGOSCOMM_NVIDIA_NUMBERS"),
            "{error}"
        );
        assert!(
            Numbers::of_text("nvidia", None, &[])
                .unwrap()
                .iter()
                .next()
                .is_none()
        );
    }
}
