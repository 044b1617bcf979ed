//! Pipelines as YAML: a list of entries, each a pass's name, or a map from it to the pass's options.
//! Beside the pass, `when: BACKEND` restricts it to programs of one backend, and `when: loss` to training steps
//! that the pipeline makes of forward models.

use super::{Step, When};
use crate::yaml::{self, YamlError};
use crate::{PassInfo, PassSet};
use serde::de::value::UnitDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The steps of a pipeline's text, which may name the passes of a set.
///
/// # Errors
/// YAML errors, unknown passes and fields, with line and column.
pub(super) fn steps(text: &str, passes: &impl PassSet) -> Result<Vec<Step>, YamlError> {
    yaml::read_with(text, Steps(passes))
}

/// The key beside a pass that says what it is run for.
const WHEN: &str = "when";

/// What says of it that a forward model is to be trained.
const LOSS: &str = "loss";

/// Reads a pipeline.
struct Steps<'a, S>(&'a S);

impl<'de, S: PassSet> DeserializeSeed<'de> for Steps<'_, S> {
    type Value = Vec<Step>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Step>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: PassSet> Visitor<'de> for Steps<'_, S> {
    type Value = Vec<Step>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<Step>, A::Error> {
        let mut steps = Vec::new();
        while let Some(step) = entries.next_element_seed(Entry(self.0))? {
            steps.push(step);
        }
        Ok(steps)
    }
}

/// Reads one entry of the list.
struct Entry<'a, S>(&'a S);

impl<'de, S: PassSet> DeserializeSeed<'de> for Entry<'_, S> {
    type Value = Step;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Step, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: PassSet> Visitor<'de> for Entry<'_, S> {
    type Value = Step;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pass's name, or a map from its name to its options")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Step, E> {
        Options { name, passes: self.0 }.deserialize(UnitDeserializer::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Step, A::Error> {
        let Some(name) = map.next_key::<String>()? else {
            return Err(A::Error::custom("an entry without a pass"));
        };
        let mut step = map.next_value_seed(Options { name: &name, passes: self.0 })?;
        while let Some(second) = map.next_key::<String>()? {
            if second != WHEN || step.when.is_some() {
                return Err(A::Error::custom(format!(
                    "`{second}` stands in the entry of `{name}`; begin a new entry with `- `"
                )));
            }
            let when: String = map.next_value()?;
            step.when = Some(if when == LOSS { When::Loss } else { When::Backend(when) });
        }
        Ok(step)
    }
}

/// Reads the options of the pass of this name.
struct Options<'a, S> {
    name: &'a str,
    passes: &'a S,
}

impl<'de, S: PassSet> DeserializeSeed<'de> for Options<'_, S> {
    type Value = Step;

    fn deserialize<D: Deserializer<'de>>(self, options: D) -> Result<Step, D::Error> {
        let Options { name, passes } = self;
        match passes.configure(name, options) {
            Some(pass) => Ok(Step::new(name, pass?)),
            None => {
                let known: Vec<&str> = passes.passes().iter().map(|p| p.name).collect();
                let known = known.join(", ");
                Err(D::Error::custom(format!("no pass is called `{name}`; there are {known}")))
            }
        }
    }
}

/// The JSON schema of pipelines that may name the passes of a set.
pub fn schema(passes: &impl PassSet) -> serde_json::Value {
    let when = serde_json::json!({
        "type": "string",
        "description": "The backend whose programs the pass is for, or `loss`: only where a training step is \
                        made of a forward model. Without it the pass is always run.",
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
    let passes = passes.passes();
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
