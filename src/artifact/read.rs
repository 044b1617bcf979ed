//! How an artifact is read.

use super::header::{
    Boundary, DIGEST, Header, Held, MAGIC, PREAMBLE, PartHeader, RoundsHeader, TargetHeader,
    VERSION,
};
use super::layout::{Entry, SECTION_ALIGN, piece};
use super::target::whole_step;
use super::{Artifact, ArtifactError, Figures, Origin, Part, Target, recipe};
use crate::mapping::Mapping;
use arenic_ir::graph::Def;
use arenic_ir::program::Program;
use arenic_ir::text::Module;
use arenic_ir::verify::verify;
use arenic_ir::{Graph, NodeId, Rounds, StateId, ValueId};
use arenic_passes::Purpose;
use bytes::Bytes;
use cranelift_entity::EntityRef;
use prost::Message;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;

impl Artifact {
    /// Maps and reads an artifact; its tensors stay in the file.
    ///
    /// # Errors
    /// The file cannot be read, is no artifact, was cut or altered, comes from a newer
    /// version, or holds a malformed graph.
    pub fn read(path: &Path) -> Result<Artifact, ArtifactError> {
        Artifact::read_for(path, &[Purpose::Step, Purpose::Evaluation])
    }

    /// The same, with the targets of these purposes alone: others take no memory.
    ///
    /// # Errors
    /// As for [`Artifact::read`], of what is read.
    pub fn read_for(path: &Path, purposes: &[Purpose]) -> Result<Artifact, ArtifactError> {
        let io = |error| ArtifactError::Io { path: path.to_owned(), error };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(format_error(path, "is empty"));
        }
        let mapping = Mapping::new(&file).map_err(io)?;
        let bytes = mapping.bytes();
        let refuse = |reason: String| ArtifactError::Format { path: path.to_owned(), reason };
        let (header, data) = parse_envelope(&bytes).map_err(refuse)?;
        let mut digest = [0; 32];
        digest.copy_from_slice(&bytes[DIGEST]);
        let all = |purpose, entries: Vec<TargetHeader>| -> Result<Vec<Target>, ArtifactError> {
            let wanted = entries.into_iter().filter(|_| purposes.contains(&purpose));
            wanted.map(|entry| read_target(path, entry, &data, &mapping)).collect()
        };
        mapping.release();
        let (targets, evaluations) =
            (all(Purpose::Step, header.targets)?, all(Purpose::Evaluation, header.evaluations)?);
        for targets in [&targets, &evaluations] {
            let mut seen = HashSet::new();
            if let Some(twice) = targets.iter().find(|t| !seen.insert((&t.name, &t.variant))) {
                let reason = format!("holds two steps for {}, `{}`", twice.name, twice.variant);
                return Err(format_error(path, &reason));
            }
        }
        Ok(Artifact {
            targets,
            evaluations,
            defaults: header.defaults,
            provenance: header.provenance.unwrap_or_default(),
            runnable: header.runnable,
            recipe: header.recipe.and_then(|recipe| recipe::read(recipe, &data)),
            drops: header.drops,
            origin: Some(Origin { path: path.to_owned(), digest }),
        })
    }
}

fn format_error(path: &Path, reason: &str) -> ArtifactError {
    ArtifactError::Format { path: path.to_owned(), reason: reason.to_owned() }
}

/// The header and the data behind it, digest verified.
fn parse_envelope(bytes: &Bytes) -> Result<(Header, Bytes), String> {
    if bytes.len() < PREAMBLE || !bytes.starts_with(MAGIC) {
        return Err("is not an arenic artifact; `arenic compile` makes one".into());
    }
    let word = |range: std::ops::Range<usize>| {
        bytes[range].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b))
    };
    let version = word(8..12);
    if version > u64::from(VERSION) {
        return Err(format!(
            "has format version {version}, this arenic reads up to {VERSION}; use a newer arenic"
        ));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..DIGEST.start]);
    hasher.update(&[0; DIGEST.end - DIGEST.start]);
    hasher.update_rayon(&bytes[DIGEST.end..]);
    if hasher.finalize().as_bytes()[..] != bytes[DIGEST] {
        return Err("was cut or altered: its digest does not match; compile it again".into());
    }
    let header_len = usize::try_from(word(12..20)).ok();
    let end = header_len.and_then(|n| n.checked_add(PREAMBLE)).filter(|&e| e <= bytes.len());
    let Some(end) = end else { return Err("has a header beyond its end".into()) };
    let header = Header::decode(bytes.slice(PREAMBLE..end))
        .map_err(|e| format!("has an unreadable header: {e}"))?;
    if header.boundary() != Boundary::Joined {
        return Err("does not say that its steps end with all copies joined, which is how this \
                    arenic runs them; compile it again"
            .into());
    }
    let data_start = end.next_multiple_of(SECTION_ALIGN as usize).min(bytes.len());
    Ok((header, bytes.slice(data_start..)))
}

