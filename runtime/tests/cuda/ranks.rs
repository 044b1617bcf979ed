//! Exchanges between ranks that have a device each, beside those of CPUs: the same bits, for every kind and type, tensors
//! that have no equal parts, buckets, and messages that go in pieces. Ranks are threads with simulated devices.

use super::random::Random;
use super::simulated::{Behaviour, Simulated, fabric};
use arenic_backends::CUDA;
use arenic_backends::cuda::MESSAGES;
use arenic_ir::graph::{Graph, Output, Ranks, ValueId};
use arenic_ir::op::part_type;
use arenic_ir::program::{Command, Home, PerSpace, Program, Range, Space, StreamId};
use arenic_ir::{DType, Op, TensorType};
use arenic_runtime::cuda::{CudaExecutor, CudaOptions, SetupError};
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::Machine;
use arenic_runtime::ranks::threads::ranks;
use arenic_runtime::reference::Reference;
use std::collections::HashMap;
use std::sync::Arc;

/// A graph of one operator on inputs of these types; its results are outputs.
fn graph(op: &Op, types: &[TensorType], count: usize) -> Graph {
    let by_rows = types.iter().enumerate().map(|(i, _)| format!("x{i}")).collect();
    let mut g = Graph { ranks: Some(Ranks { count, by_rows }), ..Graph::default() };
    let input = |(i, ty): (usize, &TensorType)| g.add_input(format!("x{i}"), ty.clone());
    let inputs: Vec<ValueId> = types.iter().enumerate().map(input).collect();
    let n = g.add_node("", op.clone(), inputs).unwrap();
    for (i, &v) in g.nodes[n].outputs.clone().iter().flatten().enumerate() {
        g.outputs.push(Output { name: format!("y{i}"), value: v });
    }
    g
}

/// Its program: every tensor in bytes of its own, or results in place of operands where they may be.
fn program(g: &Graph, in_place: bool) -> Program {
    let target = CUDA.target();
    let mut end = 0;
    let mut place = |bytes: u64| {
        let offset = end;
        end += bytes.next_multiple_of(target.align);
        Range { space: Space::Device, offset, len: bytes }
    };
    let mut at: HashMap<ValueId, Range> = HashMap::new();
    let mut program = Program::new(target);
    for value in g.inputs() {
        let range = place(g.ty(value).bytes());
        at.insert(value, range);
        program.homes.push(Home { value, range });
    }
    let stream = StreamId::default();
    for (n, node) in &g.nodes {
        let reads: Vec<Range> = node.inputs.iter().map(|v| at[v]).collect();
        let x = g.input_types(n);
        let y: Vec<&TensorType> = node.outputs.iter().flatten().map(|&v| g.ty(v)).collect();
        let pairs = node.op.in_place_pairs(&x, &y);
        let mut write = |o: usize| match pairs.iter().find(|(_, out)| in_place && *out == o) {
            Some(&(i, _)) => reads[i],
            None => place(y[o].bytes()),
        };
        let writes: Vec<Range> = (0..y.len()).map(&mut write).collect();
        let scratch = node.op.scratch_bytes(target, &x, &y);
        let scratch = (scratch > 0).then(|| place(scratch));
        program.outputs.extend(&writes);
        let writes = writes.into_iter().map(Some).collect();
        program.commands.push(Command::Run { node: n, stream, reads, writes, scratch });
    }
    program.sizes = PerSpace { device: end, host: 0 };
    program
}

type Tensors = Vec<(TensorType, Vec<u8>)>;

