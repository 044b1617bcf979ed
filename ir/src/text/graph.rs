//! Text of graphs.
//!
//! ```text
//! graph "name" {
//!   input v0: f32[4,2] "x"
//!   const v1: i64[2] "axes" = [0, 1]
//!   state s0 "w": v2: f32[2,3] -> v4 = ...
//!   n0 "dense" mat_mul (v0, v2) -> (v3: f32[4,3] "y")
//!   n1 binary {"f":"add"} (v2, v2) -> (v4: f32[2,3])
//!   view v5: f32[12] = v3+0
//!   output "y" v5
//! }
//! ```

use super::lexer::Lexer;
use super::{TextError, data, quoted, write_list, write_name};
use crate::graph::{
    BatchRows, Data, Def, Graph, Node, NodeId, Output, Ranks, State, StateId, Value, ValueId,
};
use crate::op::Op;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use std::collections::BTreeSet;
use std::fmt;
use std::mem::take;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut views: SecondaryMap<ValueId, Vec<ValueId>> = SecondaryMap::new();
        for (v, value) in &self.values {
            if let Def::View { of, .. } = value.def {
                views[of].push(v);
            }
        }
        writeln!(f, "graph {} {{", quoted(&self.name))?;
        for (v, value) in &self.values {
            match &value.def {
                Def::Input => {
                    write!(f, "  input {v}: {}", value.ty)?;
                    write_name(f, &value.name)?;
                }
                Def::Const(data) => {
                    write!(f, "  const {v}: {}", value.ty)?;
                    write_name(f, &value.name)?;
                    f.write_str(" = ")?;
                    data::write(f, &value.ty, data)?;
                }
                Def::State(s) => {
                    let state = &self.states[*s];
                    write!(f, "  state {s} {}", quoted(&state.name))?;
                    if state.carried {
                        f.write_str(" carried")?;
                    }
                    if let Some(rows) = state.rows {
                        write!(f, " rows {} of {}", rows.first, rows.of)?;
                    }
                    if let Some(whole) = &state.part_of {
                        write!(f, " part of {whole}")?;
                    }
                    write!(f, ": {v}: {} -> {}", value.ty, state.exit)?;
                    if let Some(init) = &state.init {
                        f.write_str(" = ")?;
                        data::write(f, state.part_of.as_ref().unwrap_or(&value.ty), init)?;
                    }
                }
                Def::Node { .. } | Def::View { .. } => continue,
            }
            writeln!(f)?;
            self.write_views(f, v, &mut views)?;
        }
        for (n, node) in &self.nodes {
            self.write_node(f, n, node)?;
            for &v in node.outputs.iter().flatten() {
                self.write_views(f, v, &mut views)?;
            }
        }
        // Views of each other, which `verify` refuses, but a text may have.
        for v in self.values.keys() {
            self.write_views(f, v, &mut views)?;
        }
        if let Some(ranks) = &self.ranks {
            write!(f, "  ranks {}", ranks.count)?;
            for name in &ranks.by_rows {
                write!(f, " {}", quoted(name))?;
            }
            writeln!(f)?;
        }
        for output in &self.outputs {
            writeln!(f, "  output {} {}", quoted(&output.name), output.value)?;
        }
        writeln!(f, "}}")
    }
}

impl Graph {
    fn write_node(&self, f: &mut fmt::Formatter<'_>, n: NodeId, node: &Node) -> fmt::Result {
        write!(f, "  {n}")?;
        write_name(f, &node.name)?;
        write!(f, " {}", OpText(&node.op))?;
        f.write_str(" (")?;
        write_list(f, &node.inputs)?;
        f.write_str(") -> (")?;
        for (i, output) in node.outputs.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            match output {
                Some(v) => {
                    write!(f, "{v}: {}", self.values[*v].ty)?;
                    write_name(f, &self.values[*v].name)?;
                }
                None => f.write_str("_")?,
            }
        }
        writeln!(f, ")")
    }

    /// Views of `v`, and views of these, each after what it views; takes them out of `views`.
    fn write_views(
        &self,
        f: &mut fmt::Formatter<'_>,
        v: ValueId,
        views: &mut SecondaryMap<ValueId, Vec<ValueId>>,
    ) -> fmt::Result {
        let mut stack: Vec<ValueId> = take(&mut views[v]).into_iter().rev().collect();
        while let Some(v) = stack.pop() {
            if let Def::View { of, offset } = self.values[v].def {
                write!(f, "  view {v}: {} = {of}+{offset}", self.values[v].ty)?;
                write_name(f, &self.values[v].name)?;
                writeln!(f)?;
            }
            stack.extend(take(&mut views[v]).into_iter().rev());
        }
        Ok(())
    }
}

