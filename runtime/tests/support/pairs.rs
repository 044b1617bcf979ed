//! Operands for every operator that declares pairs of an operand and a result that may share
//! bytes, and the ways in which results may take operands' places.

use super::random::Random;
use arenic_ir::op::{Activation, Binary, Rng, Scatter, Step, Unary};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TensorType};
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use std::collections::BTreeSet;

/// Operators that declare no pair, whatever their operands are.
const WITHOUT: &[&str] = &[
    "all_gather",
    "attention",
    "attention_grad",
    "average_pool",
    "average_pool_grad",
    "batch_norm_param_grad",
    "channels_last",
    "concat",
    "conv",
    "conv_transpose",
    "conv_weight_grad",
    "expand",
    "gather",
    "gather_elements",
    "gather_nd",
    "gemm_gelu",
    "gemm_gelu_grad",
    "layer_norm_param_grad",
    "log_softmax_stats",
    "mat_mul",
    "max_pool",
    "max_pool_grad",
    "opaque",
    "own_part",
    "pad",
    "pointwise_reduce",
    "random_uniform",
    "reduce",
    "reduce_scatter",
    "resize",
    "slice",
    "top_k",
    "transpose",
];

/// Operators whose pairs have tests of their own, since they take more than one rank: `tests/ranks.rs`.
const OF_RANKS: &[&str] = &["all_reduce"];

/// An operator and its operands, by type and contents.
pub(crate) type Case = (Op, Vec<(TensorType, Vec<u8>)>);

/// The ways in which results may take operands' places: of each way, the operand (one of
/// `roots`) and the result, of every pair. Operand `i` has the bytes of operand `roots[i]`, so
/// that a result may take these where that is declared of all operands that have them.
pub(crate) fn placements(
    pairs: &[(usize, usize)],
    roots: &[usize],
    results: usize,
) -> Vec<Vec<(usize, usize)>> {
    let may = |root: usize, o: usize| {
        (0..roots.len()).filter(|&i| roots[i] == root).all(|i| pairs.contains(&(i, o)))
    };
    let all: BTreeSet<usize> = roots.iter().copied().collect();
    let mut ways: Vec<Vec<(usize, usize)>> = vec![vec![]];
    for o in 0..results {
        let more = ways.iter().flat_map(|way| {
            let free = all.iter().filter(|&&root| way.iter().all(|&(taken, _)| taken != root));
            let fits = free.filter(|&&root| may(root, o));
            fits.map(|&root| [&way[..], &[(root, o)]].concat()).collect::<Vec<_>>()
        });
        let more: Vec<_> = more.collect();
        ways.extend(more);
    }
    ways
}

/// Which operands may be one value: none, each two of one type, and all of one type.
pub(crate) fn shared(types: &[&TensorType]) -> Vec<Vec<usize>> {
    let apart: Vec<usize> = (0..types.len()).collect();
    let mut all = BTreeSet::from([apart.clone()]);
    for j in 0..types.len() {
        let first = (0..=j).find(|&i| types[i] == types[j]).unwrap_or(j);
        for i in (0..j).filter(|&i| types[i] == types[j]) {
            let mut roots = apart.clone();
            roots[j] = i;
            all.insert(roots);
        }
        let mut roots: Vec<usize> = apart.clone();
        (0..types.len()).filter(|&k| types[k] == types[j]).for_each(|k| roots[k] = first);
        all.insert(roots);
    }
    all.into_iter().collect()
}

/// Fails where an operator or a function of elements is in no case, though it may have pairs, or
/// where a list says of one that it has none, though a case has.
pub(crate) fn are_all_covered(cases: &[Case]) {
    let (mut ops, mut functions) = (BTreeSet::new(), BTreeSet::new());
    for (op, operands) in cases {
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| ty).collect();
        let results = op.infer(&types).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        if !op.in_place_pairs(&types, &results.iter().collect::<Vec<_>>()).is_empty() {
            ops.insert(op.name());
        }
        match op {
            Op::Unary { f } => functions.insert(format!("{f:?}")),
            Op::Binary { f } => functions.insert(format!("{f:?}")),
            Op::ScatterElements { reduction, .. } => functions.insert(format!("{reduction:?}")),
            _ => false,
        };
    }
    let known = variants::<Op>();
    for name in known.iter().filter(|name| !OF_RANKS.contains(name)) {
        assert!(
            ops.contains(name) != WITHOUT.contains(name),
            "`{name}` is {} cases of tests/support/pairs.rs that declare a pair: add one there, or \
             say in WITHOUT that it has none",
            if ops.contains(name) { "in WITHOUT, and yet in" } else { "in no" }
        );
    }
    for name in WITHOUT {
        assert!(known.contains(name), "WITHOUT has `{name}`, which is no operator");
    }
    for f in every::<Unary>().iter().map(|f| format!("{f:?}")) {
        assert!(functions.contains(&f), "{f} is in no case of tests/support/pairs.rs");
    }
    for f in every::<Binary>().iter().map(|f| format!("{f:?}")) {
        assert!(functions.contains(&f), "{f} is in no case of tests/support/pairs.rs");
    }
    for f in every::<Scatter>().iter().map(|f| format!("{f:?}")) {
        assert!(functions.contains(&f), "{f} is in no case of tests/support/pairs.rs");
    }
}

