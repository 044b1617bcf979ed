//! An operator on several lots of operands in one launch: the second number of a block says whose it is.

use super::lower::lower as lower_one;
use super::module::{Argument, Kernel, Launch, Module};
use super::work::{Unsupported, Work};
use arenic_ir::{Op, TargetInfo, TensorType};
use std::fmt::Write;

/// The kernels of a `ForEach`: those of the operator, whose parameters are chosen by lot.
///
/// # Errors
/// The backend has no kernel for the operator.
pub(super) fn lower(
    of: &Op,
    lots: usize,
    inputs: &[&TensorType],
    alignments: &[u64],
    outputs: &[Option<&TensorType>],
    target: TargetInfo,
    module: &mut Module,
) -> Result<Vec<Work>, Unsupported> {
    let [of_inputs, of_outputs] = [inputs.len(), outputs.len()].map(|n| n / lots);
    let of_lot = move |lot: usize, argument: &Argument| match *argument {
        Argument::Input(i) => Argument::Input(lot * of_inputs + i),
        Argument::Output(o) => Argument::Output(lot * of_outputs + o),
        other => other,
    };
    let launches = |works: Vec<Work>| -> Result<Vec<Launch>, Unsupported> {
        let launch = |work| match work {
            Work::Launch(launch) => Ok(launch),
            _ => Err(Unsupported(of.name().to_owned())),
        };
        works.into_iter().map(launch).collect()
    };
    let is_read = |y: &[Option<&TensorType>]| y.iter().map(Option::is_some).collect::<Vec<_>>();
    let first = &outputs[..of_outputs];
    let mut made = Vec::new();
    if outputs.chunks(of_outputs).any(|lot| is_read(lot) != is_read(first)) {
        // Kernels leave out what nobody reads, so that these lots have several.
        for lot in 0..lots {
            let [x, y] = [of_inputs, of_outputs].map(|n| lot * n..(lot + 1) * n);
            let alignments = &alignments[x.clone()];
            let works = lower_one(of, &inputs[x], alignments, &outputs[y], target, module)?;
            for mut launch in launches(works)? {
                launch.arguments.iter_mut().for_each(|argument| *argument = of_lot(lot, argument));
                made.push(Work::Launch(launch));
            }
        }
        return Ok(made);
    }
    let least = |i: usize| alignments.iter().skip(i).step_by(of_inputs).copied().min();
    let alignments: Vec<u64> = (0..of_inputs).filter_map(least).collect();
    let mut alone = Module::default();
    let works = lower_one(of, &inputs[..of_inputs], &alignments, first, target, &mut alone)?;
    for launch in launches(works)? {
        let kernel = module.kernel(for_lots(alone.get(launch.kernel), lots));
        let of_lots = |lot| launch.arguments.iter().map(move |argument| of_lot(lot, argument));
        let arguments = (0..lots).flat_map(of_lots);
        let [x, ..] = launch.grid;
        made.push(Work::Launch(Launch {
            kernel,
            grid: [x, lots as u32, 1],
            threads: launch.threads,
            arguments: arguments.collect(),
        }));
    }
    Ok(made)
}

/// A kernel with parameters for each lot, of which a block takes its own.
fn for_lots(kernel: &Kernel, lots: usize) -> Kernel {
    // A type, and a name behind it.
    let declared: Vec<(&str, &str)> =
        kernel.parameters.split(", ").filter_map(|p| p.rsplit_once(' ')).collect();
    let parameters: Vec<String> = (0..lots)
        .flat_map(|lot| declared.iter().map(move |(ty, name)| format!("{ty} {name}_{lot}")))
        .collect();
    let mut body = String::new();
    for (ty, name) in &declared {
        // Pointers to constants may be assigned; constants themselves may not.
        let ty = if ty.ends_with('*') { ty } else { ty.trim_start_matches("const ") };
        // Writing to a string does not fail.
        let _ = writeln!(body, "    {ty} {name};");
    }
    body.push_str("    switch (blockIdx.y) {\n");
    for lot in 0..lots {
        let label = if lot + 1 < lots { format!("case {lot}") } else { "default".into() };
        let taken: String =
            declared.iter().map(|(_, name)| format!("{name} = {name}_{lot}; ")).collect();
        let _ = writeln!(body, "    {label}: {taken}break;");
    }
    body.push_str("    }\n");
    body.push_str(&kernel.body);
    let parameters = parameters.join(", ");
    Kernel { parameters, body, ..kernel.clone() }
}
