//! Extents and attributes out of files: whatever `infer` accepts, every other function of the
//! operator table answers, without an overflow, and its answer is what a kernel can rely on.

use arenic_backends::{ALL, CPU, CUDA};
use arenic_ir::op::{Assembly, Cut, Op};
use arenic_ir::types::{DType, TensorType};
use std::collections::{BTreeMap, BTreeSet};

/// Operators with operands, whose extents are letters. `$` before a letter is the extent as a
/// number; windows have a kernel `k`, stride `s`, dilation `d` and padding `p`.
const OPERATORS: &str = r#"
{"reshape":{"shape":[$a,$b]}} | f32[b,a]
{"slice":{"starts":[$i,0],"steps":[$s,1],"shape":[$a,$b]}} | f32[c,b]
{"pad":{"starts":[$i],"steps":[$s],"shape":[$a],"value":0.0}} | f32[b]
{"transpose":{"perm":[1,0,2]}} | f32[a,b,c]
{"expand":{"shape":[$a,$b]}} | f32[b]
{"concat":{"axis":0}} | f32[a,b] f32[c,b]
"copy" | f32[a,b,c]
{"gather":{"axis":1}} | f32[a,b,c] i64[d]
{"gather_elements":{"axis":1}} | f32[a,b] i64[a,c]
{"gather_nd":{"batch_dims":1}} | f32[a,b,c] i64[a,d,1]
{"scatter_elements":{"axis":0,"reduction":"add"}} | f32[a,b] i64[c,b] f32[c,b]
{"scatter_nd":{"reduction":"replace"}} | f32[a,b] i64[c,1] f32[c,b]
{"cast":{"to":"f64"}} | f32[a,b]
{"unary":{"f":"exp"}} | f32[a,b]
{"binary":{"f":"add"}} | f32[a,1] f32[b]
"where" | bool[a,1] f32[b] f32[a,b]
{"clip":{"min":true,"max":false}} | f32[a,b] f32[]
{"dropout":{"rng":{"stream":0}}} | f32[a,b] f32[]
{"random_uniform":{"dtype":"f32","shape":[$a,$b],"low":0.0,"high":1.0,"rng":{"stream":0}}} |
{"reduce":{"f":"sum","axes":[0,2],"keep":false}} | f32[a,b,c]
{"reduce":{"f":"mean","axes":[1],"keep":true}} | i32[a,b,c]
{"softmax":{"axis":1}} | f32[a,b,c]
{"log_softmax":{"axis":1}} | f32[a,b]
{"softmax_grad":{"axis":0}} | f32[a,b] f32[a,b]
{"log_softmax_grad":{"axis":1}} | f32[a,b] f32[a,b]
{"top_k":{"axis":1,"k":$k,"largest":true}} | f32[a,b]
{"layer_norm":{"axis":1,"epsilon":0.1}} | f32[a,b,c] f32[b,c]
{"layer_norm_param_grad":{"axis":1}} | f32[a,b] f32[a,b] f32[a,1] f32[a,1]
{"layer_norm_input_grad":{"axis":1}} | f32[a,b] f32[a,b] f32[b] f32[a,1] f32[a,1]
{"batch_norm":{"epsilon":0.1}} | f32[a,b,c] f32[b] f32[b]
"batch_norm_param_grad" | f32[a,b,c] f32[a,b,c] f32[b] f32[b]
"batch_norm_input_grad" | f32[a,b,c] f32[a,b,c] f32[b] f32[b] f32[b] f32[b] f32[b]
{"fused_norm":{"of":{"batch_norm":{"epsilon":0.1}},"others":2,"steps":[{"binary":["add",0,1]},{"binary":["mul",3,2]}]}} | f32[a,b,c] f32[b] f32[b] f32[a,b,c] f32[]
{"fused_norm":{"of":{"layer_norm":{"axis":1,"epsilon":0.1}},"others":$k,"steps":[{"unary":["relu",0]}]}} | f32[a,b] f32[b] f32[a,b]
{"fused_norm":{"of":"batch_norm_input_grad","others":1,"steps":[{"binary":["add",0,1]}]}} | f32[a,b,c] f32[a,b,c] f32[b] f32[b] f32[b] f32[b] f32[b] f32[a,b,c]
{"fused_norm":{"of":{"fused_norm_grad":{"of":{"layer_norm_input_grad":{"axis":1}},"steps":[]}},"others":$k,"steps":[{"unary":["neg",0]}]}} | f32[a,b] f32[b] f32[a,1] f32[a,1] bf16[a,b] f32[a,b]
{"fused_norm_grad":{"of":"batch_norm_param_grad","steps":[{"where":[0,1,2]}]}} | f32[a,b,c] f32[b] f32[b] bool[a,b,c] f32[a,b,c] f32[]
{"fused_norm_grad":{"of":{"layer_norm_input_grad":{"axis":1}},"steps":[{"unary":["neg",0]}]}} | f32[a,b] f32[b] f32[a,1] f32[a,1] f32[a,b]
{"mat_mul":{}} | f32[a,b,c] f32[a,c,d]
{"mat_mul":{"trans_a":true}} | bf16[c,b] bf16[c,d]
{"gemm":{"alpha":1.0,"beta":1.0}} | f32[a,b] f32[b,c] f32[c]
{"conv":{"window":$w,"group":$g}} | f32[a,c,b] f32[m,e,k]
{"conv":{"window":$w,"group":1}} | f32[a,c,b] f32[m,c,k]
{"conv_transpose":{"window":$w,"group":1,"output_padding":[0]}} | f32[a,c,b] f32[c,m,k]
{"conv_weight_grad":{"window":$w,"group":1}} | f32[a,c,b] f32[a,m,b]
{"max_pool":{"window":$w}} | f32[a,c,b]
{"max_pool":{"window":$w,"indices":"taps"}} | f32[a,c,b]
{"average_pool":{"window":$w}} | f32[a,c,b]
{"max_pool_grad":{"window":$w,"shape":[$a,$c,$b]}} | f32[a,c,e] i64[a,c,e]
{"max_pool_grad":{"window":$w,"indices":"taps","shape":[$a,$c,$b]}} | f32[a,c,e] u8[a,c,e]
{"average_pool_grad":{"window":$w,"shape":[$a,$c,$b]}} | f32[a,c,e]
{"channels_last":{"of":{"conv":{"window":$w,"group":1}}}} | f32[a,b,c] f32[m,k,c]
{"lstm":{}} | f32[a,b,4*c] f32[4*c,c] f32[b,c] f32[b,c]
{"lstm_grad":{"dcells":false}} | f32[a,b,4*c] f32[a,b,c] f32[4*c,c] f32[b,c] f32[a,b,c]
{"gru":{}} | f32[a,b,3*c] f32[3*c,c] f32[b,c]
{"gru_grad":{}} | f32[a,b,3*c] f32[a,b,c] f32[3*c,c] f32[b,c] f32[a,b,c]
{"rnn":{"activation":"tanh"}} | f32[a,b,c] f32[c,c] f32[b,c]
{"rnn_grad":{"activation":"tanh"}} | f32[a,b,c] f32[c,c] f32[a,b,c]
{"resize":{"spec":{"sizes":[$a],"scales":[$x],"mode":"linear","coordinates":"half_pixel","antialias":true}}} | f32[b]
{"resize":{"spec":{"sizes":[$a],"scales":[$x],"mode":{"cubic":{"a":-0.75}},"coordinates":"asymmetric"}}} | f32[b]
{"for_each":{"of":{"momentum":{"alpha":0.9,"beta":0.9,"nesterov":false,"norm_coefficient":0.0}},"lots":$k}} | f32[] i64[] f32[a,b] f32[a,b] f32[a,b] f32[] i64[] f32[a,b] f32[a,b] f32[a,b]
{"adam":{"alpha":0.9,"beta":0.9,"epsilon":0.1,"norm_coefficient":0.0,"norm_coefficient_post":0.0}} | f32[] i64[] f32[a,b] f32[a,b] f32[a,b] f32[a,b]
{"adagrad":{"decay_factor":0.0,"epsilon":0.1,"norm_coefficient":0.0}} | f32[] i64[] f32[a,b] f32[a,b] f32[a,b]
{"momentum":{"alpha":0.9,"beta":0.9,"nesterov":false,"norm_coefficient":0.0}} | f32[] i64[] f32[a,b] f32[a,b] f32[a,b]
{"pointwise":{"steps":[{"binary":["add",0,1]}],"results":[2]}} | f32[a,1] f32[b]
{"pointwise_reduce":{"steps":[{"binary":["add",0,1]}],"f":"sum","axes":[0,1],"keep":false}} | f32[a,1] f32[b]
{"product_update":{"gradient":3,"update":{"momentum":{"alpha":0.9,"beta":0.9,"nesterov":false,"norm_coefficient":0.0}}}} | f32[] i64[] f32[a,b] f32[a,b] f32[a,c] f32[c,b]
{"gemm_gelu":{}} | f32[a,b] f32[b,c] f32[c]
{"gemm_gelu_grad":{}} | f32[a,b] f32[b,c] f32[a,c]
{"attention":{"spec":{"scale":1.0}}} | f32[a,b,c] f32[a,d,c] f32[a,d,e]
{"attention":{"spec":{"scale":1.0,"causal":true}}} | bf16[b,c] bf16[d,c] bf16[d,e]
{"attention":{"spec":{"scale":1.0,"positions_first":true,"packed":true}}} | f32[a,b,c,d] f32[a,b,c,d] f32[a,b,c,d]
{"attention_grad":{"spec":{"scale":1.0,"positions_first":true,"packed":true}}} | f32[a,b,3,d] f32[a,b,3,d] f32[a,b,3,d] f32[a,1,b] f32[a,1,b] f32[a,b,1,d]
{"attention_grad":{"spec":{"scale":1.0}}} | f32[a,b,c] f32[a,d,c] f32[a,d,e] f32[a,b] f32[a,b] f32[a,b,e]
"log_softmax_stats" | f32[a,b]
{"all_reduce":{"ranks":$k}} | f32[a,b] f32[c]
{"reduce_scatter":{"ranks":$k}} | bf16[a,b] bf16[c]
{"all_gather":{"ranks":1,"shapes":[[$a],[$b]]}} | f32[a] f32[b]
{"own_part":{"ranks":$k}} | i64[a,b]
"softmax_of_stats" | f32[a,b] f32[a,1] f32[a,1]
"cross_entropy_grad" | f32[a,b] f32[a,1] f32[a,1] i64[a,1] f32[a,1]
{"opaque":{"results":[$a,$b]}} | u8[c]
"#;

