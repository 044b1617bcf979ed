//! From an operator to what the device does.

use super::module::{Argument, Kernel, Launch, Module};
use super::{
    attention, convolution, elementwise, indexing, movement, norm, pool, product, random,
    recurrence, reduce, resize, softmax, update,
};
use arenic_ir::op::library::{Epilogue, LibraryCall};
use arenic_ir::op::narrow::has_bf16;
use arenic_ir::op::{Family, channels_last};
use arenic_ir::{DType, Op, TargetInfo, TensorType};
use std::fmt::Write;

/// Threads of a block where each has an element.
pub(super) const THREADS: u32 = 256;

/// One thing that the device does for an operator. Each waits for the one before.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Runs a kernel.
    Launch(Launch),
    /// Copies bytes from one place to another; nothing where they are the same.
    Copy {
        /// Source.
        from: Argument,
        /// Destination.
        to: Argument,
        /// How many.
        bytes: u64,
    },
    /// Has a library compute something, or does it otherwise.
    Library {
        /// What is asked of the library; its workspace is the call's scratch.
        request: Request,
        /// Its operands in its order, then its results.
        arguments: Vec<Argument>,
        /// What is done where it does not: kernels of ours, perhaps beside a call for less.
        instead: Vec<Work>,
    },
}

impl Work {
    /// The only result is this one of another operator.
    fn give(&mut self, output: usize) {
        let moved = |argument: &mut Argument| {
            if *argument == Argument::Output(0) {
                *argument = Argument::Output(output);
            }
        };
        match self {
            Work::Launch(launch) => launch.arguments.iter_mut().for_each(moved),
            Work::Copy { from, to, .. } => [from, to].into_iter().for_each(moved),
            Work::Library { arguments, instead, .. } => {
                arguments.iter_mut().for_each(moved);
                instead.iter_mut().for_each(|work| work.give(output));
            }
        }
    }
}

/// What is asked of a library.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What it computes.
    pub call: LibraryCall,
    /// What the address of each operand, and of each result, is a multiple of, in bytes.
    pub alignments: Vec<u64>,
    /// Bytes of workspace that it may use.
    pub workspace: u64,
}

/// The most that is said of an address: libraries ask for no more.
const ALIGNED: u64 = 256;

/// Convolutions of libraries read so many bytes at once, and so do products what is beside them.
const WIDE_ALIGNED: u64 = 16;

/// The backend has no kernel for this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CUDA backend has no kernel for {0}")]
pub struct Unsupported(pub String);

/// What the device does for an operator; kernels go to the module. Of each operand it takes what
/// its address is a multiple of, since it may be a part of a tensor; results and scratch are
/// aligned as the target has it. Results that nobody reads are `None`.
///
/// # Errors
/// The backend has no kernel for it.
pub fn lower(
    op: &Op,
    inputs: &[&TensorType],
    alignments: &[u64],
    outputs: &[Option<&TensorType>],
    target: TargetInfo,
    module: &mut Module,
) -> Result<Vec<Work>, Unsupported> {
    let all = || inputs.iter().copied().chain(outputs.iter().copied().flatten());
    if has_bf16(all().map(|t| t.dtype)) && !op.cuda_takes_bf16() {
        return Err(Unsupported(format!("{} of bf16", op.name())));
    }
    // Kernels know channels as second, and where they are.
    let first = |t: &TensorType| channels_last::first(t);
    let (types, results): (Vec<_>, Vec<_>);
    let (turned, turned_results): (Vec<_>, Vec<_>);
    let mut site =
        Site { op, inputs, alignments, outputs, channels_last: false, module, work: Vec::new() };
    if let Op::ChannelsLast { of } = op {
        types = inputs.iter().map(|x| first(x)).collect();
        results = outputs.iter().map(|y| y.map(first)).collect();
        turned = types.iter().collect();
        turned_results = results.iter().map(Option::as_ref).collect();
        site =
            Site { op: of, inputs: &turned, outputs: &turned_results, channels_last: true, ..site };
    }
    // Scatters refuse indices even where there is nothing to write to.
    let scatters = matches!(
        site.op,
        Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::MaxPoolGrad { .. }
    );
    if !scatters && outputs.iter().flatten().all(|y| y.elements() == 0) {
        return Ok(site.work);
    }
    match site.op.family() {
        Family::Movement(op) => movement::lower(&mut site, op),
        Family::Indexing(op) => indexing::lower(&mut site, op),
        Family::Elementwise(op) => elementwise::lower(&mut site, op),
        Family::Random(op) => random::lower(&mut site, op),
        Family::Reducing(op) => reduce::lower(&mut site, op),
        Family::Softmax(op) => softmax::lower(&mut site, op),
        Family::Norm(op) => norm::lower(&mut site, op),
        Family::Product(op) => product::lower(&mut site, op)?,
        Family::Convolution(op) => convolution::lower(&mut site, op),
        Family::Pool(op) => pool::lower(&mut site, op),
        Family::Resizing(op) => resize::lower(&mut site, op),
        Family::Attention(op) => attention::lower(&mut site, op, target.math)?,
        Family::Recurrent(op) => recurrence::lower(&mut site, op),
        Family::Update(op) => update::lower(&mut site, op),
        // What it holds is lowered, and nothing holds another.
        Family::Wrapping(_) | Family::Opaque(_) => {
            return Err(Unsupported(op.name().to_owned()));
        }
    }
    // A call gives the first results, of which the last may be left out.
    let written: Vec<&TensorType> = outputs.iter().map_while(|y| *y).collect();
    if let Some(call) = op.library_call(target, inputs, &written) {
        product::with_gelu_apart(&mut site, target)?;
        site.ask_library(call, op.scratch_bytes(target, inputs, &written), target);
    }
    Ok(site.work)
}

