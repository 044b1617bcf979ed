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
    /// What is read beside the rows, if anything.
    other: Option<Other>,
}

/// Rows that are read beside those of the first operand.
enum Other {
    /// Those of the second one.
    Second,
    /// Expressions of their elements `i`.
    Computed(String),
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
        StridedRows { index, rows, n, stride, lanes, size, ty, other: None }
    }

    /// The rows and, as `other`, those of the second operand, of equal shape.
    pub(super) fn and_second(self) -> StridedRows {
        StridedRows { other: Some(Other::Second), ..self }
    }

    /// The rows and, as `other`, rows of which this expression is element `i`.
    pub(super) fn and_computed(self, element: String) -> StridedRows {
        StridedRows { other: Some(Other::Computed(element)), ..self }
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
        let &StridedRows { index, rows, n, stride, lanes, size, ty, ref other } = self;
        let operands = if other.is_some() { 2 } else { 1 };
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
        let read = |name: &str, row: &str, ty_of_row: &str| {
            let ty_of_row = if kind == "Held" { "" } else { ty_of_row };
            let kind = format!("{kind}<{ty}, {index}, {lanes}, {n}, {stride}{ty_of_row}>");
            format!("    const {kind} {name}({row}, lane, live);\n")
        };
        let ty_of_operand = if narrow { ", Narrow" } else { "" };
        let mut held = read("x", "x0 + base", ty_of_operand);
        match other {
            Some(Other::Second) => held.push_str(&read("other", "x1 + base", ty_of_operand)),
            Some(Other::Computed(element)) => {
                let made =
                    format!("const auto made = row_of([=]({index} i) {{ return {element}; }});");
                held.push_str(&format!("    {made}\n"));
                held.push_str(&read("other", "made", ", decltype(made)"));
            }
            None => {}
        }
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
