//! The three graphs of a step in rounds.

use super::AccumulateError;
use super::grow::Growing;
use super::part::{Part, fill, missing, scaled};
use super::rows::Rows;
use super::rules::Kind;
use super::totals::{Total, Totals};
use crate::rounds::Division;
use arenic_ir::Rounds;
use arenic_ir::graph::{Data, Graph, NodeId, Output, StateId, ValueId};
use arenic_ir::op::{Op, TypeError};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, HashMap};

/// Divides the step.
///
/// # Errors
/// Names of inputs and outputs by rows collide; types that do not fit are a defect.
pub(super) fn divide(rows: &Rows) -> Result<Division, AccumulateError> {
    let needs = Needs::new(rows);
    let mut by_rows = by_rows(rows)?;
    let before = before(rows, &needs)?;
    let main = main(rows, &needs)?;
    // Inputs that no round reads may still be read whole.
    by_rows.retain(|name| {
        let is_input = main.inputs().any(|v| main.values[v].name == *name);
        is_input || main.outputs.iter().any(|output| output.name == *name)
    });
    let after = after(rows, &needs)?;
    let count = rows.count as u32;
    Ok(Division { main, rounds: Rounds { count, by_rows, before, after } })
}

/// What each part has to compute.
struct Needs {
    /// Values that are computed before the first round and read later.
    early: Vec<ValueId>,
    /// Values that grow from round to round.
    totals: Vec<Total>,
    /// Values of the whole batch that the first part makes.
    before: SecondaryMap<ValueId, bool>,
    main: SecondaryMap<ValueId, bool>,
    after: SecondaryMap<ValueId, bool>,
}

impl Needs {
    /// States take terms where neither the rounds nor the part after them read what the states were.
    fn new(rows: &Rows) -> Self {
        let all = Totals::new(rows);
        let mut in_states = all.in_states();
        loop {
            let needs = Needs::with(rows, &all, in_states.clone());
            let before = in_states.len();
            let is_read = |s: StateId| {
                let enter = rows.g.states[s].enter;
                needs.main[enter] || needs.after[enter]
            };
            in_states.retain(|total| !total.state.is_some_and(is_read));
            if in_states.len() == before {
                return needs;
            }
        }
    }

    /// These totals are in states, others beside them.
    fn with(rows: &Rows, all: &Totals, mut totals: Vec<Total>) -> Self {
        let g = rows.g;
        let mut after: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let mut main: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let mut before: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for output in &g.outputs {
            match rows.kind[output.value] {
                Kind::Rows(_) | Kind::Positions => main[output.value] = true,
                _ => after[output.value] = true,
            }
        }
        g.states.values().for_each(|state| after[state.exit] = true);
        let mut is_total: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for total in &totals {
            is_total[total.value] = true;
            total.given(rows).for_each(|v| before[v] = true);
            for term in &total.terms {
                main[term.sum] = true;
                term.factors(rows).for_each(|v| main[v] = true);
            }
        }
        // Readers come after what they read: one way back through the nodes is enough.
        for node in g.nodes.values().rev() {
            let late = |v: &ValueId| {
                after[*v] && !is_total[*v] && matches!(rows.kind[*v], Kind::Shared | Kind::Late)
            };
            if node.outputs.iter().flatten().any(late) {
                node.inputs.iter().for_each(|&v| after[v] = true);
            }
            for &v in node.outputs.iter().flatten() {
                if after[v] && rows.kind[v] == Kind::Sum && !is_total[v] {
                    is_total[v] = true;
                    let total = all.beside_states(v);
                    total.terms.iter().for_each(|term| main[term.sum] = true);
                    totals.push(total);
                }
            }
            let computed = |&v: &ValueId| main[v] && rows.kind[v] != Kind::Early;
            if node.outputs.iter().flatten().any(computed) {
                node.inputs.iter().for_each(|&v| main[v] = true);
            }
        }
        totals.sort_by_key(|total| total.value);
        let is_early = |&v: &ValueId| rows.kind[v] == Kind::Early && (main[v] || after[v]);
        let early: Vec<ValueId> = g.values.keys().filter(is_early).collect();
        early.iter().for_each(|&v| before[v] = true);
        for node in g.nodes.values().rev() {
            if node.outputs.iter().flatten().any(|&v| before[v]) {
                node.inputs.iter().for_each(|&v| before[v] = true);
            }
        }
        Needs { early, totals, before, main, after }
    }
}

fn by_rows(rows: &Rows) -> Result<BTreeSet<String>, AccumulateError> {
    let g = rows.g;
    let cut = |v: ValueId| matches!(rows.kind[v], Kind::Rows(_));
    let mut names: BTreeSet<String> =
        rows.by_rows.iter().map(|&v| g.values[v].name.clone()).collect();
    for output in &g.outputs {
        let input = g.inputs().find(|&v| g.values[v].name == output.name);
        if input.is_some_and(|v| cut(v) != cut(output.value)) {
            return Err(AccumulateError::Output(output.name.clone()));
        }
        if cut(output.value) {
            names.insert(output.name.clone());
        }
    }
    Ok(names)
}

