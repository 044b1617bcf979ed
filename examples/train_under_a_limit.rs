//! Makes a training step of a forward model, in eight tenths of the memory that it would take, and shows that the losses
//! are the same, bit by bit.
//!
//!     cargo run --release --example train_under_a_limit

use arenic::{Artifact, Compiler, Limit, Model, Optimizer, Trainer};
use std::error::Error;

const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/tiny_resnet.onnx");
    let forward = Model::open(path)?.dim("batch", BATCH as u64);
    let compiler = Compiler::new().loss("cross_entropy", Optimizer::Adamw);
    let whole = compiler.compile(&forward)?;
    let tight = compiler.memory(Limit::Part(0.8)).compile(&forward)?;
    println!("{} bytes without a limit, {} with one", whole.arena_bytes(), tight.arena_bytes());
    assert!(tight.arena_bytes() * 10 <= whole.arena_bytes() * 8);
    let (whole, tight) = (losses(whole)?, losses(tight)?);
    println!("losses {whole:?}");
    assert_eq!(whole, tight);
    Ok(())
}

/// The losses of five steps on one batch.
fn losses(artifact: Artifact) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut trainer = Trainer::new(artifact)?;
    let elements = trainer.input("x").ok_or("no input `x`")?.elements();
    let x: Vec<f32> = (0..elements).map(|i| (i as f32 * 0.37).sin()).collect();
    let target: Vec<i64> = (0..BATCH as i64).map(|i| i % 10).collect();
    let batch = [("x", x[..].into()), ("target", target[..].into()), ("lr", 1e-3.into())];
    (0..5).map(|_| Ok(trainer.step(&batch)?["loss"])).collect()
}
