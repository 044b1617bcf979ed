//! Trains a small CNN on images of handwritten digits, batch by batch, and saves its weights.
//!
//!     cargo run --release --example train_digits

use arenic::data::Npz;
use arenic::{Compiler, Model, Trainer};
use std::error::Error;
use std::path::Path;

const BATCH: usize = 32;
const PIXELS: usize = 8 * 8;

fn main() -> Result<(), Box<dyn Error>> {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let step = Model::open(digits.join("digits_step.onnx"))?.dim("batch", BATCH as u64);
    let artifact = Compiler::new().compile(&step)?;
    println!("trains in {} bytes", artifact.arena_bytes());

    let (images, labels) = read(&digits.join("train.npz"))?;
    let mut trainer = Trainer::new(artifact)?;
    for epoch in 0..5 {
        let (mut loss, mut steps) = (0.0, 0);
        for (x, target) in images.chunks_exact(BATCH * PIXELS).zip(labels.chunks_exact(BATCH)) {
            let batch = [("x", x.into()), ("target", target.into()), ("lr", 0.02.into())];
            loss += trainer.step(&batch)?["loss"];
            steps += 1;
        }
        println!("epoch {epoch}: loss {:.4}", loss / f64::from(steps));
    }
    trainer.save(std::env::temp_dir().join("digits.safetensors"))?;
    Ok(())
}

/// Images and their classes.
fn read(path: &Path) -> Result<(Vec<f32>, Vec<i64>), Box<dyn Error>> {
    let npz = Npz::open(path)?;
    let array = |name| npz.array(name).ok_or(format!("no array `{name}`"));
    let images = array("x")?.bytes().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    let labels = array("target")?.bytes().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
    Ok((images.collect(), labels.collect()))
}
