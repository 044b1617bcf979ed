//! What is fed to a graph: inputs with their symbolic dimensions, and initializers.

use super::error::ImportError;
use super::proto::{
    GraphProto, TensorProto, ValueInfoProto, tensor_shape_proto::dimension::Value as Extent,
    type_proto::Value as TypeValue,
};
use super::read::{as_stored, element_type, shape_type};
use super::{ImportOptions, ONLY_DIM};
use arenic_ir::{DType, TensorType};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

/// One extent as a model declares it.
enum Dim<'m> {
    Fixed(i64),
    Symbol(&'m str),
    Unknown,
}

/// A tensor type as a model declares it, possibly in part.
pub(super) struct Declared<'m> {
    dtype: DType,
    dims: Option<Vec<Dim<'m>>>,
}

impl Declared<'_> {
    /// True where a tensor of this type is what was declared.
    pub(super) fn admits(&self, ty: &TensorType) -> bool {
        let shape_fits = |dims: &Vec<Dim>| {
            dims.len() == ty.rank()
                && dims.iter().zip(&ty.shape).all(|(dim, &d)| match dim {
                    Dim::Fixed(n) => usize::try_from(*n) == Ok(d),
                    Dim::Symbol(_) | Dim::Unknown => true,
                })
        };
        self.dtype == ty.dtype && self.dims.as_ref().is_none_or(shape_fits)
    }
}

impl fmt::Display for Declared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        let Some(dims) = &self.dims else { return Ok(()) };
        let texts: Vec<String> = dims
            .iter()
            .map(|d| match d {
                Dim::Fixed(n) => n.to_string(),
                Dim::Symbol(name) => (*name).to_owned(),
                Dim::Unknown => "?".into(),
            })
            .collect();
        write!(f, "[{}]", texts.join(","))
    }
}

/// The declared type of an input or output, where one is declared.
pub(super) fn declared(info: &ValueInfoProto) -> Result<Option<Declared<'_>>, String> {
    let tensor = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        None => return Ok(None),
        Some(TypeValue::TensorType(tensor)) => tensor,
        Some(_) => return Err("it is no tensor".into()),
    };
    let dtype = element_type(tensor.elem_type.unwrap_or_default())?;
    let dims = tensor.shape.as_ref().map(|shape| {
        shape
            .dim
            .iter()
            .map(|d| match &d.value {
                Some(Extent::DimValue(n)) => Dim::Fixed(*n),
                Some(Extent::DimParam(name)) if !name.is_empty() => Dim::Symbol(name),
                _ => Dim::Unknown,
            })
            .collect()
    });
    Ok(Some(Declared { dtype, dims }))
}

