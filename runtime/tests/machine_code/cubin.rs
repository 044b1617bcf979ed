//! What machine code for a GPU says of its kernels: an ELF file as NVRTC makes it. Sections, symbols and
//! attributes are laid out as `cuobjdump -elf` of CUDA 13.0 shows them; instructions have 16 bytes, whose lowest
//! nine bits are the operation (`nvdisasm -hex`).

use std::collections::BTreeMap;

/// Of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Registers of a thread.
    pub(crate) registers: u32,
    /// Bytes of a thread's stack: registers that are spilled, and arrays.
    pub(crate) stack: u32,
    /// Bytes of a block's static shared memory.
    pub(crate) shared: u64,
    /// Instructions.
    pub(crate) instructions: u64,
    /// How many of them are of an operation.
    counts: BTreeMap<u16, u64>,
}

/// Operations that are told apart.
pub(crate) const OPERATIONS: [(&str, u16); 13] = [
    ("HMMA", 0x03c),
    ("FFMA", 0x023),
    ("FMUL", 0x020),
    ("FADD", 0x021),
    ("MUFU", 0x108),
    ("F2FP", 0x03e),
    ("LDS", 0x184),
    ("STS", 0x188),
    ("LDG", 0x181),
    ("STG", 0x186),
    ("SHFL", 0x189),
    ("BAR", 0x11d),
    ("BRA", 0x147),
];

impl Figures {
    /// How many instructions are of an operation.
    pub(crate) fn count(&self, operation: u16) -> u64 {
        self.counts.get(&operation).copied().unwrap_or(0)
    }
}

/// Attributes of a kernel in `.nv.info`.
const FRAME_SIZE: u8 = 0x11;
const REGISTER_COUNT: u8 = 0x2f;
/// An attribute with bytes of its own.
const WITH_BYTES: u8 = 4;

/// Bytes of shared memory that a device of compute capability 9.0 takes of each block for itself.
const RESERVED: u64 = 1024;

struct Section {
    name: usize,
    offset: usize,
    size: usize,
    link: usize,
}

fn u16_at(b: &[u8], at: usize) -> usize {
    u16::from_le_bytes([b[at], b[at + 1]]).into()
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(b: &[u8], at: usize) -> usize {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes")) as usize
}

fn name_at(b: &[u8], at: usize) -> &str {
    let end = at + b[at..].iter().position(|&c| c == 0).expect("an end");
    std::str::from_utf8(&b[at..end]).expect("a name")
}

/// All kernels of a file, by their names.
pub(crate) fn read(b: &[u8]) -> BTreeMap<String, Figures> {
    assert_eq!(&b[..4], b"\x7fELF");
    let (table, size, count, names) =
        (u64_at(b, 0x28), u16_at(b, 0x3a), u16_at(b, 0x3c), u16_at(b, 0x3e));
    let section = |i: usize| {
        let at = table + i * size;
        let (offset, bytes) = (u64_at(b, at + 0x18), u64_at(b, at + 0x20));
        let (name, link) = (u32_at(b, at) as usize, u32_at(b, at + 0x28) as usize);
        Section { name, offset, size: bytes, link }
    };
    let names = section(names).offset;
    let sections: Vec<Section> = (0..count).map(section).collect();
    let named = |wanted: &str| sections.iter().find(|s| name_at(b, names + s.name) == wanted);
    let mut kernels: BTreeMap<String, Figures> = BTreeMap::new();
    for s in &sections {
        let name = name_at(b, names + s.name);
        if let Some(kernel) = name.strip_prefix(".text.") {
            let figures = kernels.entry(kernel.to_owned()).or_default();
            for instruction in b[s.offset..s.offset + s.size].chunks_exact(16) {
                figures.instructions += 1;
                let operation = (u16_at(instruction, 0) & 0x1ff) as u16;
                *figures.counts.entry(operation).or_default() += 1;
            }
        } else if let Some(kernel) = name.strip_prefix(".nv.shared.") {
            let is_kernel = named(&format!(".text.{kernel}")).is_some();
            if is_kernel {
                let shared = (s.size as u64).saturating_sub(RESERVED);
                kernels.entry(kernel.to_owned()).or_default().shared = shared;
            }
        }
    }
    let (Some(symbols), Some(about)) = (named(".symtab"), named(".nv.info")) else {
        panic!("no symbols, or nothing about them")
    };
    let texts = sections[symbols.link].offset;
    let symbol = |i: usize| name_at(b, texts + u32_at(b, symbols.offset + 24 * i) as usize);
    let (mut at, end) = (about.offset, about.offset + about.size);
    while at < end {
        let (format, attribute, bytes) = (b[at], b[at + 1], u16_at(b, at + 2));
        at += 4;
        if format != WITH_BYTES {
            continue;
        }
        if bytes == 8
            && let Some(figures) = kernels.get_mut(symbol(u32_at(b, at) as usize))
        {
            match attribute {
                FRAME_SIZE => figures.stack = u32_at(b, at + 4),
                REGISTER_COUNT => figures.registers = u32_at(b, at + 4),
                _ => {}
            }
        }
        at += bytes;
    }
    kernels
}
