//! How an artifact is written.

use super::header::{
    Boundary, DIGEST, Header, MAGIC, PREAMBLE, PartHeader, RoundsHeader, TargetHeader, VERSION,
};
use super::layout::{Entry, Layout, SECTION_ALIGN};
use super::{Artifact, ArtifactError, Figures, Part, Target, recipe};
use crate::data::{AtomicFile, DataError};
use arenic_ir::graph::Data;
use arenic_ir::text::Module;
use arenic_ir::{Graph, ValueId};
use cranelift_entity::EntityRef;
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;

impl Artifact {
    /// Writes the artifact under a temporary name and renames it.
    ///
    /// # Errors
    /// The file system refuses; a file of that name is then left as it was.
    pub fn write(&self, path: &Path) -> Result<(), ArtifactError> {
        let mut layout = Layout::default();
        let header = Header {
            provenance: Some(self.provenance.clone()),
            targets: self.targets.iter().map(|t| write_target(t, &mut layout)).collect(),
            runnable: self.runnable,
            boundary: Boundary::Joined.into(),
            evaluations: self.evaluations.iter().map(|t| write_target(t, &mut layout)).collect(),
            defaults: self.defaults.clone(),
            recipe: self.recipe.as_ref().map(|recipe| recipe::write(recipe, &mut layout)),
            drops: self.drops.clone(),
        };
        let header = header.encode_to_vec();
        let mut preamble = [0u8; PREAMBLE];
        preamble[..8].copy_from_slice(MAGIC);
        preamble[8..12].copy_from_slice(&VERSION.to_le_bytes());
        preamble[12..20].copy_from_slice(&(header.len() as u64).to_le_bytes());
        let data_start = (PREAMBLE + header.len()).next_multiple_of(SECTION_ALIGN as usize);

        // Everything is streamed twice: once through the digest, once to the file.
        let stream = |sink: &mut dyn FnMut(&[u8]) -> Result<(), DataError>| {
            sink(&header)?;
            sink(&vec![0; data_start - PREAMBLE - header.len()])?;
            let mut at = 0;
            for &(offset, bytes) in &layout.pieces {
                sink(&vec![0; (offset - at) as usize])?;
                sink(bytes)?;
                at = offset + bytes.len() as u64;
            }
            Ok::<(), DataError>(())
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&preamble);
        stream(&mut |bytes| {
            hasher.update(bytes);
            Ok(())
        })?;
        preamble[DIGEST].copy_from_slice(hasher.finalize().as_bytes());

        let mut file = AtomicFile::create(path)?;
        file.put(&preamble)?;
        stream(&mut |bytes| file.put(bytes))?;
        Ok(file.commit()?)
    }
}

/// A target's part of the header; its tensors go to the layout.
fn write_target<'a>(target: &'a Target, layout: &mut Layout<'a>) -> TargetHeader {
    let module =
        Module { graph: target.graph.clone(), plan: None, program: Some(target.program.clone()) };
    let mut entry = TargetHeader {
        name: target.name.clone(),
        module: module.to_string(),
        statistics: named(&target.figures),
        constants: Vec::new(),
        states: Vec::new(),
        bound: target.bound.clone(),
        certificate: Some(target.certificate.clone()),
        kernels: target.kernels.clone(),
        rounds: None,
        variant: target.variant.clone(),
        structure: target.structure.clone(),
        fed: BTreeMap::new(),
    };
    layout.section();
    for (name, data) in &target.fed {
        if let Data::Bytes(bytes) = data {
            entry.fed.insert(name.clone(), layout.push(0, bytes));
        }
    }
    entry.constants = write_constants(&target.graph, layout);
    entry.rounds = target.rounds.as_deref().map(|rounds| {
        let mut part = |part| Some(write_part(part, layout));
        let (before, after) = (part(&rounds.before), part(&rounds.after));
        let by_rows = rounds.by_rows.iter().cloned().collect();
        RoundsHeader { count: rounds.count, by_rows, before, after }
    });
    layout.section();
    for (s, state) in &target.graph.states {
        if let Some(Data::Bytes(bytes)) = &state.init {
            entry.states.push(layout.push(s.index(), bytes));
        }
    }
    entry
}

/// Figures as the header has them.
fn named(figures: &Figures) -> BTreeMap<String, u64> {
    figures.named().into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect()
}

/// Initial states are the target's.
fn write_part<'a>(part: &'a Part, layout: &mut Layout<'a>) -> PartHeader {
    let mut graph = part.graph.clone();
    graph.states.values_mut().for_each(|state| state.init = None);
    let module = Module { graph, plan: None, program: Some(part.program.clone()) };
    PartHeader {
        module: module.to_string(),
        constants: write_constants(&part.graph, layout),
        kernels: part.kernels.clone(),
    }
}

fn write_constants<'a>(g: &'a Graph, layout: &mut Layout<'a>) -> Vec<Entry> {
    let entry = |(v, data): (ValueId, &'a Data)| Some(layout.push(v.index(), data.bytes()?));
    g.consts().filter_map(entry).collect()
}