/// An operator as `name` or `name {attributes}`.
struct OpText<'a>(&'a Op);

impl fmt::Display for OpText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_value(self.0).map_err(|_| fmt::Error)? {
            serde_json::Value::Object(map) => {
                for (name, attributes) in map {
                    f.write_str(&name)?;
                    if attributes.as_object().is_some_and(|a| !a.is_empty()) {
                        write!(f, " {attributes}")?;
                    }
                }
                Ok(())
            }
            name => f.write_str(name.as_str().unwrap_or_default()),
        }
    }
}

fn parse_op(lexer: &mut Lexer) -> Result<Op, TextError> {
    let at = lexer.position();
    let name = lexer.word()?;
    let attributes = if lexer.peek("{") { lexer.json()? } else { serde_json::json!({}) };
    let tagged = serde_json::Value::Object([(name.to_owned(), attributes)].into_iter().collect());
    serde_json::from_value(tagged)
        .or_else(|e| serde_json::from_value(name.into()).map_err(|_| e))
        .map_err(|e| lexer.error_at(at, format!("operator `{name}`: {e}")))
}

pub(super) fn parse(lexer: &mut Lexer) -> Result<Graph, TextError> {
    let mut values: SecondaryMap<ValueId, Option<Value>> = SecondaryMap::new();
    let mut states: SecondaryMap<StateId, Option<State>> = SecondaryMap::new();
    let mut nodes: PrimaryMap<NodeId, Node> = PrimaryMap::new();
    let mut outputs = Vec::new();
    let mut ranks = None;

    lexer.expect_word("graph")?;
    let name = lexer.name()?;
    lexer.expect("{")?;
    while !lexer.accept("}") {
        if lexer.accept_word("input") {
            let v = value_id(lexer, &values)?;
            lexer.expect(":")?;
            let ty = lexer.tensor_type()?;
            let name = lexer.optional_name()?;
            values[v] = Some(Value { name, ty, def: Def::Input });
        } else if lexer.accept_word("const") {
            let v = value_id(lexer, &values)?;
            lexer.expect(":")?;
            let ty = lexer.tensor_type()?;
            let name = lexer.optional_name()?;
            lexer.expect("=")?;
            let data = data::parse(lexer, &ty)?;
            values[v] = Some(Value { name, ty, def: Def::Const(data) });
        } else if lexer.accept_word("state") {
            let (s, state, value) = parse_state(lexer, &values)?;
            if states[s].is_some() {
                return Err(lexer.error(format!("{s} is defined twice")));
            }
            values[state.enter] = Some(value(s));
            states[s] = Some(state);
        } else if lexer.accept_word("view") {
            let v = value_id(lexer, &values)?;
            lexer.expect(":")?;
            let ty = lexer.tensor_type()?;
            lexer.expect("=")?;
            let of = lexer.id("v")?;
            lexer.expect("+")?;
            let offset = lexer.number()?;
            let name = lexer.optional_name()?;
            values[v] = Some(Value { name, ty, def: Def::View { of, offset } });
        } else if lexer.accept_word("ranks") {
            let count = lexer.number()?;
            let mut by_rows = BTreeSet::new();
            while lexer.peek("\"") {
                by_rows.insert(lexer.name()?);
            }
            ranks = Some(Ranks { count, by_rows });
        } else if lexer.accept_word("output") {
            outputs.push(Output { name: lexer.name()?, value: lexer.id("v")? });
        } else if lexer.peek_id("n") {
            let n: NodeId = lexer.id("n")?;
            if n != nodes.next_key() {
                return Err(lexer.error(format!("expected node {}", nodes.next_key())));
            }
            let name = lexer.optional_name()?;
            let op = parse_op(lexer)?;
            let inputs = lexer.list(|l| l.id("v"))?;
            lexer.expect("->")?;
            let mut position = 0;
            let outputs = lexer.list(|l| {
                let output = position;
                position += 1;
                if l.accept_word("_") {
                    return Ok(None);
                }
                let v = value_id(l, &values)?;
                l.expect(":")?;
                let ty = l.tensor_type()?;
                let name = l.optional_name()?;
                values[v] = Some(Value { name, ty, def: Def::Node { node: n, output } });
                Ok(Some(v))
            })?;
            nodes.push(Node { name, op, inputs, outputs });
        } else {
            return Err(lexer.error("expected an item of a graph or `}`"));
        }
    }
    let mut graph = Graph { name, nodes, outputs, ranks, ..Graph::default() };
    for (v, value) in values.iter() {
        match value {
            Some(value) => graph.values.push(value.clone()),
            None => return Err(lexer.error(format!("{v} is not defined, but a higher id is"))),
        };
    }
    for (s, state) in states.iter() {
        match state {
            Some(state) => graph.states.push(state.clone()),
            None => return Err(lexer.error(format!("{s} is not defined, but a higher id is"))),
        };
    }
    known_ids(&graph).map_err(|v| lexer.error(format!("{v} is used but not defined")))?;
    Ok(graph)
}