/// An operator on its operands, while its launches are put together.
pub(super) struct Site<'a> {
    pub(super) op: &'a Op,
    pub(super) inputs: &'a [&'a TensorType],
    /// What the address of each operand is a multiple of, in bytes.
    pub(super) alignments: &'a [u64],
    /// `None` where nobody reads the result.
    pub(super) outputs: &'a [Option<&'a TensorType>],
    /// Tensors of rank three or more are stored with their channels last. Their types say
    /// nothing of it.
    pub(super) channels_last: bool,
    module: &'a mut Module,
    work: Vec<Work>,
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

    /// `draw`: seed and step.
    pub(super) fn draw() -> Parameter {
        Parameter { declared: "const Draw* draw".into(), passed: Argument::Draw }
    }

    /// `step`: the number of a launch among those of a node that are alike.
    pub(super) fn step(step: usize) -> Parameter {
        Parameter { declared: "u64 step".into(), passed: Argument::Step(step as u64) }
    }

    /// `refusal` and `node`, for kernels that may refuse contents.
    pub(super) fn refusal() -> [Parameter; 2] {
        let refusal = Parameter { declared: "Refusal* refusal".into(), passed: Argument::Refusal };
        [refusal, Parameter { declared: "u64 node".into(), passed: Argument::Node }]
    }
}

impl Site<'_> {
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
        Parameter { declared: format!("const {ty}* x{i}"), passed: Argument::Input(i) }
    }

    /// All operands: `x0`, `x1`, ….
    pub(super) fn all_inputs(&self) -> Vec<Parameter> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// Result `o` as the parameter `y{o}`; none where nobody reads it. Floats that are assigned to
    /// elements of `bf16` are rounded.
    pub(super) fn output(&self, o: usize) -> Option<Parameter> {
        match self.outputs[o]?.dtype {
            DType::Bf16 => self.output_as(o, "Bf16"),
            dtype => self.output_as(o, c_type(dtype)),
        }
    }

    /// Result `o` as the parameter `y{o}`, its bytes as elements of a C type.
    pub(super) fn output_as(&self, o: usize, ty: &str) -> Option<Parameter> {
        self.outputs[o]?;
        Some(Parameter { declared: format!("{ty}* y{o}"), passed: Argument::Output(o) })
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
        let (declared, arguments): (Vec<String>, Vec<Argument>) =
            parameters.into_iter().map(|p| (p.declared, p.passed)).unzip();
        let kernel = Kernel { threads, parameters: declared.join(", "), body: body.into() };
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
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "    const {index} i = {index}(blockIdx.x) * {THREADS}u + threadIdx.x;");
        let _ = writeln!(text, "    if (i >= {}) return;", super::index::constant(n));
        text.push_str(body);
        self.launch([n.div_ceil(THREADS as usize), 1, 1], THREADS, parameters, text);
    }

    /// Has a library compute the operator in a workspace of so many bytes, and what was launched
    /// where it does not.
    fn ask_library(&mut self, call: LibraryCall, workspace: u64, target: TargetInfo) {
        let (operands, results) = (call.operands(), 0..call.results());
        let of = |&i: &usize| self.alignments[i].min(ALIGNED);
        let made = results.clone().map(|_| target.align.min(ALIGNED));
        let alignments: Vec<u64> = operands.iter().map(of).chain(made).collect();
        let wide = match &call {
            LibraryCall::Convolution(_) => &alignments[..],
            LibraryCall::Product(p) if p.epilogue == Epilogue::GeluGradient => &alignments[2..],
            LibraryCall::Product(_) => &[],
        };
        if wide.iter().any(|&a| a < WIDE_ALIGNED) {
            return;
        }
        let arguments = operands.iter().map(|&i| Argument::Input(i));
        let arguments = arguments.chain(results.map(Argument::Output)).collect();
        let instead = std::mem::take(&mut self.work);
        let request = Request { call, alignments, workspace };
        self.work.push(Work::Library { request, arguments, instead });
    }

    /// Does another operator instead, on the first operands; its only result is this one.
    pub(super) fn do_instead(
        &mut self,
        op: &Op,
        operands: usize,
        output: usize,
        target: TargetInfo,
    ) -> Result<(), Unsupported> {
        let (inputs, alignments) = (&self.inputs[..operands], &self.alignments[..operands]);
        self.work = lower(op, inputs, alignments, &[self.outputs[output]], target, self.module)?;
        self.work.iter_mut().for_each(|work| work.give(output));
        Ok(())
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