/// The names of an enum's variants, as its derived `Deserialize` says them.
fn variants<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(serde::de::Error::custom("no enum"))
        }

        fn deserialize_enum<V: Visitor<'de>>(
            self,
            _: &'static str,
            variants: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Error> {
            *self.0 = variants;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
        }
    }
    let mut names: &[&str] = &[];
    // It fails in any case, after it has named them.
    let _ = T::deserialize(Names(&mut names));
    assert!(!names.is_empty(), "no enum");
    names
}

/// Every value of an enum without fields.
pub(crate) fn every<T: for<'de> Deserialize<'de>>() -> Vec<T> {
    let value = |name: &&'static str| {
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        T::deserialize(name).expect("a variant without fields")
    };
    variants::<T>().iter().map(value).collect()
}

/// Numbers that every function takes: floats in (0, 1), integers from 1 to 7.
fn filled(r: &mut Random, dtype: DType, shape: &[usize]) -> (TensorType, Vec<u8>) {
    let ty = TensorType::new(dtype, shape);
    let mut bytes = Vec::with_capacity(ty.bytes() as usize);
    for _ in 0..ty.elements() {
        let x = (r.bits() >> 11) as f64 / (1u64 << 53) as f64 * 0.9 + 0.05;
        let n = 1 + (r.bits() % 7) as u8;
        match dtype {
            DType::Bool => bytes.push(n & 1),
            DType::U8 | DType::I8 => bytes.push(n),
            DType::U16 | DType::I16 => bytes.extend(u16::from(n).to_le_bytes()),
            DType::U32 | DType::I32 => bytes.extend(u32::from(n).to_le_bytes()),
            DType::U64 | DType::I64 => bytes.extend(u64::from(n).to_le_bytes()),
            DType::Bf16 => bytes.extend(bf16::from_f32(x as f32).to_le_bytes()),
            DType::F32 => bytes.extend((x as f32).to_le_bytes()),
            DType::F64 => bytes.extend(x.to_le_bytes()),
        }
    }
    (ty, bytes)
}

/// How large the operands of cases are.
pub(crate) struct Extents {
    /// Rows and columns of what is elementwise or goes along an axis.
    pub(crate) matrix: [usize; 2],
    /// Steps, batch and units of recurrences.
    pub(crate) recurrence: [usize; 3],
    /// The types of elementwise operators.
    pub(crate) types: &'static [DType],
}

/// Cases of every operator with pairs.
pub(crate) fn cases(r: &mut Random, e: &Extents) -> Vec<Case> {
    let mut all = Vec::new();
    elementwise(r, e, &mut all);
    along_axes(r, e, &mut all);
    updates(r, e, &mut all);
    recurrences(r, e, &mut all);
    all
}

