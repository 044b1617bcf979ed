//! A thread for several neighbouring elements, which are loaded and stored at once.
//!
//! What reads and writes element by element is limited by how many bytes are on their way, and a
//! load brings up to 16 of them: four floats, eight `bf16`. Each element is computed by the text that
//! computes it alone, so that its bits are the same. All operands are read before a result is
//! written, so that results may take their places.

use super::index::constant;
use super::site::{LaunchSite, Parameter, THREADS};
use arenic_ir::TensorType;
use std::fmt::Write;

/// Bytes of a load.
const LOAD: usize = 16;

/// Elements from which on there are threads enough when each has several.
const MANY: usize = 1 << 17;

/// An operand of which element `i` of a result reads element `i % period` and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// Which one.
    pub(super) operand: usize,
    /// Its elements: as many as the result's, or fewer, which are read again and again.
    pub(super) period: usize,
}

impl Read {
    /// How a result of this type reads an operand that is broadcast to it: so where it is broadcast
    /// along its first axes alone.
    pub(super) fn of(operand: usize, x: &TensorType, y: &TensorType) -> Option<Read> {
        let own: Vec<usize> = x.shape.iter().copied().skip_while(|&d| d == 1).collect();
        let is_so = y.shape.ends_with(&own) && x.elements() > 1;
        is_so.then_some(Read { operand, period: x.elements() })
    }
}

/// What is computed for each of many elements.
pub(super) struct Elements<'a> {
    /// How many.
    pub(super) count: usize,
    /// The type of an index.
    pub(super) index: &'static str,
    /// Operands that the body reads by the index of the element alone.
    pub(super) reads: &'a [Read],
    /// Results of which the body writes `y[i]`.
    pub(super) results: &'a [usize],
    /// Statements for element `i`.
    pub(super) body: &'a str,
}

impl LaunchSite<'_> {
    /// Launches a kernel with a thread for each element, or for several where there are many.
    pub(super) fn for_elements(
        &mut self,
        parameters: impl IntoIterator<Item = Parameter>,
        e: &Elements,
    ) {
        let &Elements { count, index, results, body, .. } = e;
        let lanes = self.lanes(e);
        if lanes == 1 {
            return self.for_each(count, index, parameters, body);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "    const {index} first = ({index}(blockIdx.x) * {THREADS}u + threadIdx.x) * {lanes}u;
    if (first >= {}) return;",
            constant(count)
        );
        let reads = || e.reads.iter().filter(|read| self.is_packed(read, lanes));
        for &Read { operand, period } in reads() {
            let from = match period == count {
                true => "first".into(),
                false => format!("first % {}", constant(period)),
            };
            let _ = writeln!(
                text,
                "    const auto read{operand} = load_pack<{lanes}>(x{operand} + {from});"
            );
        }
        for o in results {
            let _ = writeln!(text, "    auto made{o} = pack_of<{lanes}>(y{o});");
        }
        let _ = write!(
            text,
            "#pragma unroll
    for (u32 lane = 0; lane < {lanes}u; lane++) [&](const {index} i) {{
"
        );
        for Read { operand, .. } in reads() {
            let _ = writeln!(text, "    const auto x{operand} = lane_of(read{operand}, lane);");
        }
        for o in results {
            let _ = writeln!(text, "    const auto y{o} = lane_of(made{o}, lane);");
        }
        let _ = writeln!(text, "{body}    }}(first + lane);");
        for o in results {
            let _ = writeln!(text, "    store_pack(y{o} + first, made{o});");
        }
        let blocks = (count / lanes).div_ceil(THREADS as usize);
        self.launch([blocks, 1, 1], THREADS, parameters, text);
    }

    /// Elements of a thread: a power of two that divides all, of which no tensor that is walked
    /// has more than a load's bytes, and at whose multiples each begins.
    fn lanes(&self, e: &Elements) -> usize {
        if e.count < MANY {
            return 1;
        }
        let walked = || e.reads.iter().filter(|read| read.period == e.count);
        let size = |ty: &TensorType| ty.dtype.size() as usize;
        let read = walked().map(|read| size(self.inputs[read.operand]));
        let written = e.results.iter().filter_map(|&o| self.outputs[o].map(size));
        let widest = read.chain(written).max().unwrap_or(LOAD);
        let fits = |lanes: usize| {
            e.count.is_multiple_of(lanes) && walked().all(|read| self.is_packed(read, lanes))
        };
        [8, 4, 2].into_iter().find(|&l| l * widest <= LOAD && fits(l)).unwrap_or(1)
    }

    /// True where so many elements of an operand are loaded at once.
    fn is_packed(&self, read: &Read, lanes: usize) -> bool {
        let bytes = lanes as u64 * self.inputs[read.operand].dtype.size();
        read.period.is_multiple_of(lanes) && self.alignments[read.operand].is_multiple_of(bytes)
    }
}
