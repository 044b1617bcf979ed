//! Kernels as text, and how they are launched.

use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};
use std::collections::HashMap;
use std::fmt::Write;

/// The headers that a module's text includes: name and text.
pub const HEADERS: &[(&str, &str)] = &[
    ("arenic.cuh", include_str!("kernels/arenic.cuh")),
    ("attention.cuh", include_str!("kernels/attention.cuh")),
    ("tensor_core.cuh", include_str!("kernels/tensor_core.cuh")),
    ("warp.cuh", include_str!("kernels/warp.cuh")),
    ("movement.cuh", include_str!("kernels/movement.cuh")),
    ("indexing.cuh", include_str!("kernels/indexing.cuh")),
    ("windows.cuh", include_str!("kernels/windows.cuh")),
    ("reduce.cuh", include_str!("kernels/reduce.cuh")),
    ("rows.cuh", include_str!("kernels/rows.cuh")),
    ("softmax.cuh", include_str!("kernels/softmax.cuh")),
    ("random.cuh", include_str!("kernels/random.cuh")),
    ("product.cuh", include_str!("kernels/product.cuh")),
    ("ranks.cuh", include_str!("kernels/ranks.cuh")),
];

/// A kernel of a module, printed `k0`, which is also its name in the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(u32);
entity_impl!(KernelId, "k");

/// The text of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Threads of each block.
    pub threads: u32,
    /// Blocks that a multiprocessor is to hold at once, which bounds registers; 0 where nothing is said.
    pub resident: u32,
    /// Parameters as they are declared.
    pub parameters: String,
    /// What it does.
    pub body: String,
}

/// What a launch passes for one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The address of an operand.
    Input(usize),
    /// The address of a result.
    Output(usize),
    /// An address within the call's scratch.
    Scratch(u64),
    /// The address of seed, step and round, `Draw` in `arenic.cuh`.
    Draw,
    /// The address of what is refused, `Refusal` in `arenic.cuh`.
    Refusal,
    /// The number of the node that runs.
    Node,
    /// Which of several ranks this process is.
    Rank,
    /// This number.
    Number(u64),
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: KernelId,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of each block.
    pub threads: u32,
    /// What is passed.
    pub arguments: Vec<Argument>,
}

/// The kernels of a program. Equal texts are one kernel.
#[derive(Clone, Debug, Default)]
pub struct Module {
    kernels: PrimaryMap<KernelId, Kernel>,
    known: HashMap<Kernel, KernelId>,
}

impl Module {
    /// The kernel of this text.
    pub fn kernel(&mut self, kernel: Kernel) -> KernelId {
        if let Some(&known) = self.known.get(&kernel) {
            return known;
        }
        let id = self.kernels.push(kernel.clone());
        self.known.insert(kernel, id);
        id
    }

    /// The text of a kernel.
    pub(super) fn get(&self, kernel: KernelId) -> &Kernel {
        &self.kernels[kernel]
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// True without kernels.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// The text of all kernels, to be compiled with [`HEADERS`].
    pub fn source(&self) -> String {
        self.source_of(0..self.len())
    }

    /// The text of some of the kernels, by their numbers.
    pub fn source_of(&self, range: std::ops::Range<usize>) -> String {
        let mut text = String::new();
        for (name, _) in HEADERS {
            // Writing to a string does not fail.
            let _ = writeln!(text, "#include \"{name}\"");
        }
        for id in range.map(KernelId::new) {
            let Kernel { threads, resident, parameters, body } = &self.kernels[id];
            let bounds = match resident {
                0 => threads.to_string(),
                _ => format!("BOUNDS({threads}, {resident})"),
            };
            let _ = writeln!(text, "\nKERNEL({id}, {bounds}, {parameters}) {{\n{body}}}");
        }
        text
    }
}