fn elementwise(r: &mut Random, e: &Extents, all: &mut Vec<Case>) {
    let [m, n] = e.matrix;
    // Of the result's shape, of a row, of a column, of one element.
    let forms: [&[usize]; 4] = [&[m, n], &[n], &[m, 1], &[]];
    for &dtype in e.types {
        let of = |r: &mut Random, shape: &[usize]| filled(r, dtype, shape);
        let x = of(r, &[m, n]);
        all.push((Op::Reshape { shape: vec![n, m] }, vec![x.clone()]));
        all.push((Op::Copy, vec![x.clone()]));
        for &to in e.types.iter().filter(|to| to.size() == dtype.size()) {
            all.push((Op::Cast { to }, vec![x.clone()]));
        }
        for f in every::<Unary>().into_iter().filter(|f| f.takes(dtype)) {
            all.push((Op::Unary { f }, vec![x.clone()]));
        }
        for f in every::<Binary>().into_iter().filter(|f| f.takes(dtype)) {
            // All forms with some functions, on either side; one with the others.
            let count = if matches!(f, Binary::Sub | Binary::Equal) { forms.len() } else { 1 };
            for form in &forms[..count] {
                let (a, b) = (of(r, &[m, n]), of(r, form));
                all.push((Op::Binary { f }, vec![a.clone(), b.clone()]));
                all.push((Op::Binary { f }, vec![b, a]));
            }
        }
        if dtype != DType::Bool {
            for (min, max) in [(true, true), (true, false), (false, true)] {
                let bounds = usize::from(min) + usize::from(max);
                let operands =
                    [vec![x.clone()], (0..bounds).map(|_| of(r, &[])).collect()].concat();
                all.push((Op::Clip { min, max }, operands));
            }
        }
        for form in forms {
            let (a, b) = (of(r, &[m, n]), of(r, form));
            for condition in [&[m, n][..], form] {
                let c = filled(r, DType::Bool, condition);
                all.push((Op::Where, vec![c.clone(), a.clone(), b.clone()]));
                all.push((Op::Where, vec![c, b.clone(), a.clone()]));
            }
        }
        if dtype != DType::Bool {
            scatters(r, dtype, [m, n], all);
        }
        if dtype.is_float() {
            let rng = Rng { stream: 5, seed: None };
            let operands = vec![of(r, &[m, n]), of(r, &[])];
            all.push((Op::Dropout { rng }, operands));
            pointwise(r, dtype, [m, n], all);
        }
    }
}

fn scatters(r: &mut Random, dtype: DType, [m, n]: [usize; 2], all: &mut Vec<Case>) {
    let index = |r: &mut Random, shape: &[usize], extent: usize| {
        let ty = TensorType::new(DType::I64, shape);
        let at = (0..ty.elements()).flat_map(|_| (r.bits() % extent as u64).to_le_bytes());
        let at = at.collect();
        (ty, at)
    };
    for reduction in every::<Scatter>() {
        let x = filled(r, dtype, &[m, n]);
        let operands = vec![x.clone(), index(r, &[3, n], m), filled(r, dtype, &[3, n])];
        all.push((Op::ScatterElements { axis: 0, reduction }, operands));
        let operands = vec![x, index(r, &[4, 1], m), filled(r, dtype, &[4, n])];
        all.push((Op::ScatterNd { reduction }, operands));
    }
}

fn pointwise(r: &mut Random, dtype: DType, [m, n]: [usize; 2], all: &mut Vec<Case>) {
    // A condition among the operands, a step that reads an operand after another's result is
    // there, two results.
    let steps = vec![
        Step::Binary(Binary::Mul, 0, 1),
        Step::Where(3, 4, 2),
        Step::Unary(Unary::Sqrt, 0),
        Step::Binary(Binary::Add, 5, 6),
        Step::Binary(Binary::Sub, 2, 7),
    ];
    let op = Op::Pointwise { steps, results: vec![7, 5] };
    for form in [&[m, n][..], &[n], &[]] {
        let mut operands: Vec<_> = (0..2).map(|_| filled(r, dtype, &[m, n])).collect();
        operands.push(filled(r, dtype, form));
        operands.push(filled(r, DType::Bool, &[m, n]));
        // Sources from 4 on are results of steps.
        all.push((op.clone(), operands));
    }
}

