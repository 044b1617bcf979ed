//! Variants of a step, as options name them: sizes of dimensions, and models.

use super::dims::Dimensions;
use super::{Failure, failed, name_value};
use crate::compiler::Variant;
use crate::model::Model;
use miette::miette;

/// Sizes that make a combination one of the variants; `None` for any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Only(Vec<(String, Option<u64>)>);

/// Reads `batch=8,seq=*`.
pub(super) fn parse_only(text: &str) -> Result<Only, String> {
    let part = |part: &str| {
        let (name, size) = name_value(part)?;
        match (size.as_str(), size.parse()) {
            ("*", _) => Ok((name, None)),
            (_, Ok(n)) => Ok((name, Some(n))),
            _ => Err(format!("`{size}` is no size of {name}, nor *")),
        }
    };
    text.split(',').map(part).collect::<Result<_, String>>().map(Only)
}

impl Only {
    fn fits(&self, sizes: &[(&str, u64)]) -> bool {
        let holds = |(name, size): &(String, Option<u64>)| {
            size.is_none_or(|size| sizes.contains(&(name.as_str(), size)))
        };
        self.0.iter().all(holds)
    }
}

/// The variants that options name; one without a name where they name no more.
///
/// # Errors
/// An `--only` that names no dimension, or fits nothing; a name of a model that comes twice.
pub(super) fn named(
    models: &[(String, String)],
    source: Option<Model>,
    dims: &Dimensions,
    only: &[Only],
) -> Result<Vec<Variant>, Failure> {
    let mut shapes: Vec<Vec<(&str, u64)>> = vec![Vec::new()];
    for (name, sizes) in &dims.sizes {
        let mut longer = Vec::new();
        for shape in &shapes {
            let with = |&size: &u64| [&shape[..], &[(name.as_str(), size)]].concat();
            longer.extend(sizes.iter().map(with));
        }
        shapes = longer;
    }
    for Only(parts) in only {
        if let Some((name, _)) = parts.iter().find(|(n, _)| dims.sizes.iter().all(|d| d.0 != *n)) {
            let help = "--only chooses among the sizes that --dim gives";
            return Err(miette!(help = help, "--only names {name}, which --dim does not").into());
        }
        if !shapes.iter().any(|shape| Only(parts.clone()).fits(shape)) {
            let parts = parts
                .iter()
                .map(|(n, s)| format!("{n}={}", s.map_or("*".to_owned(), |s| s.to_string())));
            let parts = parts.collect::<Vec<_>>().join(",");
            let help = "--only chooses among the sizes that --dim gives";
            return Err(miette!(help = help, "--only {parts} fits none of them").into());
        }
    }
    shapes.retain(|shape| only.is_empty() || only.iter().any(|only| only.fits(shape)));
    let is_one_shape = shapes.len() == 1;
    let of_shape = |shape: &[(&str, u64)]| {
        let part = |(name, size): &(&str, u64)| match *name {
            "" => size.to_string(),
            name => format!("{name}={size}"),
        };
        shape.iter().map(part).collect::<Vec<_>>().join(",")
    };
    let mut sources: Vec<(String, Model)> =
        source.into_iter().map(|model| (String::new(), model)).collect();
    for (name, model) in models {
        if sources.iter().any(|(known, _)| known == name) {
            return Err(miette!("--variant {name}={model}: each needs a name of its own").into());
        }
        sources.push((name.clone(), Model::open(model).map_err(failed)?));
    }
    let mut variants = Vec::new();
    for (structure, model) in sources {
        for shape in &shapes {
            let name = match (structure.as_str(), is_one_shape) {
                ("", true) => "".into(),
                ("", false) => of_shape(shape),
                (structure, true) => structure.to_owned(),
                (structure, false) => format!("{structure},{}", of_shape(shape)),
            };
            let with = |model: Model, &(name, size): &(&str, u64)| model.dim(name, size);
            let model = shape.iter().fold(model.clone(), with);
            variants.push(Variant { name, structure: structure.clone(), model });
        }
    }
    if let [only] = &mut variants[..] {
        only.name.clear();
    }
    Ok(variants)
}
