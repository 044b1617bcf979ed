//! Patterns of names.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// A pattern of names: `*`, `?` and `[…]` as in a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(glob::Pattern);

impl Glob {
    /// The pattern of one name alone.
    pub fn exactly(name: &str) -> Glob {
        let escaped = glob::Pattern::escape(name);
        // What is escaped is a pattern; were it none, the name would be one without any sign.
        Glob(glob::Pattern::new(&escaped).unwrap_or_default())
    }

    /// True where a name is of the pattern.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(pattern: &str) -> Result<Glob, String> {
        glob::Pattern::new(pattern).map(Glob).map_err(|e| format!("the pattern `{pattern}`: {e}"))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for Glob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Glob, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Glob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl JsonSchema for Glob {
    fn schema_name() -> Cow<'static, str> {
        "Glob".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}