/// Extents that overflow alone, in pairs, in triples, or not at all.
const EXTENTS: [u64; 16] = [
    0,
    1,
    1,
    2,
    3,
    5,
    16,
    300,
    4096,
    1 << 16,
    1 << 21,
    1 << 31,
    1 << 32,
    1 << 46,
    1 << 60,
    u64::MAX,
];

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws the letters of a line, and gives the operator with its operands' types.
fn draw(line: &str, state: &mut u64) -> Option<(Op, Vec<TensorType>)> {
    // Most draws have few absurd extents, so that some are accepted.
    let most = [4, 8, 11, 16][next(state) as usize % 4];
    let mut letters = BTreeMap::new();
    let mut letter = |c: char, state: &mut u64| {
        *letters.entry(c).or_insert_with(|| EXTENTS[next(state) as usize % most])
    };
    let (op, operands) = line.split_once(" |").unwrap();
    let scale = [1.0, 0.5, 3.0, 1e-18, 1e-38, 1e30][next(state) as usize % 6];
    let list = |c: char| format!("[${c}]");
    let window = format!(
        r#"{{"kernel":{},"strides":{},"dilations":{},"pads_begin":{},"pads_end":{}}}"#,
        list('k'),
        list('s'),
        list('d'),
        list('p'),
        list('p')
    );
    let mut op = op.replace("$w", &window).replace("$x", &scale.to_string());
    while let Some(at) = op.find('$') {
        let c = op[at + 1..].chars().next().unwrap();
        let n = letter(c, state).to_string();
        op.replace_range(at..at + 2, &n);
    }
    let operand = |text: &str| {
        let (dtype, shape) = text.trim_end_matches(']').split_once('[').unwrap();
        let extents = shape.split(',').filter(|e| !e.is_empty()).map(|e| {
            let (factor, e) = e.split_once('*').unwrap_or(("1", e));
            let n = e.parse().unwrap_or_else(|_| letter(e.chars().next().unwrap(), state));
            factor.parse::<u64>().unwrap().saturating_mul(n) as usize
        });
        TensorType::new(DType::from_name(dtype).unwrap(), extents.collect::<Vec<_>>())
    };
    let operands = operands.split_whitespace().map(operand).collect();
    // Numbers that do not fit an attribute are refused by the parser.
    Some((serde_json::from_str(&op).ok()?, operands))
}

