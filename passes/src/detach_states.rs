//! Gives old state values that outlive their state's update bytes of their own.
//!
//! Updates are simultaneous: `out_a` may be the old `b`, and an output may be the old
//! `a`. Home bytes of a state whose value changes are overwritten during the step, so
//! such a value is copied by a node first. Sound because a copy has the same elements.

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::op::Op;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Copies old state values that an output or another state still needs after the update.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetachStates {}

impl GraphPass for DetachStates {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut copies = 0;
        for s in g.states.keys().collect::<Vec<_>>() {
            let exit = g.states[s].exit;
            let attached = match g.values[g.resolve(exit).root].def {
                Def::State(of) => of != s,
                _ => false,
            };
            if attached {
                g.states[s].exit = copy_of(g, exit)?;
                copies += 1;
            }
        }
        for i in 0..g.outputs.len() {
            let value = g.outputs[i].value;
            let overwritten = match g.values[g.resolve(value).root].def {
                Def::State(s) => g.resolve(g.states[s].exit).root != g.states[s].enter,
                _ => false,
            };
            if overwritten {
                g.outputs[i].value = copy_of(g, value)?;
                copies += 1;
            }
        }
        Ok(Stats::from([("copies", copies)]))
    }
}

fn copy_of(g: &mut Graph, v: ValueId) -> Result<ValueId, PassError> {
    let node = g.add_node("", Op::Copy, vec![v])?;
    Ok(g.result(node).unwrap_or(v))
}
