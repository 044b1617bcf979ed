//! The messages of an artifact's header.

use super::layout::Entry;
use super::recipe::RecipeHeader;
use crate::drops::Drops;
use arenic_passes::certificate::{self, PeakBound};
use cranelift_entity::EntityRef;
use std::collections::BTreeMap;

/// What a file begins with.
pub(super) const MAGIC: &[u8; 8] = b"arenic\0\0";
/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// Bytes before the header.
pub(super) const PREAMBLE: usize = 64;
/// Where the digest stands in them.
pub(super) const DIGEST: std::ops::Range<usize> = 20..52;
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

/// The file's header.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    pub(super) provenance: Option<Provenance>,
    #[prost(message, repeated, tag = "2")]
    pub(super) targets: Vec<TargetHeader>,
    #[prost(bool, tag = "3")]
    pub(super) runnable: bool,
    #[prost(enumeration = "Boundary", tag = "4")]
    pub(super) boundary: i32,
    #[prost(message, repeated, tag = "5")]
    pub(super) evaluations: Vec<TargetHeader>,
    #[prost(btree_map = "string, double", tag = "6")]
    pub(super) defaults: BTreeMap<String, f64>,
    #[prost(message, optional, tag = "7")]
    pub(super) recipe: Option<RecipeHeader>,
    #[prost(message, optional, tag = "8")]
    pub(super) drops: Option<Drops>,
}

/// A target, but for its tensors.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TargetHeader {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Graph and program as text.
    #[prost(string, tag = "2")]
    pub(super) module: String,
    #[prost(btree_map = "string, uint64", tag = "3")]
    pub(super) statistics: BTreeMap<String, u64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) constants: Vec<Entry>,
    #[prost(message, repeated, tag = "5")]
    pub(super) states: Vec<Entry>,
    #[prost(string, repeated, tag = "6")]
    pub(super) bound: Vec<String>,
    #[prost(message, optional, tag = "7")]
    pub(super) certificate: Option<Certificate>,
    #[prost(message, optional, tag = "8")]
    pub(super) kernels: Option<Kernels>,
    #[prost(message, optional, tag = "9")]
    pub(super) rounds: Option<RoundsHeader>,
    #[prost(string, tag = "10")]
    pub(super) variant: String,
    #[prost(string, tag = "11")]
    pub(super) structure: String,
    /// Contents of inputs that hold the same in every step.
    #[prost(btree_map = "string, message", tag = "12")]
    pub(super) fed: BTreeMap<String, Entry>,
}

/// What runs around the rounds whose module is the target's.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RoundsHeader {
    #[prost(uint32, tag = "1")]
    pub(super) count: u32,
    #[prost(string, repeated, tag = "2")]
    pub(super) by_rows: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) before: Option<PartHeader>,
    #[prost(message, optional, tag = "4")]
    pub(super) after: Option<PartHeader>,
}

/// What runs before or after the rounds.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PartHeader {
    /// Graph and program as text.
    #[prost(string, tag = "1")]
    pub(super) module: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) constants: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    pub(super) kernels: Option<Kernels>,
}
