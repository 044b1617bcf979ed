//! What families of operators write kernels with: an operator on its operands, parameters of
//! kernels, and types and numbers as C has them.

use super::module::{Argument, Kernel, Launch, Module};
use super::work::Work;
use arenic_ir::op::channels_last;
use arenic_ir::{DType, Op, TensorType};

/// Threads of a block where each has an element.
pub(super) const THREADS: u32 = 256;

/// An operator on its operands, while its launches are put together.
pub(super) struct LaunchSite<'a> {
    pub(super) op: &'a Op,
    pub(super) inputs: &'a [&'a TensorType],
    /// What the address of each operand is a multiple of, in bytes.
    pub(super) alignments: &'a [u64],
    /// `None` where nobody reads the result.
    pub(super) outputs: &'a [Option<&'a TensorType>],
    /// Tensors of rank three or more are stored with their channels last. Their types say
    /// nothing of it.
    pub(super) channels_last: bool,
    pub(super) module: &'a mut Module,
    pub(super) work: Vec<Work>,
}

/// One parameter of a kernel: its declaration and what is passed for it.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    declared: String,
    passed: Argument,
}

impl Parameter {
    /// Scratch from some byte on, as elements of a C type.
    pub(super) fn scratch(ty: &str, name: &str, offset: u64) -> Parameter {
        Parameter { declared: format!("{ty}* {name}"), passed: Argument::Scratch(offset) }
    }

    /// `draw`: seed, step and round.
    pub(super) fn draw() -> Parameter {
        Parameter { declared: "const Draw* draw".into(), passed: Argument::Draw }
    }

    /// A number in which launches of one kernel differ.
    pub(super) fn number(name: &str, number: u64) -> Parameter {
        Parameter { declared: format!("u64 {name}"), passed: Argument::Number(number) }
    }

    /// `rank`: which of several ranks runs the kernel.
    pub(super) fn rank() -> Parameter {
        Parameter { declared: "u64 rank".into(), passed: Argument::Rank }
    }

    /// `refusal` and `node`, for kernels that may refuse contents.
    pub(super) fn refusal() -> [Parameter; 2] {
        let refusal = Parameter { declared: "Refusal* refusal".into(), passed: Argument::Refusal };
        [refusal, Parameter { declared: "u64 node".into(), passed: Argument::Node }]
    }
}

