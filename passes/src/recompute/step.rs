//! The step as bare operators and tensors, and which of its operators may run again.
//!
//! Operators are numbered by their position in the plan's order, tensors by their buffer.

use crate::PassError;
use crate::order::{self, Kind, Sharing};
use crate::residency::{RaggedRows, Timeline};
use arenic_ir::plan::{BufferId, TaskId, TaskKind};
use cranelift_entity::{EntityRef, SecondaryMap};

/// What repeats can be made of.
pub struct RecomputeStep<'a> {
    pub(super) t: &'a Timeline<'a>,
    /// The tensors that each operator reads, of those that come and go.
    pub reads: RaggedRows<u32>,
    /// Those that it makes.
    pub writes: RaggedRows<u32>,
    /// Its pairs (operand, result) that may share bytes, the largest first.
    pub(super) pairs: RaggedRows<(u32, u32)>,
    /// How long it takes.
    pub seconds: Vec<f64>,
    /// It may run more than once.
    again: Vec<bool>,
    /// It may run later than it does: nothing but tensors that come and go depends on it.
    pub(super) moves: Vec<bool>,
    /// Nothing but tensors that come and go ties it to other operators: it may run anywhere between those
    /// that make what it reads and those that read what it makes.
    pub(super) slides: Vec<bool>,
    /// The operator that overwrites a state that it reads: it does not run after that.
    until: Vec<Option<u32>>,
    /// Bytes of each tensor.
    pub bytes: Vec<u64>,
    /// The operator that makes each tensor; `None` for an input.
    pub producer: Vec<Option<u32>>,
    /// The tensor is there when the step ends; it is not made again.
    pub pinned: Vec<bool>,
    /// Inputs that are alive until their last reader.
    pub inputs: Vec<u32>,
    /// Bytes that are alive throughout.
    pub resident: u64,
}

impl<'a> RecomputeStep<'a> {
    /// Reads off a timeline.
    ///
    /// # Errors
    /// The plan is not one of a verified graph.
    pub fn new(t: &'a Timeline<'a>) -> Result<Self, PassError> {
        let p = order::bare_problem(t.g, t.plan, Sharing::HomesInAnyOrder)?;
        let op = |task: usize| t.position[TaskId::new(task)];
        let mut tied: SecondaryMap<TaskId, bool> = SecondaryMap::new();
        for &(a, b) in t.plan.control_edges() {
            (tied[a], tied[b]) = (true, true);
        }
        let (mut reads, mut writes, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut again, mut moves, mut until) = (Vec::new(), Vec::new(), Vec::new());
        let mut slides = Vec::new();
        let narrow = |all: &[usize]| all.iter().map(|&x| x as u32).collect::<Vec<_>>();
        for (i, &task) in t.order.iter().enumerate() {
            let v = task.index();
            reads.push(narrow(p.reads(v)));
            writes.push(narrow(p.writes(v)));
            let shared = |&(x, y): &(usize, usize)| p.tensor(x).bytes.min(p.tensor(y).bytes);
            let mut sorted = p.pairs(v).to_vec();
            sorted.sort_by_key(|pair| std::cmp::Reverse(shared(pair)));
            pairs.push(sorted.iter().map(|&(x, y)| (x as u32, y as u32)).collect::<Vec<_>>());
            let kept = |&x: &usize| p.tensor(x).kind == Kind::Pinned;
            let runs = matches!(t.plan.tasks[task].kind, TaskKind::Run(_));
            again.push(runs && p.writes(v).iter().any(|x| !kept(x)));
            let written = t.plan.tasks[task].writes.iter().flatten();
            let plain = |b: &BufferId| p.comes_and_goes(b.index()) && !kept(&b.index());
            moves.push(again[i] && !tied[task] && { written }.all(plain));
            let overwritten = |&(x, old): &(usize, bool)| t.tensors[x].overwritten.filter(|_| old);
            until.push(t.reads.row(i).iter().filter_map(overwritten).min());
            let makes = |w: &usize| p.reads(v).iter().any(|&x| p.tensor(x).producer == Some(*w));
            let reads = |r: &usize| p.writes(v).iter().any(|&x| p.tensor(x).readers.contains(r));
            let tensors_alone = p.before(v).iter().all(makes) && p.after(v).iter().all(reads);
            slides.push(moves[i] && until[i].is_none() && tensors_alone);
        }
        let tensors = (0..p.tensors()).map(|x| p.tensor(x));
        let input = |&x: &usize| p.tensor(x).kind == Kind::Input && p.comes_and_goes(x);
        Ok(RecomputeStep {
            t,
            reads: RaggedRows::new(&reads),
            writes: RaggedRows::new(&writes),
            pairs: RaggedRows::new(&pairs),
            seconds: (0..t.order.len()).map(|i| t.seconds(i as u32)).collect(),
            again,
            moves,
            slides,
            until,
            bytes: tensors.clone().map(|x| x.bytes).collect(),
            producer: tensors.clone().map(|x| x.producer.map(op)).collect(),
            pinned: tensors.map(|x| x.kind == Kind::Pinned).collect(),
            inputs: (0..p.tensors()).filter(input).map(|x| x as u32).collect(),
            resident: p.resident(),
        })
    }

    /// Operators.
    pub fn operators(&self) -> usize {
        self.seconds.len()
    }

    /// Tensors.
    pub fn tensors(&self) -> usize {
        self.bytes.len()
    }

    /// No plan that computes tensors again alone takes fewer bytes, in any order: with what is
    /// alive throughout, what an operator reads is there, and what it makes, but for results
    /// that may share an operand's bytes.
    pub(super) fn floor(&self) -> u64 {
        let own = |op: usize| {
            let shares = |x: &u32| self.pairs.row(op).iter().any(|pair| pair.1 == *x);
            let made = self.writes.row(op).iter().filter(|x| !shares(x));
            self.reads.row(op).iter().chain(made).map(|&x| self.bytes[x as usize]).sum::<u64>()
        };
        self.resident + (0..self.operators()).map(own).max().unwrap_or(0)
    }

    /// The operator that could make a tensor again.
    pub(super) fn maker(&self, x: u32) -> Option<u32> {
        let op = self.producer[x as usize].filter(|_| !self.pinned[x as usize])?;
        self.again[op as usize].then_some(op)
    }

    /// True where an operator may run more than once.
    pub fn may_repeat(&self, op: u32) -> bool {
        self.again[op as usize]
    }

    /// The operator that overwrites a state that an operator reads; that one does not run after it.
    pub fn overwritten_by(&self, op: u32) -> Option<u32> {
        self.until[op as usize]
    }

    /// True where an operator may still run, once those in `ran` have run.
    pub(super) fn may_run(&self, op: u32, ran: &[bool]) -> bool {
        self.until[op as usize].is_none_or(|r| !ran[r as usize])
    }
}
