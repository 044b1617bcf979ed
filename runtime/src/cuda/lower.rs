//! From an operator to what the device does.

use super::module::{Argument, Module};
use super::site::LaunchSite;
use super::work::{Asked, Request, Unsupported, Work};
use super::{
    attention, collective, convolution, elementwise, for_each, indexing, movement, norm, pool,
    product, random, recurrence, reduce, resize, softmax, update,
};
use arenic_backends::cuda::library::{self, LibraryCall};
use arenic_backends::cuda::takes_bf16;
use arenic_ir::op::{Family, PoolIndices, channels_last};
use arenic_ir::types::has_bf16;
use arenic_ir::{Op, TargetInfo, TensorType};

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
    if let Op::ForEach { of, lots } = op {
        return for_each::lower(of, *lots, inputs, alignments, outputs, target, module);
    }
    let all = || inputs.iter().copied().chain(outputs.iter().copied().flatten());
    if has_bf16(all().map(|t| t.dtype)) && !takes_bf16(op) {
        return Err(Unsupported(format!("{} of bf16", op.name())));
    }
    // Kernels know channels as second, and where they are.
    let first = |t: &TensorType| channels_last::first(t);
    let (types, results): (Vec<_>, Vec<_>);
    let (turned, turned_results): (Vec<_>, Vec<_>);
    let mut site = LaunchSite {
        op,
        inputs,
        alignments,
        outputs,
        channels_last: false,
        module,
        work: Vec::new(),
    };
    if let Op::ChannelsLast { of } = op {
        types = inputs.iter().map(|x| first(x)).collect();
        results = outputs.iter().map(|y| y.map(first)).collect();
        turned = types.iter().collect();
        turned_results = results.iter().map(Option::as_ref).collect();
        site = LaunchSite {
            op: of,
            inputs: &turned,
            outputs: &turned_results,
            channels_last: true,
            ..site
        };
    }
    // Scatters refuse indices even where there is nothing to write to.
    let scatters = matches!(
        site.op,
        Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::MaxPoolGrad {
                indices: PoolIndices::Positions | PoolIndices::ColumnMajorPositions,
                ..
            }
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
        Family::Collective(op) => collective::lower(&mut site, op),
        // What a wrapping holds is lowered, and nothing holds another.
        Family::Wrapping(_) | Family::Opaque(_) => {
            return Err(Unsupported(op.name().to_owned()));
        }
    }
    // A call gives the first results, of which the last may be left out.
    let written: Vec<&TensorType> = outputs.iter().map_while(|y| *y).collect();
    if let Ok(call) = library::call(op, target.math, inputs, &written) {
        if let Some(apart) = product::GeluApart::of(&site) {
            do_instead(&mut site, &apart.product, apart.operands, apart.output, target)?;
            apart.pass(&mut site);
        }
        let scratch = op.scratch_bytes(target, inputs, &written);
        ask_library(&mut site, call, scratch, target);
    }
    Ok(site.work)
}

/// The most that is said of an address: libraries ask for no more.
const ALIGNED: u64 = 256;

/// Has a library compute the operator in so many bytes of scratch, and what was launched where it
/// does not.
fn ask_library(site: &mut LaunchSite, call: LibraryCall, scratch: u64, target: TargetInfo) {
    let workspace = scratch.saturating_sub(call.made_bytes());
    let made = (call.made_bytes() > 0).then_some(Argument::Scratch(workspace));
    let operands = call.operands().iter().map(|&i| Argument::Input(i)).chain(made);
    let arguments: Vec<_> =
        operands.chain(call.results().iter().map(|&o| Argument::Output(o))).collect();
    let alignment = |argument: &Argument| match *argument {
        Argument::Input(i) => site.alignments[i],
        _ => target.align,
    };
    let alignments: Vec<u64> = arguments.iter().map(|a| alignment(a).min(ALIGNED)).collect();
    if !call.takes(&alignments) {
        return;
    }
    let instead = std::mem::take(&mut site.work);
    let [before, after] = match &call {
        LibraryCall::Attention(a) => attention::beside_library(site, a, workspace),
        LibraryCall::Product(_) | LibraryCall::Convolution(_) => [vec![], vec![]],
    };
    let request = Request { call, alignments, workspace };
    let asked = Asked { request, arguments, before, after, instead };
    site.work.push(Work::Library(Box::new(asked)));
}

/// Does another operator instead, on the first operands; its only result is this one.
fn do_instead(
    site: &mut LaunchSite,
    op: &Op,
    operands: usize,
    output: usize,
    target: TargetInfo,
) -> Result<(), Unsupported> {
    let (inputs, alignments) = (&site.inputs[..operands], &site.alignments[..operands]);
    site.work = lower(op, inputs, alignments, &[site.outputs[output]], target, site.module)?;
    site.work.iter_mut().for_each(|work| work.give(output));
    Ok(())
}