fn along_axes(r: &mut Random, e: &Extents, all: &mut Vec<Case>) {
    let [m, n] = e.matrix;
    for dtype in e.types.iter().copied().filter(|d| d.is_float()) {
        let sums = dtype.accumulated();
        for axis in [0, 1] {
            let x = filled(r, dtype, &[m, n]);
            let dy = filled(r, dtype, &[m, n]);
            all.push((Op::Softmax { axis }, vec![x.clone()]));
            all.push((Op::LogSoftmax { axis }, vec![x.clone()]));
            all.push((Op::SoftmaxGrad { axis }, vec![x.clone(), dy.clone()]));
            all.push((Op::LogSoftmaxGrad { axis }, vec![x.clone(), dy.clone()]));
            let own: &[usize] = if axis == 0 { &[m, n] } else { &[n] };
            let stats: &[usize] = if axis == 0 { &[1, 1] } else { &[m, 1] };
            let (scale, bias) = (filled(r, sums, own), filled(r, sums, own));
            let op = Op::LayerNorm { axis, epsilon: 1e-3 };
            all.push((op, vec![x.clone(), scale.clone(), bias]));
            let stats = [filled(r, sums, stats), filled(r, sums, stats)];
            let operands = [vec![x, dy, scale], stats.to_vec()].concat();
            all.push((Op::LayerNormInputGrad { axis }, operands));
        }
        for shape in [vec![m, n], vec![3, m, n]] {
            let c = shape[1];
            let x = filled(r, dtype, &shape);
            let channel: Vec<_> = (0..5).map(|_| filled(r, sums, &[c])).collect();
            let op = Op::BatchNorm { epsilon: 1e-3 };
            all.push((op, [std::slice::from_ref(&x), &channel[..2]].concat()));
            let dy = filled(r, dtype, &shape);
            all.push((Op::BatchNormInputGrad, [&[x, dy], &channel[..]].concat()));
        }
        fused_norms(r, dtype, [m, n], all);
        let row = [filled(r, sums, &[m, 1]), filled(r, sums, &[m, 1])].to_vec();
        let x = filled(r, dtype, &[m, n]);
        all.push((Op::SoftmaxOfStats, [vec![x.clone()], row.clone()].concat()));
        let target = (TensorType::new(DType::I64, [m, 1]), vec![0; 8 * m]);
        let weight = filled(r, sums, &[m, 1]);
        all.push((Op::CrossEntropyGrad, [vec![x], row, vec![target, weight]].concat()));
        for (trans_a, trans_b) in [(false, false), (true, true)] {
            let (k, shape) = (5, |t: bool, a, b| if t { [b, a] } else { [a, b] });
            let a = filled(r, dtype, &shape(trans_a, m, k));
            let b = filled(r, dtype, &shape(trans_b, k, n));
            let op = Op::Gemm { alpha: 0.5, beta: 0.25, trans_a, trans_b };
            all.push((op, vec![a, b, filled(r, dtype, &[m, n])]));
        }
    }
}

/// Steps that read a tensor after another's element is there, a condition and one element.
fn fused_norms(r: &mut Random, dtype: DType, shape: [usize; 2], all: &mut Vec<Case>) {
    let sums = dtype.accumulated();
    let narrow = dtype == DType::Bf16;
    let read = [
        filled(r, dtype, &shape),
        filled(r, DType::Bool, &shape),
        filled(r, dtype, &shape),
        filled(r, dtype, &[]),
    ];
    // Behind the others are results of steps; in front of them may be what is normalised.
    let steps = |first: usize| {
        let mut steps = vec![
            Step::Where(first + 1, first, first + 3),
            Step::Binary(Binary::Mul, first + 4, first + 2),
            Step::Binary(Binary::Sub, first + 5, 0),
        ];
        steps.extend(narrow.then_some(Step::Round(first + 6)));
        steps
    };
    let x = filled(r, dtype, &shape);
    let channel: Vec<_> = (0..5).map(|_| filled(r, sums, &shape[1..])).collect();
    let row: Vec<_> = (0..2).map(|_| filled(r, sums, &[shape[0], 1])).collect();
    // Of the shape of what is normalised, so that one value may be both.
    let whole = filled(r, sums, &shape);
    for (of, own) in [
        (Op::BatchNorm { epsilon: 1e-3 }, channel[..2].to_vec()),
        (Op::LayerNorm { axis: 1, epsilon: 1e-3 }, channel[..2].to_vec()),
        (Op::LayerNorm { axis: 0, epsilon: 1e-3 }, vec![whole]),
    ] {
        let operands = [std::slice::from_ref(&x), &own, &read].concat();
        all.push((
            Op::FusedNorm { of: Box::new(of), others: 4, steps: steps(1), rounded: false },
            operands,
        ));
    }
    for (of, own) in [
        (Op::BatchNormInputGrad, channel.clone()),
        (Op::LayerNormInputGrad { axis: 1 }, [&channel[..1], &row].concat()),
    ] {
        let operands = [std::slice::from_ref(&x), &own, &read].concat();
        let made = Op::FusedNormGrad { of: Box::new(of), steps: steps(0) };
        all.push((made.clone(), operands.clone()));
        let operands = [&operands[..], &read].concat();
        all.push((
            Op::FusedNorm { of: Box::new(made), others: 4, steps: steps(1), rounded: false },
            operands,
        ));
    }
}