/// Makes what is known before the first round, and what totals are without their terms.
fn before(rows: &Rows, needs: &Needs) -> Result<Graph, TypeError> {
    let mut part = Part::new(rows, &needs.early, &needs.totals, false);
    for (n, node) in &rows.g.nodes {
        if node.outputs.iter().flatten().any(|&v| needs.before[v]) {
            part.whole(n)?;
        }
    }
    for &v in &needs.early {
        let value = part.of[v].ok_or_else(|| missing(v))?;
        part.new.states[part.carried[&v]].exit = value;
    }
    let mut zeros: HashMap<DType, ValueId> = HashMap::new();
    for total in &needs.totals {
        let s = part.carried[&total.value];
        let ty = part.new.ty(part.new.states[s].enter).clone();
        let known = match total.state {
            Some(_) => part.without_terms(total.value, total)?,
            None => None,
        };
        let new = &mut part.new;
        let begins = match known {
            Some(v) => v,
            None => {
                let zero = *zeros.entry(ty.dtype).or_insert_with(|| {
                    let bytes = vec![0; ty.dtype.size() as usize];
                    new.add_const("", TensorType::scalar(ty.dtype), Data::Bytes(bytes.into()))
                });
                fill(new, zero, &ty)?
            }
        };
        new.states[s].exit = begins;
    }
    Ok(part.finish())
}

/// One round.
fn main(rows: &Rows, needs: &Needs) -> Result<Graph, TypeError> {
    let g = rows.g;
    let mut part = Part::new(rows, &needs.early, &needs.totals, true);
    for &v in &needs.early {
        part.of[v] = part.carried(v);
    }
    for &v in &rows.by_rows {
        if needs.main[v] {
            let value = &g.values[v];
            let ty = value.ty.with_extent(0, value.ty.shape[0] / rows.count);
            part.of[v] = Some(part.new.add_input(value.name.clone(), ty));
        }
    }
    let mut growing = Growing::new(&needs.totals, &part);
    let readers = g.readers();
    for (n, node) in &g.nodes {
        let computed = |&v: &ValueId| needs.main[v] && rows.kind[v] != Kind::Early;
        if !node.outputs.iter().flatten().any(computed) || growing.passed.contains(&n) {
            continue;
        }
        let Some(rule) = &rows.rule[n] else {
            // A shared value that is read in part alone is made so; `finish` drops the whole.
            part.whole(n)?;
            growing.add(&mut part, node)?;
            continue;
        };
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (&v, along) in node.inputs.iter().zip(&rule.narrow) {
            inputs.push(match along {
                Some(along) => part.narrow(v, *along)?,
                None => part.leaf(v).ok_or_else(|| missing(v))?,
            });
        }
        // What scatters onto zeros scatters onto the sum so far.
        let scatters = matches!(node.op, Op::ScatterNd { .. } | Op::ScatterElements { .. });
        let onto = node.outputs.first().copied().flatten().filter(|_| scatters);
        if let Some(onto) = onto.filter(|&v| rows.kind[v] == Kind::Sum)
            && readers[onto]
                .iter()
                .all(|n| growing.passed.contains(n) || !is_in_round(rows, needs, *n))
            && let Some(total) = growing.alone(rows, onto)
            && part.new.ty(growing.so_far[total]) == g.ty(onto)
        {
            inputs[0] = growing.so_far[total];
            let sum = part.node(n, rule.op.clone(), inputs)?[0].ok_or_else(|| missing(onto))?;
            growing.so_far[total] = sum;
            continue;
        }
        let mut outputs = part.node(n, rule.op.clone(), inputs)?;
        if let Some(scale) = rule.scale {
            for v in outputs.iter_mut().flatten() {
                *v = scaled(&mut part.new, *v, scale)?;
            }
        }
        part.define(n, &outputs);
        growing.add(&mut part, node)?;
    }
    for (total, sum) in needs.totals.iter().zip(growing.so_far) {
        part.new.states[part.carried[&total.value]].exit = sum;
    }
    for output in &g.outputs {
        if matches!(rows.kind[output.value], Kind::Rows(_)) {
            let value = part.of[output.value].ok_or_else(|| missing(output.value))?;
            part.new.outputs.push(Output { name: output.name.clone(), value });
        }
    }
    Ok(part.finish())
}

/// True where a round computes a node.
fn is_in_round(rows: &Rows, needs: &Needs, n: NodeId) -> bool {
    let mut made = rows.g.nodes[n].outputs.iter().flatten();
    made.any(|&v| needs.main[v] && !matches!(rows.kind[v], Kind::Late | Kind::Early))
}

/// What follows from the sums.
fn after(rows: &Rows, needs: &Needs) -> Result<Graph, TypeError> {
    let g = rows.g;
    let mut part = Part::new(rows, &needs.early, &needs.totals, false);
    for &v in &needs.early {
        part.of[v] = part.carried(v);
    }
    for &Total { value, .. } in &needs.totals {
        let sum = part.carried(value).ok_or_else(|| missing(value))?;
        part.of[value] = Some(part.cast(sum, g.ty(value).dtype)?);
    }
    for (n, node) in &g.nodes {
        let computed = |&v: &ValueId| {
            let is_known = part.carried.contains_key(&v);
            needs.after[v] && matches!(rows.kind[v], Kind::Shared | Kind::Late) && !is_known
        };
        if node.outputs.iter().flatten().any(computed) {
            part.whole(n)?;
        }
    }
    for (s, state) in &g.states {
        part.new.states[s].exit = part.leaf(state.exit).ok_or_else(|| missing(state.exit))?;
    }
    for output in &g.outputs {
        if !matches!(rows.kind[output.value], Kind::Rows(_)) {
            let value = part.leaf(output.value).ok_or_else(|| missing(output.value))?;
            part.new.outputs.push(Output { name: output.name.clone(), value });
        }
    }
    Ok(part.finish())
}