/// One tensor that no node defines.
pub(super) enum Feed<'m> {
    /// Fed before every step, or a state without a first value.
    Fed(&'m str, TensorType),
    /// Made a constant by the caller.
    Bound(&'m str, TensorType, Bytes),
    /// Stored in the model; what the graph input of its name says, where there is one.
    Stored(&'m str, &'m TensorProto, Option<Declared<'m>>),
}

impl<'m> Feed<'m> {
    pub(super) fn name(&self) -> &'m str {
        match self {
            Feed::Fed(name, _) | Feed::Bound(name, ..) | Feed::Stored(name, ..) => name,
        }
    }
}

fn input_error(name: &str, reason: impl Into<String>) -> ImportError {
    ImportError::Interface { kind: "input", name: name.to_owned(), reason: reason.into() }
}

fn bind_error(name: &str, reason: impl Into<String>) -> ImportError {
    ImportError::Interface { kind: "--bind", name: name.to_owned(), reason: reason.into() }
}

/// All tensors that no node defines, with symbolic dimensions resolved: inputs in order,
/// then the other initializers.
pub(super) fn feeds<'m>(
    graph: &'m GraphProto,
    options: &ImportOptions,
) -> Result<Vec<Feed<'m>>, ImportError> {
    let mut stored: HashMap<&str, &TensorProto> = HashMap::new();
    stored.extend(graph.initializer.iter().map(|t| (t.name.as_deref().unwrap_or(""), t)));
    let mut inputs = Vec::with_capacity(graph.input.len());
    for info in &graph.input {
        let name = info.name.as_deref().unwrap_or("");
        inputs.push((name, declared(info).map_err(|reason| input_error(name, reason))?));
    }

    let mut sizes = Sizes::new(options);
    for (name, declared) in &inputs {
        sizes.note(name, declared.as_ref(), options.bind.get(*name).map(|(ty, _)| ty))?;
    }
    sizes.check_known(options)?;
    if options.ranks > 1 {
        let fed = inputs
            .iter()
            .filter(|(name, _)| !stored.contains_key(name) && !options.bind.contains_key(*name));
        sizes.of_ranks(options.ranks as u64, fed)?;
    }

    let mut feeds = Vec::with_capacity(inputs.len() + stored.len());
    let mut met: HashSet<&str> = HashSet::new();
    for (name, declared) in inputs {
        met.insert(name);
        if let Some((ty, bytes)) = options.bind.get(name) {
            feeds.push(bound(name, ty, bytes, declared.as_ref())?);
        } else if let Some(tensor) = stored.get(name) {
            feeds.push(Feed::Stored(name, tensor, declared));
        } else if let Some(ty) = sizes.resolve(name, declared)? {
            feeds.push(Feed::Fed(name, ty));
        }
    }
    sizes.check_all_bound()?;
    for tensor in &graph.initializer {
        let name = tensor.name.as_deref().unwrap_or("");
        if !met.insert(name) {
            continue;
        }
        feeds.push(match options.bind.get(name) {
            Some((ty, bytes)) => bound(name, ty, bytes, None)?,
            None => Feed::Stored(name, tensor, None),
        });
    }
    match options.bind.keys().find(|name| !met.contains(name.as_str())) {
        Some(name) => Err(bind_error(name, "the model has no input or initializer of this name")),
        None => Ok(feeds),
    }
}

/// The value that the caller gives to an input.
fn bound<'m>(
    name: &'m str,
    ty: &TensorType,
    bytes: &[u8],
    declared: Option<&Declared>,
) -> Result<Feed<'m>, ImportError> {
    if ty.checked_bytes() != Some(bytes.len() as u64) {
        return Err(bind_error(name, format!("{} bytes are no {ty}", bytes.len())));
    }
    match declared {
        Some(d) if !d.admits(ty) => {
            Err(bind_error(name, format!("it is {ty}, but the input is {d}")))
        }
        _ => Ok(Feed::Bound(name, ty.clone(), as_stored(ty, Bytes::copy_from_slice(bytes)))),
    }
}

/// The inputs of a model, and by axis the name of the dimension, or `None` where its size is fixed; none of
/// those whose rank is not declared.
pub(super) fn symbols(graph: &GraphProto) -> Vec<(String, Vec<Option<String>>)> {
    let named = |info: &ValueInfoProto| {
        let name = info.name.clone().unwrap_or_default();
        let dims = declared(info).ok()??.dims?;
        let axis = |(i, dim): (usize, &Dim)| match dim {
            Dim::Fixed(_) => None,
            Dim::Symbol(symbol) => Some((*symbol).to_owned()),
            Dim::Unknown => Some(unnamed(&name, i)),
        };
        let axes = dims.iter().enumerate().map(axis).collect();
        Some((name, axes))
    };
    graph.input.iter().filter_map(named).collect()
}

/// Sizes of symbolic dimensions.
struct Sizes {
    sizes: BTreeMap<String, u64>,
    known: BTreeSet<String>,
    unbound: Vec<String>,
}

/// What to call a dimension that the model leaves open without a name.
fn unnamed(input: &str, axis: usize) -> String {
    format!("{input}.{axis}")
}

impl Sizes {
    fn new(options: &ImportOptions) -> Self {
        Sizes { sizes: options.dims.clone(), known: BTreeSet::new(), unbound: Vec::new() }
    }