#[test]
fn nothing_overflows_that_infer_accepts() {
    let (mut state, mut cut) = (7, BTreeSet::new());
    for line in OPERATORS.trim().lines() {
        let (mut accepted, mut cuts) = (0, 0);
        for _ in 0..2000 {
            let Some((op, x)) = draw(line, &mut state) else { continue };
            let x: Vec<&TensorType> = x.iter().collect();
            let Ok(y) = op.infer(&x) else { continue };
            let y: Vec<&TensorType> = y.iter().collect();
            accepted += 1;
            for target in [CPU.target(), CUDA.target()] {
                op.scratch_bytes(target, &x, &y);
                let by_library = op.may_use_library(target, &x, &y);
                // What no table says is unknown, and no promise.
                let is_known = op.sum_order(target.backend, &x, &y).is_some();
                let expected = !by_library && !WITHOUT_SUM_ORDER.contains(&op.name());
                assert_eq!(is_known, expected, "{op:?} of {x:?}");
            }
            op.in_place_pairs(&x, &y);
            op.work(&x, &y);
            for cut in op.cuts(&x, &y) {
                cuts += 1;
                // The work of a part of something absurd may be above what `infer` allows.
                if x.iter().chain(&y).all(|t| t.elements() < 1 << 32) {
                    has_parts(&op, &cut, &x, &y);
                }
                keeps_bits(&op, &cut, &x, &y);
            }
        }
        assert!(accepted > 10, "{accepted} accepted of {line}");
        if cuts > 0 {
            cut.insert(line.split('"').nth(1).unwrap());
        }
    }
    let expected = Op::NAMES.iter().copied().filter(|name| !WITHOUT_CUTS.contains(name));
    assert_eq!(cut, expected.collect());
}

