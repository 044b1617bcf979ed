//! YAML texts: the one place that knows the library.

use serde::de::{DeserializeOwned, DeserializeSeed};
use std::marker::PhantomData;

/// Why a text is no pipeline, or no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// What is wrong.
    pub message: String,
    /// Line and column, from 1, where they are known.
    pub location: Option<(usize, usize)>,
}

impl From<String> for YamlError {
    fn from(message: String) -> Self {
        YamlError { message, location: None }
    }
}

/// Reads a value.
///
/// # Errors
/// YAML errors, unknown names and fields, with line and column.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    read_with(text, PhantomData)
}

/// Reads a value whose reader knows more than its type.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_with<'a, S: DeserializeSeed<'a>>(
    text: &'a str,
    seed: S,
) -> Result<S::Value, YamlError> {
    seed.deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|e| YamlError {
        location: e.location().map(|l| (l.line(), l.column())),
        message: e.to_string(),
    })
}
