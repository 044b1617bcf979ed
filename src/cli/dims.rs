//! `--dim`: sizes of symbolic dimensions, one of which may be as large as fits.

use super::{Failure, name_value};
use crate::onnx::ONLY_DIM;
use miette::miette;
use std::collections::BTreeMap;

/// What `--dim NAME=N` says of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    name: String,
    /// One for each variant; none for the largest one that fits.
    sizes: Vec<u64>,
}

impl Dimension {
    /// Its name, which is empty for the only one that there is.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Reads `batch=32`, `batch=32,16`, `batch=max`, or sizes of the only dimension that there is.
pub(super) fn parse_dimension(text: &str) -> Result<Dimension, String> {
    let (name, value) = match text.contains('=') {
        true => name_value(text)?,
        false => (ONLY_DIM.to_owned(), text.to_owned()),
    };
    let size = |text: &str| match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("`{text}` is no positive number, nor max")),
    };
    let sizes = match value.as_str() {
        "max" if name == ONLY_DIM => return Err("max is of a dimension: NAME=max".into()),
        "max" => Vec::new(),
        sizes => sizes.split(',').map(size).collect::<Result<Vec<u64>, _>>()?,
    };
    if let Some(twice) = (1..sizes.len()).find(|&i| sizes[..i].contains(&sizes[i])) {
        return Err(format!("the size {} comes twice", sizes[twice]));
    }
    Ok(Dimension { name, sizes })
}

/// Sizes of dimensions.
#[derive(Debug)]
pub(super) struct Dimensions {
    /// Those that are given; of several sizes the first.
    pub(super) given: BTreeMap<String, u64>,
    /// All sizes of these, in the order of the options.
    pub(super) sizes: Vec<(String, Vec<u64>)>,
    /// The one that is to be as large as fits.
    pub(super) largest: Option<String>,
}

impl Dimensions {
    /// Refuses dimensions that are given twice, and more than one that is to be largest.
    pub(super) fn new(options: &[Dimension]) -> Result<Dimensions, Failure> {
        let mut dims = Dimensions { given: BTreeMap::new(), sizes: Vec::new(), largest: None };
        for Dimension { name, sizes } in options {
            if dims.given.contains_key(name) || dims.largest.as_ref() == Some(name) {
                return Err(miette!("--dim {name} is given twice").into());
            }
            match sizes.first() {
                Some(&size) => {
                    dims.given.insert(name.clone(), size);
                    dims.sizes.push((name.clone(), sizes.clone()));
                }
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
