//! The artifact: one file that holds everything needed to check and run a step.
//!
//! ```text
//! 0      magic "arenic\0\0", format version (u32), length of the header (u64),
//!        blake3 digest of everything else (32 bytes), zeros up to byte 64
//! 64     header: a protobuf message (`Header`)
//! …      4 KiB-aligned section of constants, 4 KiB-aligned section of initial states;
//!        each entry begins at a multiple of 64, and entries of equal contents are one
//! ```
//!
//! Graph and program are held in the text form, which has one printer and one parser;
//! only their larger tensors are in the sections, which are mapped, never copied. All
//! integers are little-endian. The same input and options give the same bytes.

mod figures;
mod recipe;
mod target;

use crate::data::{AtomicFile, DataError};
use crate::drops::Drops;
use crate::mapping::Mapping;
use crate::recipe::Recipe;
use arenic_ir::check::{Footprint, Violation, check_variants};
use arenic_ir::graph::{Data, Def};
use arenic_ir::program::{PerSpace, Program};
use arenic_ir::text::Module;
use arenic_ir::verify::{Defect, verify};
use arenic_ir::{Graph, NodeId, Rounds, StateId, ValueId};
use arenic_passes::Purpose;
use arenic_passes::certificate::{self, PeakBound};
use bytes::Bytes;
use cranelift_entity::EntityRef;
pub use figures::Figures;
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use target::whole_step;
pub use target::{Part, Target, Turn};

const MAGIC: &[u8; 8] = b"arenic\0\0";
const VERSION: u32 = 1;
const PREAMBLE: usize = 64;
const DIGEST: std::ops::Range<usize> = 20..52;
const SECTION_ALIGN: u64 = 4096;
const ENTRY_ALIGN: u64 = 64;

/// A compiled step: for each target a program that the checker has proved to implement its graph.
///
/// ```
/// use arenic::{Artifact, Compiler, Model};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/digits/digits_step.onnx");
/// let artifact = Compiler::new().compile(&Model::open(path)?.dim("batch", 8))?;
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("digits.arenic");
/// artifact.write(&file)?;
/// assert_eq!(Artifact::read(&file)?.arena_bytes(), artifact.arena_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Artifact {
    /// One graph and checked program per target.
    pub targets: Vec<Target>,
    /// For a step that was made of a forward model: per target the forward pass that evaluates
    /// what was trained.
    pub evaluations: Vec<Target>,
    /// Values of inputs where a run gives none.
    pub defaults: BTreeMap<String, f64>,
    /// Where it came from.
    pub provenance: Provenance,
    /// False for a plan without data, which can be inspected but not run.
    pub runnable: bool,
    /// How to compile it at other sizes; `None` where that is not known.
    pub recipe: Option<Recipe>,
    /// Branches that its steps leave out; `None` where they leave out none.
    pub drops: Option<Drops>,
    /// The file that it was read from; `None` for one that was not.
    pub origin: Option<Origin>,
}

/// The file of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Where it is.
    pub path: PathBuf,
    /// The blake3 digest of its contents.
    pub digest: [u8; 32],
}

/// Kernels of a program for GPUs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Kernels {
    /// blake3 digest of the text they were compiled from.
    #[prost(bytes = "vec", tag = "1")]
    pub source_digest: Vec<u8>,
    /// Code for some architectures.
    #[prost(message, repeated, tag = "2")]
    pub images: Vec<KernelImage>,
}

/// Kernels compiled for one architecture.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KernelImage {
    /// Ten times the compute capability, for example 90.
    #[prost(uint32, tag = "1")]
    pub capability: u32,
    /// PTX for this capability and newer ones; else a cubin.
    #[prost(bool, tag = "2")]
    pub is_ptx: bool,
    /// The code.
    #[prost(bytes = "vec", tag = "3")]
    pub code: Vec<u8>,
}