/// Operators whose order of sums is unknown on every backend.
const WITHOUT_SUM_ORDER: &[&str] =
    &["all_gather", "all_reduce", "opaque", "own_part", "reduce_scatter"];

/// Operators that are never cut.
const WITHOUT_CUTS: &[&str] = &[
    "all_gather",
    "all_reduce",
    "dropout",
    "for_each",
    "gather",
    "gather_nd",
    "opaque",
    "own_part",
    "random_uniform",
    "reduce_scatter",
    "resize",
    "scatter_nd",
    "slice",
    "top_k",
];

/// A part of one index takes its share of the operands, and gives its share of each result.
fn has_parts(op: &Op, cut: &Cut, x: &[&TensorType], y: &[&TensorType]) {
    let share = |(t, axis): (&&TensorType, &Option<usize>)| match axis {
        Some(axis) => t.with_extent(*axis, 1),
        None => (*t).clone(),
    };
    let operands: Vec<TensorType> = x.iter().zip(&cut.operands).map(share).collect();
    let part = op.part(cut, 1);
    let results = part.infer(&operands.iter().collect::<Vec<_>>());
    let results = results.unwrap_or_else(|e| panic!("{op:?} of {x:?}, cut {cut:?}: {e}"));
    let expected = y.iter().zip(&cut.results).map(|(t, how)| match how {
        Assembly::Concat(axis) => t.with_extent(*axis, 1),
        Assembly::Positions(_) => t.with_extent(0, 1),
        Assembly::Sum | Assembly::Accumulate => (*t).clone(),
    });
    assert_eq!(results, expected.collect::<Vec<_>>(), "{op:?} of {x:?}, cut {cut:?}");
}

fn keeps_bits(op: &Op, cut: &Cut, x: &[&TensorType], y: &[&TensorType]) {
    if cut.extent > 1 {
        for backend in ALL {
            op.cut_keeps_bits(backend, cut, &[cut.extent / 2, cut.extent], x, y);
        }
    }
}

#[test]
fn every_operator_is_drawn() {
    let name = |line: &'static str| line.split('"').nth(1).unwrap();
    let drawn: BTreeSet<&str> = OPERATORS.trim().lines().map(name).collect();
    assert_eq!(drawn, Op::NAMES.iter().copied().collect());
}

#[test]
fn work_without_bounds_is_refused() {
    let pool = |kernel: [u64; 3]| {
        let pads = kernel.map(|k| k - 1);
        let op = format!(
            r#"{{"average_pool":{{"window":{{"kernel":{kernel:?},"strides":[1,1,1],
            "dilations":[1,1,1],"pads_begin":{pads:?},"pads_end":[0,0,0]}}}}}}"#
        );
        let op: Op = serde_json::from_str(&op).unwrap();
        op.infer(&[&TensorType::new(DType::F32, [1, 1, 1, 1, 1])])
    };
    assert!(pool([7, 7, 7]).is_ok());
    assert!(pool([1 << 30, 1 << 30, 4]).is_err());
    assert!(pool([(1 << 31) - 1; 3]).is_err());
}