fn read_target(
    path: &Path,
    entry: TargetHeader,
    data: &Bytes,
    file: &Mapping,
) -> Result<Target, ArtifactError> {
    let (mut graph, program) = read_module(path, &entry.module, &entry.constants, data)?;
    for e in &entry.states {
        let s = StateId::new(e.id as usize);
        match (graph.states.get_mut(s), piece(data, e)) {
            (Some(state), Some(bytes)) => state.init = Some(bytes),
            _ => return Err(format_error(path, &format!("has no data for state {s}"))),
        }
    }
    verify(&graph).map_err(|defect| ArtifactError::Graph { path: path.to_owned(), defect })?;
    let TargetHeader {
        name,
        variant,
        structure,
        statistics,
        bound,
        certificate,
        kernels,
        rounds,
        fed: held,
        ..
    } = entry;
    let certificate = certificate.unwrap_or_default();
    let known = |h: &Held| h.value.is_none_or(|v| graph.values.is_valid(ValueId::from_u32(v)));
    if !certificate.own.iter().chain(&certificate.cut).all(known)
        || certificate.operator.is_some_and(|n| !graph.nodes.is_valid(NodeId::from_u32(n)))
    {
        return Err(format_error(path, "holds a certificate for another graph"));
    }
    let rounds = rounds.map(|rounds| read_rounds(path, rounds, data, (&graph, &program)));
    let (rounds, file) = (rounds.transpose()?, file.clone());
    let mut fed = BTreeMap::new();
    for (name, entry) in held {
        let bytes =
            piece(data, &entry).filter(|_| feeds(&graph, rounds.as_deref(), &name, entry.len));
        let Some(bytes) = bytes else {
            return Err(format_error(path, &format!("feeds `{name}`, which is no such input")));
        };
        fed.insert(name, bytes);
    }
    Ok(Target {
        name,
        variant,
        structure,
        graph,
        program,
        figures: Figures::read(&statistics),
        certificate,
        bound,
        fed,
        kernels,
        rounds,
        file,
    })
}

/// True where a program of the step has an input of this name, which is the same in all rounds, and all that have it
/// take so many bytes.
fn feeds(g: &Graph, rounds: Option<&Rounds<Part>>, name: &str, len: u64) -> bool {
    if rounds.is_some_and(|rounds| rounds.by_rows.contains(name)) {
        return false;
    }
    let around = rounds.into_iter().flat_map(|rounds| [&rounds.before.graph, &rounds.after.graph]);
    let inputs =
        std::iter::once(g).chain(around).flat_map(|g| g.inputs().map(move |v| &g.values[v]));
    let mut named = inputs.filter(|value| value.name == name).peekable();
    named.peek().is_some() && named.all(|value| value.ty.bytes() == len)
}

/// A module's graph, with its constants, and program.
fn read_module(
    path: &Path,
    text: &str,
    constants: &[Entry],
    data: &Bytes,
) -> Result<(Graph, Program), ArtifactError> {
    let module = Module::parse(text, &arenic_backends::ALL)
        .map_err(|e| format_error(path, &format!("holds an unreadable module: {e}")))?;
    let Module { mut graph, program: Some(program), .. } = module else {
        return Err(format_error(path, "holds a module without a program"));
    };
    for e in constants {
        let v = ValueId::new(e.id as usize);
        match (graph.values.get_mut(v).map(|v| &mut v.def), piece(data, e)) {
            (Some(Def::Const(slot)), Some(bytes)) => *slot = bytes,
            _ => return Err(format_error(path, &format!("has no data for constant {v}"))),
        }
    }
    Ok((graph, program))
}

/// What runs around the rounds of this graph and program.
fn read_rounds(
    path: &Path,
    rounds: RoundsHeader,
    data: &Bytes,
    (graph, program): (&Graph, &Program),
) -> Result<Box<Rounds<Part>>, ArtifactError> {
    let RoundsHeader { count, by_rows, before, after } = rounds;
    let part = |part: Option<PartHeader>| {
        let Some(PartHeader { module, constants, kernels }) = part else {
            return Err(format_error(path, "holds rounds without what runs around them"));
        };
        let (graph, program) = read_module(path, &module, &constants, data)?;
        verify(&graph).map_err(|defect| ArtifactError::Graph { path: path.to_owned(), defect })?;
        Ok(Part { graph, program, kernels })
    };
    let by_rows = by_rows.into_iter().collect();
    let rounds = Rounds { count, by_rows, before: part(before)?, after: part(after)? };
    whole_step(graph, program, &rounds)
        .map_err(|e| format_error(path, &format!("holds rounds of no step: {e}")))?;
    Ok(Box::new(rounds))
}