/// Why no order of a graph has a much lower peak: the operator that bounds it, and the cut of
/// tensors that crosses that operator in any order.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Certificate {
    /// What operator and cut prove, in bytes.
    #[prost(uint64, tag = "1")]
    pub bound_bytes: u64,
    /// The operator's node id; `None` if the bound is what is alive at the start or the end.
    #[prost(uint32, optional, tag = "2")]
    pub operator: Option<u32>,
    /// The operator's operands, results and scratch.
    #[prost(message, repeated, tag = "3")]
    pub own: Vec<Held>,
    /// The tensors of the cut.
    #[prost(message, repeated, tag = "4")]
    pub cut: Vec<Held>,
}

/// Bytes that a tensor, or scratch, takes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Held {
    /// Its value id; `None` for scratch.
    #[prost(uint32, optional, tag = "1")]
    pub value: Option<u32>,
    /// Bytes, rounded up to the alignment.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

impl From<&PeakBound> for Certificate {
    fn from(c: &PeakBound) -> Self {
        let held = |all: &[certificate::Held]| {
            let row = |h: &certificate::Held| Held {
                value: h.value.map(|v| v.index() as u32),
                bytes: h.bytes,
            };
            all.iter().map(row).collect()
        };
        Certificate {
            bound_bytes: c.by_cut,
            operator: c.operator.map(|n| n.index() as u32),
            own: held(&c.own),
            cut: held(&c.cut),
        }
    }
}

/// How an artifact was made.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Provenance {
    /// Version of the compiler.
    #[prost(string, tag = "1")]
    pub compiler: String,
    /// File name of the model, without its folder.
    #[prost(string, tag = "2")]
    pub model: String,
    /// blake3 digest of the model file.
    #[prost(bytes = "vec", tag = "3")]
    pub model_digest: Vec<u8>,
    /// The pipeline's passes.
    #[prost(string, repeated, tag = "4")]
    pub passes: Vec<String>,
    /// A time limit, or the user, ended a search before its work was done: the same inputs and
    /// options may give another artifact.
    #[prost(bool, tag = "5")]
    pub is_cut: bool,
}

/// How a step of a program ends. The checker, the simulator and the executors take it the same
/// way, and an artifact says it, so that no other runtime takes it otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Boundary {
    /// The artifact does not say.
    Unspecified = 0,
    /// Every stream has joined the first: nothing is in flight. A copy that has no time left in
    /// a step waits for the next: what it takes to the host is in its home on the device until
    /// then. So a step is whole: it can be one CUDA graph, and states can be saved after any.
    Joined = 1,
}

impl Boundary {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Boundary::Unspecified => "unspecified",
            Boundary::Joined => "joined",
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(message, optional, tag = "1")]
    provenance: Option<Provenance>,
    #[prost(message, repeated, tag = "2")]
    targets: Vec<TargetHeader>,
    #[prost(bool, tag = "3")]
    runnable: bool,
    #[prost(enumeration = "Boundary", tag = "4")]
    boundary: i32,
    #[prost(message, repeated, tag = "5")]
    evaluations: Vec<TargetHeader>,
    #[prost(btree_map = "string, double", tag = "6")]
    defaults: BTreeMap<String, f64>,
    #[prost(message, optional, tag = "7")]
    recipe: Option<recipe::RecipeHeader>,
    #[prost(message, optional, tag = "8")]
    drops: Option<Drops>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TargetHeader {
    #[prost(string, tag = "1")]
    name: String,
    /// Graph and program as text.
    #[prost(string, tag = "2")]
    module: String,
    #[prost(btree_map = "string, uint64", tag = "3")]
    statistics: BTreeMap<String, u64>,
    #[prost(message, repeated, tag = "4")]
    constants: Vec<Entry>,
    #[prost(message, repeated, tag = "5")]
    states: Vec<Entry>,
    #[prost(string, repeated, tag = "6")]
    bound: Vec<String>,
    #[prost(message, optional, tag = "7")]
    certificate: Option<Certificate>,
    #[prost(message, optional, tag = "8")]
    kernels: Option<Kernels>,
    #[prost(message, optional, tag = "9")]
    rounds: Option<RoundsHeader>,
    #[prost(string, tag = "10")]
    variant: String,
    #[prost(string, tag = "11")]
    structure: String,
    /// Contents of inputs that hold the same in every step.
    #[prost(btree_map = "string, message", tag = "12")]
    fed: BTreeMap<String, Entry>,
}

