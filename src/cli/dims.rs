//! `--dim`: sizes of symbolic dimensions, one of which may be as large as fits.

use super::{Failure, name_value};
use crate::onnx::ONLY_DIM;
use miette::miette;
use std::collections::BTreeMap;

/// What `--dim NAME=N` says of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    name: String,
    /// `None` for the largest one that fits.
    size: Option<u64>,
}

/// Reads `batch=32`, `batch=max`, or `32` of the only dimension that there is.
pub(super) fn parse_dimension(text: &str) -> Result<Dimension, String> {
    let (name, value) = match text.contains('=') {
        true => name_value(text)?,
        false => (ONLY_DIM.to_owned(), text.to_owned()),
    };
    let size = match (value.as_str(), value.parse()) {
        ("max", _) => None,
        (_, Ok(n)) if n > 0 => Some(n),
        _ => return Err(format!("`{value}` is no positive number, nor max")),
    };
    if size.is_none() && name == ONLY_DIM {
        return Err("max is of a dimension: NAME=max".into());
    }
    Ok(Dimension { name, size })
}

/// Sizes of dimensions.
#[derive(Debug)]
pub(super) struct Dimensions {
    /// Those that are given.
    pub(super) given: BTreeMap<String, u64>,
    /// The one that is to be as large as fits.
    pub(super) largest: Option<String>,
}

impl Dimensions {
    /// Refuses dimensions that are given twice, and more than one that is to be largest.
    pub(super) fn new(options: &[Dimension]) -> Result<Dimensions, Failure> {
        let mut dims = Dimensions { given: BTreeMap::new(), largest: None };
        for Dimension { name, size } in options {
            if dims.given.contains_key(name) || dims.largest.as_ref() == Some(name) {
                return Err(miette!("--dim {name} is given twice").into());
            }
            match size {
                Some(size) => drop(dims.given.insert(name.clone(), *size)),
                None => {
                    if let Some(other) = dims.largest.replace(name.clone()) {
                        let help = "give a size for all but one";
                        return Err(
                            miette!(help = help, "--dim {other} and {name} are both max").into()
                        );
                    }
                }
            }
        }
        Ok(dims)
    }
}