impl LaunchSite<'_> {
    /// Operand `i` as the parameter `x{i}`; elements of `bf16` are read as floats.
    pub(super) fn input(&self, i: usize) -> Parameter {
        match self.inputs[i].dtype {
            DType::Bf16 => {
                Parameter { declared: format!("const Narrow x{i}"), passed: Argument::Input(i) }
            }
            dtype => self.input_as(i, c_type(dtype)),
        }
    }

    /// Operand `i` as the parameter `x{i}`, its bytes as elements of a C type.
    pub(super) fn input_as(&self, i: usize, ty: &str) -> Parameter {
        self.input_named(i, ty, &format!("x{i}"))
    }

    /// Operand `i` as a parameter of this name, its bytes as elements of a C type.
    pub(super) fn input_named(&self, i: usize, ty: &str, name: &str) -> Parameter {
        Parameter { declared: format!("const {ty}* {name}"), passed: Argument::Input(i) }
    }

    /// All operands: `x0`, `x1`, ….
    pub(super) fn all_inputs(&self) -> Vec<Parameter> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// Result `o` as the parameter `y{o}`; `None` if nobody reads it. Floats that are assigned to
    /// elements of `bf16` are rounded.
    pub(super) fn output(&self, o: usize) -> Option<Parameter> {
        match self.outputs[o]?.dtype {
            DType::Bf16 => self.output_as(o, "Bf16"),
            dtype => self.output_as(o, c_type(dtype)),
        }
    }

    /// Result `o` as the parameter `y{o}`, its bytes as elements of a C type.
    pub(super) fn output_as(&self, o: usize, ty: &str) -> Option<Parameter> {
        self.output_named(o, ty, &format!("y{o}"))
    }

    /// Result `o` as a parameter of this name, its bytes as elements of a C type.
    pub(super) fn output_named(&self, o: usize, ty: &str, name: &str) -> Option<Parameter> {
        self.outputs[o]?;
        Some(Parameter { declared: format!("{ty}* {name}"), passed: Argument::Output(o) })
    }

    /// A list with an entry for each axis of a tensor, in the order in which axes are stored.
    pub(super) fn stored<T: Clone>(&self, axes: &[T]) -> Vec<T> {
        if self.channels_last { channels_last::to_last(axes) } else { axes.to_vec() }
    }

    /// The expression of an element of a tensor of images, channels and places, from those of its
    /// image, of its channel and how many there are, of its place and how many there are.
    pub(super) fn element(&self, image: &str, channel: [&str; 2], place: [&str; 2]) -> String {
        let [inner, innermost] = match self.channels_last {
            true => [place, channel],
            false => [channel, place],
        };
        format!("(({image}) * {} + {}) * {} + {}", inner[1], inner[0], innermost[1], innermost[0])
    }

    /// The type of an index of any operand or result.
    pub(super) fn index(&self) -> &'static str {
        let tensors = self.inputs.iter().chain(self.outputs.iter().flatten());
        super::index::index_type(tensors.map(|t| t.elements()).max().unwrap_or(0))
    }

    /// All results that are read: `y0`, `y1`, ….
    pub(super) fn all_outputs(&self) -> Vec<Parameter> {
        (0..self.outputs.len()).filter_map(|o| self.output(o)).collect()
    }

    /// Launches a kernel; blocks along x, y and z.
    pub(super) fn launch(
        &mut self,
        grid: [usize; 3],
        threads: u32,
        parameters: impl IntoIterator<Item = Parameter>,
        body: impl Into<String>,
    ) {
        self.launch_resident(grid, threads, 0, parameters, body);
    }

    /// Launches a kernel of which a multiprocessor is to hold so many blocks at once.
    pub(super) fn launch_resident(
        &mut self,
        grid: [usize; 3],
        threads: u32,
        resident: u32,
        parameters: impl IntoIterator<Item = Parameter>,
        body: impl Into<String>,
    ) {
        let (declared, arguments): (Vec<String>, Vec<Argument>) =
            parameters.into_iter().map(|p| (p.declared, p.passed)).unzip();
        let parameters = declared.join(", ");
        let kernel = Kernel { threads, resident, parameters, body: body.into() };
        let kernel = self.module.kernel(kernel);
        // Tensors have fewer than 2^48 bytes, and no kernel has fewer than 2^17 of them along x.
        let grid = grid.map(|n| n as u32);
        self.work.push(Work::Launch(Launch { kernel, grid, threads, arguments }));
    }

    /// Launches a kernel with a thread for each of `n` elements; the body knows its own as `i`.
    pub(super) fn for_each(
        &mut self,
        n: usize,
        index: &str,
        parameters: impl IntoIterator<Item = Parameter>,
        body: &str,
    ) {
        self.for_each_group(n, 1, index, parameters, body);
    }

    /// Launches a kernel with a thread for each group of so many neighbouring elements, of `n`; the body knows the
    /// first of its own as `i`.
    pub(super) fn for_each_group(
        &mut self,
        n: usize,
        of: usize,
        index: &str,
        parameters: impl IntoIterator<Item = Parameter>,
        body: &str,
    ) {
        let thread = format!("{index}(blockIdx.x) * {THREADS}u + threadIdx.x");
        let i = if of == 1 { thread } else { format!("({thread}) * {of}u") };
        let n_text = super::index::constant(n);
        let text = format!("    const {index} i = {i};\n    if (i >= {n_text}) return;\n{body}");
        self.launch([n.div_ceil(THREADS as usize * of), 1, 1], THREADS, parameters, text);
    }

    /// Copies an operand's bytes to a result, unless that has them already.
    pub(super) fn copy(&mut self, input: usize, output: usize) {
        let Some(y) = self.outputs[output] else { return };
        let (from, to) = (Argument::Input(input), Argument::Output(output));
        self.work.push(Work::Copy { from, to, bytes: y.bytes() });
    }
}

/// The C type that elements are computed in; of bool its byte.
pub(super) fn c_type(d: DType) -> &'static str {
    match d {
        DType::Bool | DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::U16 => "uint16_t",
        DType::I16 => "int16_t",
        DType::U32 => "uint32_t",
        DType::I32 => "int32_t",
        DType::U64 => "uint64_t",
        DType::I64 => "int64_t",
        DType::Bf16 | DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// A double constant.
pub(super) fn literal(x: f64) -> String {
    match x {
        _ if x.is_nan() => "double(INFINITY - INFINITY)".into(),
        f64::INFINITY => "double(INFINITY)".into(),
        f64::NEG_INFINITY => "double(-INFINITY)".into(),
        // In parentheses, as it may be negative.
        _ => format!("({x:e})"),
    }
}

/// The C type of elements that are moved and not looked at.
pub(super) fn word_type(d: DType) -> &'static str {
    match d.size() {
        1 => "uint8_t",
        2 => "uint16_t",
        4 => "uint32_t",
        _ => "uint64_t",
    }
}