/// What each rank is given of each result on devices, by rank, in three steps of which the last two are captured; the
/// same as on CPUs.
fn hold(op: &Op, operands: &[Tensors], in_place: bool, seed: u64) -> Vec<Vec<Vec<u8>>> {
    let count = operands.len();
    let types: Vec<TensorType> = operands[0].iter().map(|(ty, _)| ty.clone()).collect();
    let g = graph(op, &types, count);
    let program = program(&g, in_place);
    let (g, program) = (&g, &program);
    std::thread::scope(|scope| {
        let all = fabric(count).into_iter().zip(ranks(count)).zip(operands);
        let one = |((port, rank), x): ((_, _), &'_ Tensors)| {
            let mut reference = Reference::new(g).unwrap();
            reference.join(Arc::new(rank));
            let driver = Simulated::among(Behaviour { seed, ..Behaviour::default() }, port);
            let options = CudaOptions::default();
            let mut executor = CudaExecutor::new(g, program, &[], driver, options).unwrap();
            for step in 0..3 {
                let draw = Draw { step, ..Draw::default() };
                for (v, (_, bytes)) in g.inputs().zip(x) {
                    reference.value_mut(v).unwrap().copy_from_slice(bytes);
                    executor.input_mut(v).unwrap().copy_from_slice(bytes);
                }
                reference.step(draw).unwrap();
                executor.step(draw).unwrap();
                for (i, output) in g.outputs.iter().enumerate() {
                    let (y, wanted) = (executor.output(i), reference.value(output.value));
                    assert!(y == wanted, "{op:?} of {types:?}: other bits than on CPUs");
                }
            }
            let exchanges = executor.driver().calls("exchange");
            assert!(
                (op.communicates() && count > 1) == (exchanges > 0),
                "{op:?} of {types:?}: {exchanges} exchanges"
            );
            g.outputs.iter().map(|o| reference.value(o.value).to_vec()).collect()
        };
        let threads: Vec<_> = all.map(|of_rank| scope.spawn(move || one(of_rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every bucket, count and type has a kernel of its own to compile for the emulator, half a second each.
#[test]
fn exchanges_have_the_bits_of_cpus() {
    let mut r = Random(31);
    let large = MESSAGES.messages / 8;
    let buckets: [&[&[usize]]; 4] =
        [&[&[1]], &[&[7, 5], &[3], &[64, 33], &[2, 3, 11]], &[&[40_000], &[2]], &[&[large, 3]]];
    for (number, bucket) in buckets.into_iter().enumerate() {
        let is_large = number == 3;
        for count in if is_large { 2..=2 } else { 1..=4 } {
            for dtype in [DType::F32, DType::Bf16, DType::F64, DType::I64] {
                if is_large && dtype != DType::F64 {
                    continue;
                }
                let of_rank = |_| {
                    let one = |shape: &&[usize]| {
                        let tensor = r.tame(dtype, shape.to_vec());
                        (tensor.ty, tensor.bytes)
                    };
                    bucket.iter().map(one).collect()
                };
                let operands: Vec<Tensors> = (0..count).map(of_rank).collect();
                let seed = (number * 16 + count) as u64;
                let sum = Op::AllReduce { ranks: count };
                let apart = hold(&sum, &operands, false, seed);
                assert_eq!(hold(&sum, &operands, true, seed + 1), apart);
                let parts = hold(&Op::ReduceScatter { ranks: count }, &operands, false, seed);
                let of = |parts: Vec<Vec<u8>>| {
                    let ty = |(ty, _): &(TensorType, Vec<u8>)| part_type(ty, count);
                    operands[0].iter().map(ty).zip(parts).collect()
                };
                let parts: Vec<Tensors> = parts.into_iter().map(of).collect();
                let shapes = bucket.iter().map(|shape| shape.to_vec()).collect();
                let gather = Op::AllGather { ranks: count, shapes };
                assert_eq!(hold(&gather, &parts, false, seed), apart, "parts of {bucket:?}");
            }
        }
    }
}

#[test]
fn own_parts_are_those_of_cpus() {
    let mut r = Random(7);
    for (count, elements) in [(2, 9), (3, 2), (4, 1000), (5, 3)] {
        for dtype in [DType::F32, DType::Bf16, DType::Bool] {
            let tensor = r.wild(dtype, vec![elements]);
            let operands = vec![vec![(tensor.ty, tensor.bytes)]; count];
            hold(&Op::OwnPart { ranks: count }, &operands, false, 0);
        }
    }
}

#[test]
fn a_program_for_ranks_is_not_run_alone() {
    let g = graph(&Op::AllReduce { ranks: 2 }, &[TensorType::new(DType::F32, [4])], 2);
    let driver = Simulated::new(Behaviour::default());
    let options = CudaOptions::default();
    let refused = CudaExecutor::new(&g, &program(&g, false), &[], driver, options).err().unwrap();
    assert!(matches!(refused, SetupError::Ranks { compiled: 2, running: 1 }), "{refused}");
}
