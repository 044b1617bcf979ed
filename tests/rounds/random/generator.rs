//! Random step graphs.

use super::operators::OPERATORS;
use arenic_ir::graph::{Data, Def, Graph, Output, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use arenic_ir::{DType, TensorType};
use fastrand::Rng;
use std::collections::BTreeMap;

/// A graph that grows.
#[derive(Clone)]
pub(super) struct Generator {
    pub(super) r: Rng,
    pub(super) g: Graph,
    /// Rows of the batch.
    pub(super) rows: usize,
    /// Integers that an input is fed are below this.
    pub(super) below: BTreeMap<String, i64>,
    /// Values that operators may read.
    pub(super) pool: Vec<ValueId>,
    leaves: usize,
}

/// What a step is to be tried on.
pub(super) struct Case {
    pub(super) g: Graph,
    pub(super) below: BTreeMap<String, i64>,
    pub(super) rows: usize,
}

impl Generator {
    /// Inputs with rows, one without, and a state or two.
    fn new(seed: u64) -> Generator {
        let mut r = Rng::with_seed(seed);
        let rows = [2, 4, 6, 8][r.usize(..4)];
        let (g, below, pool) = Default::default();
        let mut new = Generator { r, g, rows, below, pool, leaves: 0 };
        for _ in 0..new.r.usize(1..3) {
            let beside = new.shape(0..4);
            let shape = [&[rows][..], &beside].concat();
            let x = new.input(DType::F64, &shape);
            new.pool.push(x);
        }
        // What depends on states cannot be computed before the first round.
        if new.chance(80) {
            let scale = new.state(&[]);
            for x in new.pool.clone() {
                new.binary(Binary::Mul, x, scale);
            }
        }
        let shape = new.shape(0..3);
        let x = new.input(DType::F64, &shape);
        new.pool.push(x);
        let shape = new.shape(0..3);
        let x = new.state(&shape);
        new.pool.push(x);
        new
    }

    /// Random extents, so many of them.
    pub(super) fn shape(&mut self, rank: std::ops::Range<usize>) -> Vec<usize> {
        (0..self.r.usize(rank)).map(|_| self.r.usize(1..4)).collect()
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.r.u32(..100) < percent
    }

    fn leaf_name(&mut self, kind: &str) -> String {
        self.leaves += 1;
        format!("{kind}{}", self.leaves)
    }

    pub(super) fn input(&mut self, dtype: DType, shape: &[usize]) -> ValueId {
        let name = self.leaf_name("in");
        self.g.add_input(name, TensorType::new(dtype, shape))
    }

    pub(super) fn state(&mut self, shape: &[usize]) -> ValueId {
        let name = self.leaf_name("state");
        let ty = TensorType::new(DType::F64, shape);
        let init: Vec<f64> = (0..ty.elements()).map(|_| self.r.f64() * 2.0 - 1.0).collect();
        let s = self.g.add_state(name, ty, Some(bytes(&init)));
        self.g.states[s].enter
    }

    /// Numbers that are all equal, repeat themselves along the first axis, or are random.
    pub(super) fn constant(&mut self, shape: &[usize]) -> ValueId {
        let ty = TensorType::new(DType::F64, shape);
        let period = match self.r.u32(..3) {
            0 => 1,
            1 => (ty.elements() / self.rows).max(1),
            _ => ty.elements().max(1),
        };
        let some: Vec<f64> = (0..period).map(|_| self.r.f64() * 2.0 - 1.0).collect();
        let all: Vec<f64> = (0..ty.elements()).map(|i| some[i % period]).collect();
        self.g.add_const("", ty, bytes(&all))
    }

    pub(super) fn scalar(&mut self, x: f64) -> ValueId {
        self.g.add_const("", TensorType::scalar(DType::F64), bytes(&[x]))
    }

    /// Zeros, in bytes or broadcast.
    pub(super) fn zeros(&mut self, shape: &[usize]) -> Option<ValueId> {
        if self.chance(50) && !shape.is_empty() {
            let zero = self.scalar(0.0);
            return self.one(Op::Expand { shape: shape.to_vec() }, &[zero]);
        }
        let ty = TensorType::new(DType::F64, shape);
        let data = bytes(&vec![0.0; ty.elements()]);
        Some(self.g.add_const("", ty, data))
    }

    /// A tensor of numbers of this shape: one that is there already, or a new leaf.
    pub(super) fn floats(&mut self, shape: &[usize]) -> ValueId {
        let fits = |v: &ValueId| {
            let ty = self.g.ty(*v);
            ty.dtype == DType::F64 && ty.shape == shape
        };
        let there: Vec<ValueId> = self.pool.iter().copied().filter(fits).collect();
        if !there.is_empty() && self.chance(70) {
            return there[self.r.usize(..there.len())];
        }
        // Rows of the batch come from outside; few other inputs have axes, which might be a batch.
        let by_rows = shape.first().is_some_and(|e| e.is_multiple_of(self.rows));
        match self.r.u32(..4) {
            0 | 1 if by_rows => self.input(DType::F64, shape),
            0 if shape.is_empty() || self.chance(20) => self.input(DType::F64, shape),
            0..3 if !by_rows => self.state(shape),
            _ => self.constant(shape),
        }
    }

    /// Indices below a limit, also counted from the end.
    pub(super) fn indices(&mut self, shape: &[usize], below: usize) -> ValueId {
        let ty = TensorType::new(DType::I64, shape);
        if shape.first() == Some(&self.rows) && self.chance(80) || self.chance(10) {
            let v = self.input(DType::I64, shape);
            self.below.insert(self.g.values[v].name.clone(), below as i64);
            return v;
        }
        let below = below as i64;
        let all: Vec<u8> =
            (0..ty.elements()).flat_map(|_| self.r.i64(-below..below).to_le_bytes()).collect();
        self.g.add_const("", ty, Data::Bytes(all.into()))
    }

    /// A value that is there, rather a late one.
    pub(super) fn any(&mut self, fits: impl Fn(&TensorType) -> bool) -> Option<ValueId> {
        let all: Vec<ValueId> = self.pool.iter().copied().filter(|&v| fits(self.g.ty(v))).collect();
        if all.is_empty() {
            return None;
        }
        let (a, b) = (self.r.usize(..all.len()), self.r.usize(..all.len()));
        Some(all[if self.chance(50) { a } else { a.max(b) }])
    }

    /// Numbers of a rank.
    pub(super) fn of_rank(&mut self, rank: std::ops::Range<usize>) -> Option<ValueId> {
        self.any(|ty| ty.dtype == DType::F64 && rank.contains(&ty.rank()) && ty.elements() > 0)
    }

    /// Numbers of just this rank, shaped to it where there are others alone.
    pub(super) fn shaped(&mut self, rank: usize) -> Option<ValueId> {
        if let Some(v) = self.of_rank(rank..rank + 1)
            && self.chance(80)
        {
            return Some(v);
        }
        let v = self.of_rank(1..5)?;
        let mut shape = self.g.ty(v).shape.to_vec();
        while shape.len() < rank {
            shape.insert(self.r.usize(1..shape.len() + 1), 1);
        }
        while shape.len() > rank {
            let last = shape.pop()?;
            *shape.last_mut()? *= last;
        }
        if shape == self.g.ty(v).shape.to_vec() {
            return Some(v);
        }
        self.one(Op::Reshape { shape }, &[v])
    }

    /// Adds a node; its results may be read.
    pub(super) fn node(&mut self, op: Op, inputs: &[ValueId]) -> Option<Vec<ValueId>> {
        let n = self.g.add_node("", op, inputs.to_vec()).ok()?;
        let outputs: Vec<ValueId> = self.g.nodes[n].outputs.iter().copied().flatten().collect();
        if outputs.iter().any(|&v| self.g.ty(v).elements() > 600) {
            return None;
        }
        for &v in &outputs {
            if self.chance(20) {
                // Names may come twice.
                self.g.values[v].name = ["a", "b", "c"][self.r.usize(..3)].into();
            }
        }
        self.pool.extend(&outputs);
        Some(outputs)
    }

    pub(super) fn one(&mut self, op: Op, inputs: &[ValueId]) -> Option<ValueId> {
        self.node(op, inputs).map(|outputs| outputs[0])
    }

    pub(super) fn unary(&mut self, f: Unary, x: ValueId) -> Option<ValueId> {
        self.one(Op::Unary { f }, &[x])
    }

    pub(super) fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> Option<ValueId> {
        self.one(Op::Binary { f }, &[a, b])
    }

    /// The first axis and another one change places.
    pub(super) fn swapped(&mut self, x: ValueId, axis: usize) -> Option<ValueId> {
        let mut perm: Vec<usize> = (0..self.g.ty(x).rank()).collect();
        perm.swap(0, axis);
        self.one(Op::Transpose { perm }, &[x])
    }

    /// The batch comes first, where the first axis is the batch inside of another one.
    fn rows_first(&mut self, x: ValueId) -> Option<ValueId> {
        let mut shape = self.g.ty(x).shape.to_vec();
        let outer = shape.first()? / self.rows;
        shape.splice(..1, [outer, self.rows]);
        let apart = self.one(Op::Reshape { shape }, &[x])?;
        self.swapped(apart, 1)
    }

    /// What no node reads becomes an output, as it is, with another axis first, or summed.
    fn finish(mut self, accepts: &dyn Fn(&Graph) -> bool) -> Case {
        let filtered = self.chance(80);
        let accepts = |g: &Graph| !filtered || accepts(g);
        let readers = self.g.readers();
        // What a state held before the step is gone after it.
        let made =
            |v: &ValueId| self.pool.contains(v) && !matches!(self.g.values[*v].def, Def::State(_));
        let ends: Vec<ValueId> =
            self.g.values.keys().filter(|v| readers[*v].is_empty()).filter(made).collect();
        let between = (self.pool.len() / 6).min(2);
        let more: Vec<ValueId> = (0..between)
            .map(|_| self.pool[self.r.usize(..self.pool.len())])
            .filter(|&v| !matches!(self.g.values[v].def, Def::State(_)))
            .collect();
        // A state that has no next value gets the first value of its type that may be one.
        for s in self.g.states.keys().collect::<Vec<_>>() {
            let enter = self.g.states[s].enter;
            if self.g.states[s].exit != enter {
                continue;
            }
            let ty = self.g.ty(enter).clone();
            for _ in 0..4 {
                let Some(exit) = self.any(|t| *t == ty) else { break };
                let before = std::mem::replace(&mut self.g.states[s].exit, exit);
                if accepts(&self.g) {
                    break;
                }
                self.g.states[s].exit = before;
            }
        }
        for (i, v) in ends.into_iter().chain(more).enumerate() {
            let name = format!("out{i}");
            let rank = self.g.ty(v).rank();
            let is_float = self.g.ty(v).dtype.is_float();
            for attempt in 0..=rank + 1 {
                let mut tried = self.clone();
                let value = match attempt {
                    0 => Some(v),
                    _ if attempt < rank => tried.swapped(v, attempt),
                    _ if attempt == rank => tried.rows_first(v),
                    _ if is_float => {
                        let axes = (0..rank).collect();
                        let squares = tried.binary(Binary::Mul, v, v);
                        let sum = Op::Reduce { f: Reduction::Sum, axes, keep: false };
                        squares.and_then(|v| tried.one(sum, &[v]))
                    }
                    _ => None,
                };
                let Some(value) = value else { continue };
                tried.g.outputs.push(Output { name: name.clone(), value });
                if accepts(&tried.g) {
                    self = tried;
                    break;
                }
            }
        }
        Case { g: self.g, below: self.below, rows: self.rows }
    }
}

/// A random step. `accepts` says whether a graph can be divided: most of the operators that make it
/// impossible are left out again, most of the time.
pub(super) fn case(seed: u64, accepts: &dyn Fn(&Graph, usize) -> bool) -> Case {
    let mut new = Generator::new(seed);
    let strict = new.chance(85);
    for _ in 0..new.r.usize(3..14) {
        let operator = OPERATORS[new.r.usize(..OPERATORS.len())];
        let mut tried = new.clone();
        let seed = new.r.u64(..);
        tried.r.seed(seed);
        let made = operator(&mut tried);
        let rows = tried.rows;
        if made.is_some() && (!strict || accepts(&tried.g, rows)) {
            new = tried;
        }
    }
    let rows = new.rows;
    new.finish(&|g| accepts(g, rows))
}

pub(super) fn bytes(all: &[f64]) -> Data {
    Data::Bytes(all.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into())
}
