//! What a value computes of others, as a polynomial.
//!
//! An expression is followed through sums, products, quotients by what is a single term, sums and
//! means over axes, broadcasts and changes of shape, down to values that are said to be its atoms.
//! Everything else ends it: such a value is no polynomial.

use super::polynomial::{Groups, Polynomial};
use super::view::GraphView;
use arenic_ir::graph::{Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

/// Depth limit. No normalisation or activation that we know is nested deeper.
const DEEPEST: usize = 32;

/// The axis groups of a tensor: how many elements each has.
#[derive(Clone, Debug)]
pub(crate) struct AxisGroups(Vec<usize>);

impl AxisGroups {
    pub(crate) fn new(extents: Vec<usize>) -> Self {
        AxisGroups(extents)
    }

    /// Those of these groups along which there is more than one element.
    pub(crate) fn of(&self, groups: Groups) -> Groups {
        let wide = self.0.iter().enumerate().filter(|&(_, &e)| e > 1);
        wide.fold(0, |all, (i, _)| all | 1 << i) & groups
    }

    /// All groups.
    pub(crate) fn all(&self) -> Groups {
        self.of(Groups::MAX)
    }

    pub(crate) fn elements(&self, groups: Groups) -> usize {
        let within = self.0.iter().enumerate().filter(|(i, _)| groups >> i & 1 == 1);
        within.map(|(_, e)| e).product()
    }

    /// Which group each axis of a shape belongs to, where it spans these groups; `None` for axes of
    /// extent 1.
    fn split(&self, shape: &[usize], groups: Groups) -> Option<Vec<Option<usize>>> {
        let mut rest = (0..self.0.len()).filter(|i| groups >> i & 1 == 1);
        let mut group = None;
        let mut left = 1;
        let mut split = Vec::with_capacity(shape.len());
        for &extent in shape {
            if extent == 1 {
                split.push(None);
                continue;
            }
            if left == 1 {
                group = rest.next();
                left = self.0[group?];
            }
            if extent == 0 || left % extent != 0 {
                return None;
            }
            left /= extent;
            split.push(group);
        }
        (left == 1 && rest.next().is_none()).then_some(split)
    }

    /// The groups along which an operand varies that broadcasts to a shape, each as a whole.
    fn broadcast(
        &self,
        operand: &[usize],
        shape: &[usize],
        split: &[Option<usize>],
    ) -> Option<Groups> {
        let missing = shape.len().checked_sub(operand.len())?;
        let (mut varies, mut fixed): (Groups, Groups) = (0, 0);
        for (i, group) in split.iter().enumerate() {
            let Some(group) = *group else { continue };
            let wide = i >= missing && operand[i - missing] == shape[i];
            *(if wide { &mut varies } else { &mut fixed }) |= 1 << group;
        }
        (varies & fixed == 0).then_some(varies)
    }

    /// The groups along which a value varies that broadcasts to a tensor of this shape.
    pub(crate) fn within(&self, operand: &[usize], whole: &[usize]) -> Option<Groups> {
        self.broadcast(operand, whole, &self.split(whole, self.all())?)
    }
}

/// A value as it varies along groups.
type Seen = (ValueId, Groups);

/// What a value is.
enum Step {
    Number(f64),
    Binary(Binary, Seen, Seen),
    Power(Seen, u32),
    Inverse(Seen),
    /// A multiple.
    Times(f64, Seen),
    /// A multiple of a sum.
    Sum(Groups, f64, Seen),
}

/// Expressions in values that they are not followed beyond.
#[derive(Clone)]
pub(crate) struct Expressions<'a> {
    pub(crate) view: &'a GraphView<'a>,
    pub(crate) groups: AxisGroups,
    atoms: HashMap<ValueId, (Groups, Polynomial)>,
    known: RefCell<HashMap<Seen, Option<Polynomial>>>,
}

impl<'a> Expressions<'a> {
    pub(crate) fn new(view: &'a GraphView<'a>, groups: AxisGroups) -> Self {
        Expressions { view, groups, atoms: HashMap::new(), known: RefCell::default() }
    }

    /// The same with another atom, which varies along these groups; and that as a polynomial.
    pub(crate) fn with(&self, v: ValueId, groups: Groups) -> (Self, Polynomial) {
        let v = self.view.base(v);
        let atom = match self.view.number(v) {
            Some(x) => Polynomial::number(x),
            None => Polynomial::value(v, groups),
        };
        (self.with_all(&[v], groups, &atom), atom)
    }

    /// The same where these values, which vary along these groups, are this.
    pub(crate) fn with_all(&self, values: &[ValueId], groups: Groups, are: &Polynomial) -> Self {
        let mut atoms = self.atoms.clone();
        let own = values.iter().map(|&v| (self.view.base(v), (groups, are.clone())));
        atoms.extend(own);
        let known = RefCell::default();
        Expressions { view: self.view, groups: self.groups.clone(), atoms, known }
    }

    pub(crate) fn is_atom(&self, v: ValueId) -> bool {
        self.atoms.contains_key(&self.view.base(v))
    }

    /// The sum of a polynomial over groups.
    pub(crate) fn sum(&self, of: &Polynomial, over: Groups) -> Polynomial {
        of.sum(over, |groups| self.groups.elements(groups) as f64)
    }

