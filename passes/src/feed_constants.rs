//! Feeds constants that have no home of their own.
//!
//! A step that is added to programs over one arena finds the states there, and constants that are equal
//! to some of theirs. What else it has as constants, such as positions of another length, would need bytes
//! that no other program touches, and there are none. So such constants become inputs that whoever runs
//! the step feeds before each turn, by names that this pass gives them. Sound because an input that is
//! always fed the same is a constant.

use crate::homes::Pinned;
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Data, Def, Graph, ValueId};
use arenic_ir::types::TensorType;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// A constant, and which of several equal ones in its graph it is.
type Known = (TensorType, Bytes, usize);

/// Makes inputs of the constants that programs which are there have no homes for.
#[derive(Debug, Default)]
pub struct FeedConstants {
    /// Constants with homes, by name, type and contents, and how many equal ones there are.
    homes: HashMap<(String, TensorType, Bytes), usize>,
    /// What the inputs are that were made so far: of all parts of a step, and of all graphs that were
    /// tried for it.
    fed: Mutex<HashMap<Known, String>>,
}

impl FeedConstants {
    /// Feeds constants without homes among these.
    pub fn beside(pinned: &Pinned) -> FeedConstants {
        let home = |(name, ty, bytes, count): (&str, &TensorType, &[u8], usize)| {
            ((name.to_owned(), ty.clone(), Bytes::copy_from_slice(bytes)), count)
        };
        FeedConstants { homes: pinned.constants().map(home).collect(), fed: Mutex::default() }
    }

    /// The contents of the inputs that were made, by name.
    pub fn fed(&self) -> BTreeMap<String, Bytes> {
        let fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        fed.iter().map(|((_, bytes, _), name)| (name.clone(), bytes.clone())).collect()
    }
}

impl GraphPass for FeedConstants {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = self.homes.clone();
        let mut met: HashMap<(TensorType, Bytes), usize> = HashMap::new();
        let mut made = 0;
        for v in g.consts().map(|(v, _)| v).collect::<Vec<ValueId>>() {
            let value = &g.values[v];
            let Def::Const(Data::Bytes(bytes)) = &value.def else {
                return Err(PassError::Home(value.name.clone()));
            };
            let home = left.get_mut(&(value.name.clone(), value.ty.clone(), bytes.clone()));
            if let Some(count) = home.filter(|count| **count > 0) {
                *count -= 1;
                continue;
            }
            let what = (value.ty.clone(), bytes.clone());
            let before = met.entry(what.clone()).or_default();
            *before += 1;
            let next = fed.len();
            let name = fed.entry((what.0, what.1, *before)).or_insert_with(|| name(g, next));
            (g.values[v].name, g.values[v].def) = (name.clone(), Def::Input);
            made += 1;
        }
        Ok(Stats::from([("inputs", made)]))
    }
}

/// A name that no input of the graph has.
fn name(g: &Graph, number: usize) -> String {
    let mut name = format!("constant {number}");
    while g.inputs().any(|v| g.values[v].name == name) {
        name.push('\'');
    }
    name
}