    /// Takes up the names in a declaration, and their sizes from a bound value.
    fn note(
        &mut self,
        input: &str,
        declared: Option<&Declared>,
        bound: Option<&TensorType>,
    ) -> Result<(), ImportError> {
        for (i, dim) in declared.iter().filter_map(|d| d.dims.as_ref()).flatten().enumerate() {
            let name = match dim {
                Dim::Fixed(_) => continue,
                Dim::Symbol(name) => (*name).to_owned(),
                Dim::Unknown => unnamed(input, i),
            };
            if let Some(&extent) = bound.and_then(|ty| ty.shape.get(i)) {
                let size = *self.sizes.entry(name.clone()).or_insert(extent as u64);
                if size != extent as u64 {
                    let reason = format!("its dimension {name} is {extent}, elsewhere {size}");
                    return Err(bind_error(input, reason));
                }
            }
            self.known.insert(name);
        }
        Ok(())
    }

    /// Refuses sizes for names that no input has; a size without a name is that of the only one.
    fn check_known(&mut self, options: &ImportOptions) -> Result<(), ImportError> {
        if let Some(size) = self.sizes.remove(ONLY_DIM) {
            let mut known = self.known.iter();
            match (known.next(), known.next()) {
                (Some(only), None) => drop(self.sizes.insert(only.clone(), size)),
                _ => {
                    let known = self.known.iter().cloned().collect();
                    return Err(ImportError::UnnamedDim { size, known });
                }
            }
        }
        let unknown = |name: &&String| *name != ONLY_DIM && !self.known.contains(*name);
        let names: Vec<String> = options.dims.keys().filter(unknown).cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(ImportError::UnknownDims { names, known: self.known.iter().cloned().collect() })
    }

    /// Makes of a rank's rows of the batch those of all ranks.
    fn of_ranks<'i, 'm: 'i>(
        &mut self,
        ranks: u64,
        inputs: impl Iterator<Item = &'i (&'m str, Option<Declared<'m>>)>,
    ) -> Result<(), ImportError> {
        let mut batch: BTreeSet<String> = BTreeSet::new();
        for (input, declared) in inputs {
            let dims = declared.as_ref().and_then(|d| d.dims.as_ref());
            match dims.and_then(|dims| dims.first()) {
                Some(Dim::Symbol(name)) => drop(batch.insert((*name).to_owned())),
                Some(Dim::Unknown) => drop(batch.insert(unnamed(input, 0))),
                Some(Dim::Fixed(_)) | None => {}
            }
        }
        if batch.is_empty() {
            return Err(ImportError::RanksWithoutBatch);
        }
        for name in batch {
            if let Some(size) = self.sizes.get_mut(&name) {
                *size = size.saturating_mul(ranks);
            }
        }
        Ok(())
    }

    /// The type of a fed input; `None` where a size is missing, which is noted.
    fn resolve(
        &mut self,
        input: &str,
        declared: Option<Declared>,
    ) -> Result<Option<TensorType>, ImportError> {
        let Some(Declared { dtype, dims: Some(dims) }) = declared else {
            return Err(input_error(input, "its type or its rank is not declared"));
        };
        let mut shape = Vec::with_capacity(dims.len());
        let mut complete = true;
        for (i, dim) in dims.iter().enumerate() {
            let name = match dim {
                Dim::Fixed(n) => {
                    shape.push(*n);
                    continue;
                }
                Dim::Symbol(name) => (*name).to_owned(),
                Dim::Unknown => unnamed(input, i),
            };
            match self.sizes.get(&name) {
                Some(&size) => shape.push(i64::try_from(size).unwrap_or(i64::MAX)),
                None => {
                    complete = false;
                    if !self.unbound.contains(&name) {
                        self.unbound.push(name);
                    }
                }
            }
        }
        if !complete {
            return Ok(None);
        }
        shape_type(dtype, &shape).map(Some).map_err(|reason| input_error(input, reason))
    }

    /// Names every dimension whose size is missing.
    fn check_all_bound(&self) -> Result<(), ImportError> {
        if self.unbound.is_empty() {
            return Ok(());
        }
        Err(ImportError::UnboundDims(self.unbound.clone()))
    }
}
