//! Files of tensors: `.npz` and safetensors.

use crate::files::with_file;
use arenic::data::{Array, Batches, Npz, Progress, TensorFile};
use arenic_ir::TensorType;
use std::path::Path;

/// Bytes that are read of an array.
const MOST_BYTES: usize = 1 << 20;

fn read(arrays: &[Array]) {
    for array in arrays {
        assert!(array.ty().bytes() == array.bytes().len() as u64, "{}: length", array.name());
        let mut start = [0; 64];
        let n = start.len().min(array.bytes().len());
        array.read(array.bytes().len() - n, &mut start[..n]).expect("bytes that are there");
    }
}

/// Batches, and initial values.
pub(crate) fn npz(bytes: &[u8]) -> bool {
    with_file("a.npz", bytes, |path| {
        if let Ok(npz) = Npz::open(path) {
            read(npz.arrays());
            feed(&npz);
        }
        tensors(path)
    })
}

/// Feeds each array as rows, as a batch, and as one of several batches.
fn feed(npz: &Npz) {
    for array in npz.arrays() {
        let (ty, name) = (array.ty(), array.name().to_owned());
        for drop in 0..=ty.shape.len().min(1) {
            let ty = TensorType::new(ty.dtype, ty.shape[drop..].to_vec());
            if ty.bytes() as usize > MOST_BYTES {
                continue;
            }
            let mut bytes = vec![0; ty.bytes() as usize];
            let inputs = [(name.clone(), ty)];
            let Ok((mut batches, _)) = Batches::new(&inputs, Some(npz), &[], Some(3)) else {
                continue;
            };
            for step in [0, 1, batches.count(), u64::MAX] {
                // What batches hold may be refused, as bools are.
                let _ = batches.fill(step, 0, &mut bytes);
            }
        }
    }
}

fn tensors(path: &Path) -> bool {
    let Ok(file) = TensorFile::open(path) else { return false };
    read(file.tensors());
    // What says no progress, or nonsense, is refused.
    let _ = Progress::of(&file);
    true
}

/// States.
pub(crate) fn safetensors(bytes: &[u8]) -> bool {
    with_file("a.safetensors", bytes, tensors)
}
