//! Elementwise operators: an expression per element.

use super::index::{broadcast_strides, index_type, offset};
use super::packs::{Elements, Read};
use super::site::{LaunchSite, c_type};
use arenic_ir::op::families::Elementwise;
use arenic_ir::op::{Binary, Kind, Step, Unary, kinds};
use arenic_ir::{DType, TensorType};
use std::fmt::Write;
use std::ops::Range;

/// One kernel that computes each element of the result.
pub(super) fn lower(site: &mut LaunchSite, op: Elementwise) {
    let Some(y) = site.outputs.iter().copied().flatten().next() else { return };
    let mut parameters = site.all_inputs();
    parameters.extend(site.all_outputs());
    let x: Vec<String> = (0..site.inputs.len()).map(|i| element(site.inputs[i], i, y)).collect();
    let results: Vec<usize> =
        (0..site.outputs.len()).filter(|&o| site.outputs[o].is_some()).collect();
    let reads = 0..site.inputs.len();
    let reads: Vec<Read> = reads.filter_map(|k| Read::of(site, k, y)).collect();
    let t = c_type(site.inputs[0].dtype);
    let mut body = String::new();
    match op {
        Elementwise::Cast { to } => {
            let from = site.inputs[0].dtype;
            let value = match (*to, from) {
                (DType::Bool, _) => format!("{} != 0", x[0]),
                // Rounded where it is stored.
                _ => format!("cast<{}>({})", c_type(*to), x[0]),
            };
            assign(&mut body, 0, &value);
        }
        Elementwise::Unary { f } => assign(&mut body, 0, &unary(*f, &x[0])),
        Elementwise::Binary { f: Binary::Pow } if site.inputs[0].dtype.is_float() => {
            let _ = writeln!(body, "    const {t} a = {}, b = {};", x[0], x[1]);
            assign(&mut body, 0, &power("a", "b", site.inputs[1].elements() == 1));
        }
        Elementwise::Binary { f: f @ (Binary::Div | Binary::Rem) }
            if !site.inputs[0].dtype.is_float() =>
        {
            parameters.extend(super::site::Parameter::refusal());
            let _ = writeln!(body, "    const {t} a = {}, b = {};", x[0], x[1]);
            let _ =
                writeln!(body, "    if (b == 0) refuse(refusal, node, DIVISION_BY_ZERO, 0, 0);");
            assign(&mut body, 0, &binary(*f, "a", "b"));
        }
        Elementwise::Binary { f } => assign(&mut body, 0, &binary(*f, &x[0], &x[1])),
        Elementwise::Where => assign(&mut body, 0, &format!("{} != 0 ? {} : {}", x[0], x[1], x[2])),
        Elementwise::Clip { min, max } => {
            let mut value = x[0].clone();
            if *min {
                value = format!("larger({value}, {})", x[1]);
            }
            if *max {
                value = format!("smaller({value}, {})", x[x.len() - 1]);
            }
            assign(&mut body, 0, &value);
        }
        Elementwise::Pointwise { steps, results } => {
            let operands: Vec<_> = site.inputs.iter().copied().zip(x).collect();
            pointwise(&mut body, &operands, steps, results, site);
        }
    }
    let largest = site.inputs.iter().map(|x| x.elements()).fold(y.elements(), usize::max);
    let index = index_type(largest);
    let (reads, results) = (&reads, &results);
    let elements = Elements { count: y.elements(), index, reads, results, common: "", body: &body };
    site.for_elements(parameters, &elements);
}

/// What element `i` of the result reads of operand `k`.
fn element(x: &TensorType, k: usize, y: &TensorType) -> String {
    if x.elements() == 1 {
        return format!("x{k}[0]");
    }
    let strides = broadcast_strides(&x.shape, y.rank());
    format!("x{k}[{}]", offset(&y.shape, &strides, "i"))
}

fn assign(body: &mut String, output: usize, value: &str) {
    let _ = writeln!(body, "    y{output}[i] = {value};");
}