/// What runs around the rounds whose module is the target's.
#[derive(Clone, PartialEq, prost::Message)]
struct RoundsHeader {
    #[prost(uint32, tag = "1")]
    count: u32,
    #[prost(string, repeated, tag = "2")]
    by_rows: Vec<String>,
    #[prost(message, optional, tag = "3")]
    before: Option<PartHeader>,
    #[prost(message, optional, tag = "4")]
    after: Option<PartHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartHeader {
    /// Graph and program as text.
    #[prost(string, tag = "1")]
    module: String,
    #[prost(message, repeated, tag = "2")]
    constants: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    kernels: Option<Kernels>,
}

/// Bytes of a constant (by value id) or of a state's initial value (by state id), from
/// the start of the data that follow the header.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Entry {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(uint64, tag = "2")]
    offset: u64,
    #[prost(uint64, tag = "3")]
    len: u64,
}

/// Why a file could not be written or read as an artifact.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The file system refused.
    #[error("cannot read `{}`: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] DataError),
    /// Not an artifact, or not one this version reads.
    #[error("`{}` {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The graph inside is malformed.
    #[error("`{}` holds a malformed graph: {defect}", path.display())]
    Graph {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        defect: Defect,
    },
}

/// Places entries one after the other; those of equal contents are one.
#[derive(Default)]
struct Layout<'a> {
    at: u64,
    pieces: Vec<(u64, &'a Bytes)>,
    placed: HashMap<[u8; 32], u64>,
}

impl<'a> Layout<'a> {
    fn section(&mut self) {
        self.at = self.at.next_multiple_of(SECTION_ALIGN);
    }

    fn push(&mut self, id: usize, bytes: &'a Bytes) -> Entry {
        let digest = *blake3::hash(bytes).as_bytes();
        let offset = *self.placed.entry(digest).or_insert_with(|| {
            let offset = self.at.next_multiple_of(ENTRY_ALIGN);
            self.at = offset + bytes.len() as u64;
            self.pieces.push((offset, bytes));
            offset
        });
        Entry { id: id as u32, offset, len: bytes.len() as u64 }
    }
}

impl Artifact {
    /// Bytes of the first target's arena on the device, which all its variants share.
    pub fn arena_bytes(&self) -> u64 {
        self.targets.first().map_or(0, |target| self.arenas(&target.name).device)
    }

    /// The target of this name; of several variants the first.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|t| t.name == name)
    }

    /// The variants of the target of this name: steps that may follow one another in any sequence, over
    /// states that they have in common.
    pub fn variants(&self, name: &str) -> Vec<&Target> {
        self.targets.iter().filter(|t| t.name == name).collect()
    }

    /// The names of the targets, each once.
    pub fn target_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for target in &self.targets {
            if !names.contains(&&target.name[..]) {
                names.push(&target.name);
            }
        }
        names
    }

    /// What evaluates what the target of this name trains; of several variants the first.
    pub fn evaluation(&self, name: &str) -> Option<&Target> {
        self.evaluations.iter().find(|t| t.name == name)
    }

    /// Judges the programs of a target: each against its graph, and all variants against one another.
    /// Gives what each uses, by variant and in the order of [`Target::turns`].
    ///
    /// # Errors
    /// The violations; of several programs they name these by their places among those of all
    /// variants.
    pub fn check(&self, name: &str) -> Result<Vec<Vec<Footprint>>, Vec<Violation>> {
        let steps: Vec<_> = self.variants(name).into_iter().map(Target::parts).collect();
        check_variants(&steps)
    }

    /// Bytes of the arenas of a target, which are as large as its largest variant needs.
    pub fn arenas(&self, name: &str) -> PerSpace<u64> {
        let sizes = self.variants(name).into_iter().map(Target::arena_bytes);
        sizes.fold(PerSpace::default(), PerSpace::largest)
    }

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

/// The bytes of an entry, where the file has them.
fn piece(data: &Bytes, e: &Entry) -> Option<Data> {
    let first = usize::try_from(e.offset).ok()?;
    let end = first.checked_add(usize::try_from(e.len).ok()?)?;
    (end <= data.len()).then(|| Data::Bytes(data.slice(first..end)))
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
