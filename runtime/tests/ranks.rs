//! Exchanges between ranks: every kind, every type, tensors that have no equal parts, and buckets of several, beside
//! sums taken here. Ranks are threads.

use arenic_ir::graph::{Graph, Ranks, ValueId};
use arenic_ir::op::{Op, part_type};
use arenic_ir::text::Module;
use arenic_ir::types::{DType, TensorType, bf16};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::ranks::Communicator;
use arenic_runtime::ranks::threads::{ThreadRank, ranks};
use arenic_runtime::reference::Reference;
use std::sync::Arc;

/// A graph of one operator on inputs of these types; its results are outputs.
fn graph(op: Op, types: &[TensorType], count: usize) -> Graph {
    let ranks = (count > 1).then(|| Ranks { count, by_rows: Default::default() });
    let mut g = Graph { ranks, ..Graph::default() };
    let inputs: Vec<ValueId> =
        types.iter().enumerate().map(|(i, ty)| g.add_input(format!("x{i}"), ty.clone())).collect();
    let n = g.add_node("", op, inputs).unwrap();
    for (i, &v) in g.nodes[n].outputs.clone().iter().flatten().enumerate() {
        g.outputs.push(arenic_ir::graph::Output { name: format!("y{i}"), value: v });
    }
    arenic_ir::verify::verify(&g).unwrap();
    g
}