/// Statements of a `Pointwise` for element `i`, from its operands and their expressions.
/// Every step is a variable, so that it rounds by itself.
pub(super) fn pointwise(
    body: &mut String,
    operands: &[(&TensorType, String)],
    steps: &[Step],
    results: &[usize],
    site: &LaunchSite,
) {
    let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| *ty).collect();
    // The graph's verification has inferred the same types.
    let Ok(kinds) = kinds(steps, &types) else { return };
    let float =
        types.iter().map(|t| t.dtype.accumulated()).find(|d| d.is_float()).unwrap_or(DType::F32);
    let t = |k: usize| match kinds[k] {
        Kind::Number => c_type(float),
        Kind::Condition => c_type(DType::Bool),
    };
    for (k, (_, element)) in operands.iter().enumerate() {
        let _ = writeln!(body, "    const {} v{k} = {element};", t(k));
    }
    for (k, step) in steps.iter().enumerate() {
        let source = |s: usize| format!("v{s}");
        let value = match *step {
            Step::Unary(f, a) => unary(f, &source(a)),
            Step::Binary(Binary::Pow, a, b) => {
                let scalar = operands.get(b).is_some_and(|(ty, _)| ty.elements() == 1);
                power(&source(a), &source(b), scalar)
            }
            Step::Binary(f, a, b) => binary(f, &source(a), &source(b)),
            Step::Where(c, a, b) => format!("v{c} != 0 ? v{a} : v{b}"),
            Step::Cast(x) => source(x),
            Step::Round(x) => format!("Bf16({})", source(x)),
        };
        let k = operands.len() + k;
        let _ = writeln!(body, "    const {} v{k} = {value};", t(k));
    }
    for (o, result) in results.iter().enumerate() {
        if site.outputs[o].is_some() {
            assign(body, o, &format!("v{result}"));
        }
    }
}

/// What the last step computes of these operands of a site, as an expression, where they have an
/// element at this place, or one.
pub(super) fn computed(
    site: &LaunchSite,
    steps: &[Step],
    operands: Range<usize>,
    place: &str,
) -> String {
    let operands = at_place(site, operands, place);
    let mut body = String::new();
    pointwise(&mut body, &operands, steps, &[], site);
    format!("[=] {{\n{body}    return v{};\n    }}()", operands.len() + steps.len() - 1)
}

/// Statements that store what the last step computes at this place of some results: of an expression, whose type is
/// that of sums of the first operand, and of these operands of a site.
pub(super) fn stored(
    site: &LaunchSite,
    steps: &[Step],
    others: Range<usize>,
    (value, results): (String, &[usize]),
    place: &str,
) -> String {
    let wide = site.inputs[0].accumulated();
    let mut operands = vec![(&wide, value)];
    operands.extend(at_place(site, others, place));
    let mut body = String::new();
    pointwise(&mut body, &operands, steps, &[], site);
    for o in results.iter().filter(|&&o| site.outputs[o].is_some()) {
        let _ = writeln!(body, "    y{o}[{place}] = v{};", operands.len() + steps.len() - 1);
    }
    body
}

/// Operands of a site, with the element that steps read of them at this place.
fn at_place<'a>(
    site: &LaunchSite<'a>,
    operands: Range<usize>,
    place: &str,
) -> Vec<(&'a TensorType, String)> {
    let element = |k: usize| match site.inputs[k].elements() {
        1 => (site.inputs[k], format!("x{k}[0]")),
        _ => (site.inputs[k], format!("x{k}[{place}]")),
    };
    operands.map(element).collect()
}

/// Powers of floats; by one exponent squares and cubes by multiplication, as on the CPU.
fn power(a: &str, b: &str, scalar: bool) -> String {
    match scalar {
        true => format!("{b} == 2 ? {a} * {a} : {b} == 3 ? {a} * {a} * {a} : power({a}, {b})"),
        false => format!("power({a}, {b})"),
    }
}

fn unary(f: Unary, x: &str) -> String {
    f.row().cuda.replace("{a}", x)
}

fn binary(f: Binary, a: &str, b: &str) -> String {
    // Operands are variables and elements of tensors, whose texts have no braces.
    f.row().cuda.replace("{a}", a).replace("{b}", b)
}
