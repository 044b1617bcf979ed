//! Rows (or columns) of a tensor, each shared by neighbouring threads: a few of a warp for
//! short rows, a block for long ones, one for a column, whose neighbours have columns beside it.

use super::index::{constant, index_type};
use super::site::{LaunchSite, Parameter, THREADS, c_type};
use arenic_backends::cuda::tiling::row_lanes;
use arenic_ir::{DType, TensorType};

/// Bytes of a row that a thread keeps in registers at most.
const HELD: usize = 128;

/// Rows of `n` elements that lie `stride` apart.
pub(super) struct StridedRows {
    pub(super) index: &'static str,
    rows: usize,
    n: usize,
    stride: usize,
    lanes: usize,
    size: usize,
    ty: &'static str,
    /// Operands whose rows are read side by side: `x` and, if any, `other`.
    operands: usize,
}

impl StridedRows {
    /// The rows along `axes`, neighbours, of a tensor.
    pub(super) fn new(x: &TensorType, axes: std::ops::Range<usize>) -> StridedRows {
        let stride = x.shape[axes.end..].iter().product();
        let rows = x.shape[..axes.start].iter().product::<usize>() * stride;
        let lanes = row_lanes(x, axes.clone());
        let n = x.shape[axes].iter().product();
        let index = index_type(x.elements());
        let (size, ty) = (x.dtype.accumulated().size() as usize, c_type(x.dtype));
        StridedRows { index, rows, n, stride, lanes, size, ty, operands: 1 }
    }

    /// The rows of the first operand and, as `other`, of the second one, of equal shape.
    pub(super) fn of_two(x: &TensorType, axes: std::ops::Range<usize>) -> StridedRows {
        StridedRows { operands: 2, ..StridedRows::new(x, axes) }
    }

    /// Launches a kernel whose body knows its row's number `row`, the place `base` of its first
    /// element, what is read of it, `x` (and `other`), its own place `lane` among the row's threads, and
    /// whether the row is there, `live`. All threads run the body; `x0` (and `x1`) is a parameter.
    pub(super) fn launch(
        &self,
        site: &mut LaunchSite,
        parameters: impl IntoIterator<Item = Parameter>,
        body: &str,
    ) {
        let &StridedRows { index, rows, n, stride, lanes, size, ty, operands } = self;
        let narrow = site.inputs[0].dtype == DType::Bf16;
        let per_block = THREADS as usize / lanes;
        let kind = if n.div_ceil(lanes) * size * operands <= HELD { "Held" } else { "Reread" };
        let blocks = rows.div_ceil(per_block);
        let base = match stride {
            1 => format!("row * {}", constant(n)),
            _ => {
                let [group, stride] = [n * stride, stride].map(constant);
                format!("row / {stride} * {group} + row % {stride}")
            }
        };
        let [rows, n, stride] = [rows, n, stride].map(constant);
        let held: String = ["x", "other"][..operands]
            .iter()
            .enumerate()
            .map(|(k, name)| {
                let row = match (kind, narrow) {
                    ("Reread", true) => ", Narrow",
                    _ => "",
                };
                let kind = format!("{kind}<{ty}, {index}, {lanes}, {n}, {stride}{row}>");
                format!("    const {kind} {name}(x{k} + base, lane, live);\n")
            })
            .collect();
        let text = format!(
            "    const u32 lane = threadIdx.x % {lanes}u;
    const {index} row = {index}(blockIdx.x) * {per_block}u + threadIdx.x / {lanes}u;
    const bool live = row < {rows};
    const {index} base = {base};
{held}{body}"
        );
        site.launch([blocks, 1, 1], THREADS, parameters, text);
    }

    /// The place of element `i`.
    pub(super) fn element(&self) -> String {
        match self.stride {
            1 => "base + i".into(),
            stride => format!("base + i * {}", constant(stride)),
        }
    }

    /// The C++ text that combines a sum over all threads of a row.
    pub(super) fn sum(&self, sum: &str) -> String {
        format!("combine_lanes<Sum<{}>, {}>({sum})", self.ty, self.lanes)
    }

    /// The same for two sums at once.
    pub(super) fn sums(&self, sums: &str) -> String {
        format!("combine_lanes<Sums<{}>, {}>({sums})", self.ty, self.lanes)
    }
}
