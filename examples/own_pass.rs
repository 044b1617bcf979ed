//! Writes a pass of one's own and runs it as part of the pipeline: it says which operators a step is made of, and how
//! many bytes their results take, before anything is planned.
//!
//!     cargo run --release --example own_pass

use arenic::{Compiler, Model};
use arenic_ir::Graph;
use arenic_passes::{Cx, GraphPass, Pass, PassError, Stats};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

/// Counts operators. Passes over graphs may rewrite them, too, as long as they compute the same.
struct Census;

impl GraphPass for Census {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut census: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for node in g.nodes.values() {
            let (count, bytes) = census.entry(node.op.name()).or_default();
            *count += 1;
            *bytes += node.outputs.iter().flatten().map(|&v| g.ty(v).bytes()).sum::<u64>();
        }
        for (name, (count, bytes)) in &census {
            println!("{count:>4} {name:<20} {bytes:>12} bytes");
        }
        Ok(Stats::from([("operators", g.nodes.len() as u64)]))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/digits/digits_step.onnx");
    let step = Model::open(path)?.dim("batch", 32);
    let census = Pass::Graph(Arc::new(Census));
    let artifact = Compiler::new().pass("census", census, "section").compile(&step)?;
    let passes = &artifact.provenance.passes;
    println!("passes: {}", passes.join(", "));
    assert!(passes.iter().any(|pass| pass == "census"));
    Ok(())
}