fn updates(r: &mut Random, e: &Extents, all: &mut Vec<Case>) {
    let [m, n] = e.matrix;
    let adam = Op::Adam {
        alpha: 0.9,
        beta: 0.99,
        epsilon: 1e-6,
        norm_coefficient: 0.1,
        norm_coefficient_post: 0.02,
    };
    let adagrad = Op::Adagrad { decay_factor: 0.1, epsilon: 1e-6, norm_coefficient: 0.01 };
    let nesterov = Op::Momentum { alpha: 0.9, beta: 0.8, nesterov: true, norm_coefficient: 0.01 };
    let plain = Op::Momentum { alpha: 0.9, beta: 0.8, nesterov: false, norm_coefficient: 0.0 };
    for dtype in [DType::F32, DType::F64] {
        for (op, slots) in [(&adam, 2), (&adagrad, 1), (&nesterov, 1), (&plain, 1)] {
            let mut others = vec![filled(r, dtype, &[]), filled(r, DType::I64, &[])];
            others.extend((0..1 + slots).map(|_| filled(r, dtype, &[m, n])));
            let mut whole = others.clone();
            whole.insert(3, filled(r, dtype, &[m, n]));
            all.push((op.clone(), whole.clone()));
            let mut second = whole.clone();
            second[2..].iter_mut().for_each(|x| *x = filled(r, dtype, &[m, n]));
            let of = Box::new(op.clone());
            all.push((Op::ForEach { of, lots: 2 }, [whole, second].concat()));
            others.extend([filled(r, dtype, &[m, 5]), filled(r, dtype, &[5, n])]);
            all.push((product(op), others));
        }
        // The step of a momentum as a program: rate, decay, weight, gradient, direction.
        let steps = vec![
            Step::Binary(Binary::Mul, 4, 1),
            Step::Binary(Binary::Add, 5, 3),
            Step::Binary(Binary::Mul, 0, 6),
            Step::Binary(Binary::Sub, 2, 7),
        ];
        let op = Op::Pointwise { steps, results: vec![6, 8] };
        let mut operands: Vec<_> = (0..2).map(|_| filled(r, dtype, &[])).collect();
        operands.extend((0..2).map(|_| filled(r, dtype, &[m, n])));
        operands.extend([filled(r, dtype, &[m, 5]), filled(r, dtype, &[5, n])]);
        all.push((product(&op), operands));
    }
}

/// The update whose gradient, operand 3, is a product.
fn product(update: &Op) -> Op {
    let update = Box::new(update.clone());
    Op::ProductUpdate { alpha: 0.5, trans_a: false, trans_b: false, gradient: 3, update }
}

fn recurrences(r: &mut Random, e: &Extents, all: &mut Vec<Case>) {
    let [t, b, n] = e.recurrence;
    for dtype in [DType::F32, DType::F64] {
        for reverse in [false, true] {
            let of = |r: &mut Random, shape: &[usize]| filled(r, dtype, shape);
            let state = of(r, &[b, n]);
            let operands =
                vec![of(r, &[t, b, 4 * n]), of(r, &[4 * n, n]), state.clone(), of(r, &[b, n])];
            all.push((Op::Lstm { reverse }, [operands, vec![of(r, &[3 * n])]].concat()));
            let steps = |r: &mut Random, k: usize| of(r, &[t, b, k * n]);
            let (gates, cells, w) = (steps(r, 4), steps(r, 1), of(r, &[4 * n, n]));
            let (dy, dcells) = (steps(r, 1), steps(r, 1));
            let operands = vec![gates, cells, w, state.clone(), dy, dcells];
            all.push((Op::LstmGrad { reverse, dcells: true }, operands));
            for linear_before_reset in [false, true] {
                let mut x = vec![steps(r, 3), of(r, &[3 * n, n]), state.clone()];
                x.extend(linear_before_reset.then(|| of(r, &[n])));
                all.push((Op::Gru { reverse, linear_before_reset }, x));
                let (gates, y, w) = (steps(r, 3), steps(r, 1), of(r, &[3 * n, n]));
                let mut x = vec![gates, y, w, state.clone(), steps(r, 1)];
                x.extend(linear_before_reset.then(|| steps(r, 1)));
                all.push((Op::GruGrad { reverse, linear_before_reset }, x));
            }
            for activation in [Activation::Tanh, Activation::Relu] {
                let x = vec![steps(r, 1), of(r, &[n, n]), state.clone()];
                all.push((Op::Rnn { reverse, activation }, x));
                let x = vec![steps(r, 1), of(r, &[n, n]), steps(r, 1)];
                all.push((Op::RnnGrad { reverse, activation }, x));
            }
        }
    }
}
