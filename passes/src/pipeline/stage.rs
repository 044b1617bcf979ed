//! How far a graph has come when a pass runs on it, by which passes that options ask for find their place.
//!
//! A test holds this table against the list of passes, and named pipelines against the table: a pass that nobody
//! placed would have `precision`, `shard` and `accumulate` end up on the wrong side of it.

/// Stages of a graph, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// What a file says is put together, and made a training step.
    Whole,
    /// The step is divided among rounds.
    Divided,
    /// Operators become others.
    Rewritten,
    /// Products and what is stored take fewer bits.
    Precision,
    /// Operators become what a target has kernels for, of the types that they have now.
    Fused,
}

impl Stage {
    /// The stage of a pass over graphs, by its name; `None` for passes of others, which run where they are put.
    pub(super) fn of(pass: &str) -> Option<Stage> {
        Some(match pass {
            // It divides a step among ranks before rounds divide each rank's.
            "fold_constants" | "dead_code" | "raise" | "attention" | "differentiate"
            | "pool_taps" | "shard" => Stage::Whole,
            "accumulate" => Stage::Divided,
            "views" | "fuse_transposes" | "patch_products" | "sink_transposes"
            | "attention_sums" | "pack_attention" | "fuse_cross_entropy" | "sink_scatters"
            | "fuse_updates" | "fuse_sums" | "fuse_gelu" => Stage::Rewritten,
            "precision" => Stage::Precision,
            "layout" | "align_classes" | "fuse_elementwise" | "fuse_norms" | "group_updates"
            | "section" | "detach_states" => Stage::Fused,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Stage;
    use crate::pipeline::{NAMED, Pipeline};
    use crate::{PassSet, Standard};

    #[test]
    fn every_pass_over_graphs_has_a_stage() {
        for pass in Standard.passes() {
            let is_of_graphs = pass.level == "graph";
            assert_eq!(Stage::of(pass.name).is_some(), is_of_graphs, "`{}`", pass.name);
        }
    }

    /// Passes that any stage may need once more, after it.
    const AGAIN: [&str; 3] = ["fold_constants", "dead_code", "views"];

    #[test]
    fn named_pipelines_go_from_stage_to_stage() {
        for (name, yaml) in NAMED {
            let pipeline = Pipeline::parse(yaml, &Standard).unwrap();
            let stages =
                pipeline.names().filter(|pass| !AGAIN.contains(pass)).filter_map(Stage::of);
            assert!(stages.is_sorted(), "{name}");
        }
    }
}
