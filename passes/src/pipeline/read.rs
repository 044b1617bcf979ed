//! Pipelines as YAML: a list of entries, each a pass's name, or a map from it to the pass's options.
//! Beside the pass, `when: BACKEND` restricts it to programs of one backend.

use super::Step;
use crate::yaml::{self, YamlError};
use crate::{PassInfo, all_passes, configure};
use serde::Deserialize;
use serde::de::value::UnitDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// The steps of a pipeline's text.
///
/// # Errors
/// YAML errors, unknown passes and fields, with line and column.
pub(super) fn steps(text: &str) -> Result<Vec<Step>, YamlError> {
    let entries: Vec<Entry> = yaml::read(text)?;
    Ok(entries.into_iter().map(|e| e.0).collect())
}

/// The key beside a pass that says for which backend's programs it is.
const WHEN: &str = "when";

/// One entry of the list.
struct Entry(Step);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pass's name, or a map from its name to its options")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Entry, E> {
        Options(name).deserialize(UnitDeserializer::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let Some(name) = map.next_key::<String>()? else {
            return Err(A::Error::custom("an entry without a pass"));
        };
        let Entry(mut step) = map.next_value_seed(Options(&name))?;
        while let Some(second) = map.next_key::<String>()? {
            if second != WHEN || step.when.is_some() {
                return Err(A::Error::custom(format!(
                    "`{second}` stands in the entry of `{name}`; begin a new entry with `- `"
                )));
            }
            step.when = Some(map.next_value()?);
        }
        Ok(Entry(step))
    }
}

/// Reads the options of the pass of this name.
struct Options<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Options<'_> {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, options: D) -> Result<Entry, D::Error> {
        match configure(self.0, options) {
            Some(pass) => Ok(Entry(Step::new(self.0, pass?))),
            None => Err(unknown_pass(self.0, PhantomData)),
        }
    }
}

fn unknown_pass<E: serde::de::Error>(name: &str, _: PhantomData<E>) -> E {
    let known: Vec<&str> = all_passes().iter().map(|p| p.name).collect();
    E::custom(format!("no pass is called `{name}`; there are {}", known.join(", ")))
}

/// The JSON schema of pipelines.
pub fn schema() -> serde_json::Value {
    let when = serde_json::json!({
        "type": "string",
        "description": "The backend whose programs the pass is for; without it those of every one.",
    });
    let with_options = |p: &PassInfo| {
        serde_json::json!({
            "type": "object",
            "description": p.to_string(),
            "properties": { p.name: p.schema, WHEN: when },
            "required": [p.name],
            "additionalProperties": false,
        })
    };
    let passes = all_passes();
    let names: Vec<&str> = passes.iter().map(|p| p.name).collect();
    let mut entries = vec![serde_json::json!({ "enum": names })];
    entries.extend(passes.iter().map(with_options));
    serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "arenic pipeline",
        "type": "array",
        "items": { "anyOf": entries },
    })
}