/// What each rank is given of each result, by rank.
fn run(op: &Op, operands: &[Vec<(TensorType, Vec<u8>)>]) -> Vec<Vec<Vec<u8>>> {
    let count = operands.len();
    let one = |rank: ThreadRank, x: &[(TensorType, Vec<u8>)]| {
        let types: Vec<TensorType> = x.iter().map(|(ty, _)| ty.clone()).collect();
        let g = graph(op.clone(), &types, count);
        let mut reference = Reference::new(&g).unwrap();
        reference.join(Arc::new(rank));
        for (v, (_, bytes)) in g.inputs().zip(x) {
            reference.value_mut(v).unwrap().copy_from_slice(bytes);
        }
        reference.step(Draw::default()).unwrap();
        g.outputs.iter().map(|o| reference.value(o.value).to_vec()).collect()
    };
    std::thread::scope(|scope| {
        let pairs = ranks(count).into_iter().zip(operands);
        let threads: Vec<_> = pairs.map(|(rank, x)| scope.spawn(move || one(rank, x))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Numbers of very different sizes, so that the order of sums shows in their bits.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        unit * 10f32.powi((state % 7) as i32 - 3)
    };
    (0..n).map(|_| next()).collect()
}

fn bytes_of(dtype: DType, x: &[f32]) -> Vec<u8> {
    match dtype {
        DType::Bf16 => x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// The sum by rank of one element, as bytes.
fn sum_of(dtype: DType, terms: &[f32]) -> Vec<u8> {
    let wide = |x: f32| match dtype {
        DType::Bf16 => bf16::to_f32(bf16::from_f32(x)),
        _ => x,
    };
    let sum = terms.iter().skip(1).fold(wide(terms[0]), |sum, &x| sum + wide(x));
    bytes_of(dtype, &[sum])
}

#[test]
fn sums_are_by_rank_whole_or_in_parts() {
    let shapes = [&[1][..], &[3], &[7, 5], &[64, 33], &[2, 3, 11], &[70_000]];
    for count in [1, 2, 3, 4] {
        for dtype in [DType::F32, DType::Bf16] {
            let types: Vec<_> = shapes.iter().map(|s| TensorType::new(dtype, *s)).collect();
            let values: Vec<Vec<Vec<f32>>> = (0..count)
                .map(|r| {
                    let of = |(i, ty): (usize, &TensorType)| {
                        numbers((100 * r + i + 7) as u64, ty.elements())
                    };
                    types.iter().enumerate().map(of).collect()
                })
                .collect();
            // One tensor after another, and all of them together.
            let alone: Vec<Vec<usize>> = (0..types.len()).map(|i| vec![i]).collect();
            for bucket in alone.into_iter().chain([(0..types.len()).collect()]) {
                let operands: Vec<Vec<_>> = values
                    .iter()
                    .map(|of_rank| {
                        let one = |&i: &usize| (types[i].clone(), bytes_of(dtype, &of_rank[i]));
                        bucket.iter().map(one).collect()
                    })
                    .collect();
                let expected: Vec<Vec<u8>> = bucket
                    .iter()
                    .map(|&i| {
                        let element = |k| {
                            let terms: Vec<f32> = values.iter().map(|v| v[i][k]).collect();
                            sum_of(dtype, &terms)
                        };
                        (0..types[i].elements()).flat_map(element).collect()
                    })
                    .collect();
                for given in run(&Op::AllReduce { ranks: count }, &operands) {
                    assert!(given == expected, "all_reduce of {bucket:?} by {count} ranks");
                }
                let parts = run(&Op::ReduceScatter { ranks: count }, &operands);
                let shapes = bucket.iter().map(|&i| types[i].shape.to_vec()).collect();
                let parts: Vec<Vec<_>> = parts
                    .into_iter()
                    .map(|of_rank| {
                        let ty = |&i: &usize| part_type(&types[i], count);
                        bucket.iter().map(ty).zip(of_rank).collect()
                    })
                    .collect();
                for given in run(&Op::AllGather { ranks: count, shapes }, &parts) {
                    assert!(given == expected, "parts of {bucket:?} by {count} ranks");
                }
            }
        }
    }
}

#[test]
fn own_parts_are_what_a_gather_puts_together() {
    for (count, elements) in [(2, 9), (3, 2), (4, 1000), (5, 3)] {
        let ty = TensorType::new(DType::F32, [elements]);
        let x = bytes_of(DType::F32, &numbers(3, elements));
        let operands = vec![vec![(ty.clone(), x.clone())]; count];
        let parts = run(&Op::OwnPart { ranks: count }, &operands);
        let part = part_type(&ty, count);
        let parts: Vec<Vec<_>> =
            parts.into_iter().map(|mut p| vec![(part.clone(), p.remove(0))]).collect();
        let gather = Op::AllGather { ranks: count, shapes: vec![vec![elements]] };
        for given in run(&gather, &parts) {
            assert_eq!(given, std::slice::from_ref(&x));
        }
    }
}

const STEP: &str = r#"graph "in place, in parts, and beside other work" {
  input v0: f32[1000] "x"
  state s0 "w": v1: f32[1000] -> v5 = ...
  state s1 "m" part of f32[1000]: v2: f32[500] -> v7 = ...
  n0 unary {"f":"tanh"} (v0) -> (v3: f32[1000])
  n1 all_reduce {"ranks":2} (v3) -> (v4: f32[1000])
  n2 binary {"f":"sub"} (v1, v4) -> (v5: f32[1000])
  n3 reduce_scatter {"ranks":2} (v0) -> (v6: f32[500])
  n4 binary {"f":"add"} (v2, v6) -> (v7: f32[500])
  ranks 2 "x"
}
program {
  align 64
  device 24192
  host 0
  home v0 device[0+4000]
  home v1 device[4032+4000]
  home v2 device[8064+2000]
  run n3 stream1 (device[0+4000]) -> (device[10112+2000]) scratch device[12160+8000]
  record stream1 event0
  wait stream0 event0
  run n0 stream0 (device[0+4000]) -> (device[0+4000])
  record stream0 event1
  wait stream1 event1
  run n1 stream1 (device[0+4000]) -> (device[0+4000]) scratch device[12160+12000]
  run n4 stream0 (device[8064+2000], device[10112+2000]) -> (device[8064+2000])
  record stream1 event2
  wait stream0 event2
  run n2 stream0 (device[4032+4000], device[0+4000]) -> (device[4032+4000])
}
"#;

/// The executor has an exchange write over what it reads, on a stream of its own and under delays; the
/// reference has a tensor for each value.
#[test]
fn a_planned_step_of_ranks_has_the_bits_of_the_reference() {
    let module = Module::parse(STEP, &arenic_backends::ALL).unwrap();
    let (g, program) = (&module.graph, module.program.as_ref().unwrap());
    arenic_ir::verify::verify(g).unwrap();
    let one = |planned: Arc<ThreadRank>, plain: Arc<ThreadRank>, stress: u64| {
        let rank = planned.rank();
        let options = ExecutorOptions { threads: 1, poison: false, stress: Some(stress) };
        let mut executor = Executor::new(g, program, options).unwrap();
        executor.join(planned);
        let mut reference = Reference::new(g).unwrap();
        reference.join(plain);
        let bytes = |seed, n| bytes_of(DType::F32, &numbers(seed, n));
        for (s, state) in &g.states {
            // What all ranks have is the same on all, a part is a rank's own.
            let own = if state.part_of.is_some() { rank as u64 + 5 } else { 5 };
            let init = bytes(own, g.ty(state.enter).elements());
            executor.carried_mut(state.enter).unwrap().copy_from_slice(&init);
            reference.value_mut(state.enter).unwrap().copy_from_slice(&init);
            assert_eq!(executor.state(s), &init[..]);
        }
        for step in 0..20 {
            let x = bytes(100 * step + rank as u64, 1000);
            for v in g.inputs() {
                executor.input_mut(v).unwrap().copy_from_slice(&x);
                reference.value_mut(v).unwrap().copy_from_slice(&x);
            }
            let draw = Draw { step, ..Draw::default() };
            executor.step(draw).unwrap();
            reference.step(draw).unwrap();
            for (s, state) in &g.states {
                assert!(executor.state(s) == reference.value(state.enter), "step {step}: {s}");
            }
        }
    };
    for stress in 0..3 {
        std::thread::scope(|scope| {
            for (planned, plain) in ranks(2).into_iter().zip(ranks(2)) {
                let one = &one;
                scope.spawn(move || one(Arc::new(planned), Arc::new(plain), stress));
            }
        });
    }
}

#[test]
fn a_program_for_ranks_is_not_run_alone() {
    let ty = TensorType::new(DType::F32, [4]);
    let g = graph(Op::AllReduce { ranks: 2 }, std::slice::from_ref(&ty), 2);
    let error = Reference::new(&g).unwrap().step(Draw::default()).unwrap_err();
    assert!(error.to_string().contains("2 ranks"), "{error}");
}