type StateValue = Box<dyn FnOnce(StateId) -> Value>;

fn parse_state(
    lexer: &mut Lexer,
    values: &SecondaryMap<ValueId, Option<Value>>,
) -> Result<(StateId, State, StateValue), TextError> {
    let s = lexer.id("s")?;
    let name = lexer.name()?;
    let carried = lexer.accept("carried");
    let rows = if lexer.accept("rows") {
        let first = lexer.number()?;
        lexer.expect("of")?;
        Some(BatchRows { first, of: lexer.number()? })
    } else {
        None
    };
    let part_of = if lexer.accept("part") {
        lexer.expect("of")?;
        Some(lexer.tensor_type()?)
    } else {
        None
    };
    lexer.expect(":")?;
    let enter = value_id(lexer, values)?;
    lexer.expect(":")?;
    let ty = lexer.tensor_type()?;
    lexer.expect("->")?;
    let exit = lexer.id("v")?;
    let init: Option<Data> = if lexer.accept("=") {
        Some(data::parse(lexer, part_of.as_ref().unwrap_or(&ty))?)
    } else {
        None
    };
    let value_name = name.clone();
    let value = move |s| Value { name: value_name, ty, def: Def::State(s) };
    Ok((s, State { name, rows, part_of, carried, enter, exit, init }, Box::new(value)))
}

fn value_id(
    lexer: &mut Lexer,
    values: &SecondaryMap<ValueId, Option<Value>>,
) -> Result<ValueId, TextError> {
    let v: ValueId = lexer.id("v")?;
    if values.get(v).is_some_and(Option::is_some) {
        return Err(lexer.error(format!("{v} is defined twice")));
    }
    Ok(v)
}

/// Every id that the graph mentions is one of its own.
fn known_ids(g: &Graph) -> Result<(), ValueId> {
    let known = |v: ValueId| if v.index() < g.values.len() { Ok(()) } else { Err(v) };
    for node in g.nodes.values() {
        node.inputs.iter().try_for_each(|&v| known(v))?;
    }
    for value in g.values.values() {
        if let Def::View { of, .. } = value.def {
            known(of)?;
        }
    }
    g.outputs.iter().try_for_each(|o| known(o.value))?;
    g.states.values().try_for_each(|s| known(s.exit))
}