    /// What `v` computes, where it varies along these groups.
    pub(crate) fn polynomial(&self, v: ValueId, groups: Groups) -> Option<Polynomial> {
        self.at_depth((v, groups), 0)
    }

    fn at_depth(&self, (v, groups): Seen, depth: usize) -> Option<Polynomial> {
        let v = self.view.base(v);
        if let Some((varies, atom)) = self.atoms.get(&v) {
            // A square matrix may be seen as its rows here and as its columns there.
            let seen = *varies == groups || atom.as_number().is_some();
            return seen.then(|| atom.clone());
        }
        if depth == DEEPEST {
            return None;
        }
        if let Some(known) = self.known.borrow().get(&(v, groups)) {
            return known.clone();
        }
        let of = |seen: Seen| self.at_depth(seen, depth + 1);
        let computed = || match self.step(v, groups)? {
            Step::Number(x) => Some(Polynomial::number(x)),
            Step::Binary(Binary::Add, a, b) => Some(of(a)?.plus(1.0, &of(b)?)),
            Step::Binary(Binary::Sub, a, b) => Some(of(a)?.plus(-1.0, &of(b)?)),
            Step::Binary(Binary::Mul, a, b) => of(a)?.times(&of(b)?),
            Step::Binary(Binary::Div, a, b) => of(b)?.inverse()?.times(&of(a)?),
            Step::Binary(..) => None,
            Step::Power(x, exponent) => {
                let x = of(x)?;
                (1..exponent).try_fold(x.clone(), |power, _| power.times(&x))
            }
            Step::Inverse(x) => of(x)?.inverse(),
            Step::Times(factor, x) => Some(Polynomial::default().plus(factor, &of(x)?)),
            Step::Sum(over, factor, x) => {
                Some(Polynomial::default().plus(factor, &self.sum(&of(x)?, over)))
            }
        };
        let computed = computed();
        self.known.borrow_mut().insert((v, groups), computed.clone());
        computed
    }

    /// Adds the nodes between a polynomial and its atoms, each with the groups that its result
    /// varies along.
    pub(crate) fn collect(&self, v: ValueId, groups: Groups, all: &mut BTreeMap<NodeId, Groups>) {
        let mut stack = vec![(v, groups)];
        while let Some((v, groups)) = stack.pop() {
            let root = self.view.g.resolve(v).root;
            let Some(node) = self.view.maker(root) else { continue };
            if self.is_atom(v) || all.insert(node, groups).is_some() {
                continue;
            }
            if let Some([of, _]) = self.view.reshaped_by(node) {
                stack.push((of, groups));
                continue;
            }
            match self.step(root, groups) {
                None | Some(Step::Number(_)) => {}
                Some(Step::Binary(_, a, b)) => stack.extend([a, b]),
                Some(
                    Step::Power(x, _) | Step::Inverse(x) | Step::Times(_, x) | Step::Sum(_, _, x),
                ) => stack.push(x),
            }
        }
    }

    fn step(&self, v: ValueId, groups: Groups) -> Option<Step> {
        let g = self.view.g;
        if let Some(x) = self.view.number(v) {
            return Some(Step::Number(x));
        }
        let Node { op, inputs, .. } = &g.nodes[self.view.definition(v)?];
        let shape = &g.ty(v).shape;
        let split = self.groups.split(shape, groups)?;
        let seen = |i: usize| {
            let x = *inputs.get(i)?;
            Some((x, self.groups.broadcast(&g.ty(x).shape, shape, &split)?))
        };
        match op {
            Op::Binary { f: Binary::Pow } => {
                let exponent = self.view.number(*inputs.get(1)?)?;
                let whole = [1, 2, 3].into_iter().find(|&n| f64::from(n) == exponent)?;
                Some(Step::Power(seen(0)?, whole))
            }
            Op::Binary { f } => Some(Step::Binary(*f, seen(0)?, seen(1)?)),
            Op::Unary { f: Unary::Neg } => Some(Step::Times(-1.0, seen(0)?)),
            Op::Unary { f: Unary::Reciprocal } => Some(Step::Inverse(seen(0)?)),
            Op::Expand { .. } => Some(Step::Times(1.0, seen(0)?)),
            Op::Reduce { f: f @ (Reduction::Sum | Reduction::Mean), axes, .. } => {
                let x = *inputs.first()?;
                let over = self.reduced(&g.ty(x).shape, axes, groups)?;
                let count = match f {
                    Reduction::Mean => self.groups.elements(over) as f64,
                    _ => 1.0,
                };
                Some(Step::Sum(over, 1.0 / count, (x, groups | over)))
            }
            _ => None,
        }
    }

    /// The groups that these axes of a shape are, where the others are `rest`.
    fn reduced(&self, shape: &[usize], axes: &[usize], rest: Groups) -> Option<Groups> {
        let all = self.groups.all();
        (0..=all).filter(|over| over & !all == 0 && over & rest == 0).find(|over| {
            let Some(split) = self.groups.split(shape, rest | over) else { return false };
            split.iter().enumerate().all(|(i, group)| {
                group.is_none_or(|group| axes.contains(&i) == (over >> group & 1 == 1))
            })
        })
    }
}
