//! ONNX Runtime's checkpoints (`ort_training_checkpoint.fbs`): the values of a module's parameters,
//! and what its optimizer carries.

use super::flatbuffer::{Damaged, Table};
use crate::onnx::proto::TensorProto;
use arenic_ir::op::MAX_RANK;
use bytes::Bytes;
use std::collections::BTreeMap;

const IDENTIFIER: &[u8; 4] = b"ODTC";
/// What reading is written for; newer ones only added fields.
const VERSIONS: std::ops::RangeInclusive<i32> = 1..=2;

/// A checkpoint.
pub(super) struct Checkpoint {
    /// What is trained, in the file's order.
    pub(super) parameters: Vec<TensorProto>,
    /// What is not: running statistics and constants.
    pub(super) frozen: Vec<TensorProto>,
    /// How many steps the optimizer made.
    pub(super) step: i64,
    /// By parameter: its moments.
    pub(super) moments: BTreeMap<String, Vec<TensorProto>>,
}

impl Checkpoint {
    /// Reads a file's bytes, which tensors share.
    pub(super) fn read(bytes: &Bytes) -> Result<Checkpoint, String> {
        let root = Table::root(bytes, IDENTIFIER).map_err(words)?;
        let version = root.int32(0).map_err(words)?;
        if !VERSIONS.contains(&version) {
            return Err(format!("it is of version {version}; arenic reads versions 1 and 2"));
        }
        let module = root.table(1).map_err(words)?.ok_or("it holds no module")?;
        if module.flag(2).map_err(words)? {
            return Err("it is nominal: names without values".into());
        }
        if module.flag(3).map_err(words)? {
            return Err("its tensors are in another file, which is not supported".into());
        }
        let mut left = bytes.len();
        let mut tensors = |table: Table, field| -> Result<Vec<TensorProto>, String> {
            let all = table.tables(field, &mut left).map_err(words)?;
            all.into_iter().map(|t| tensor(bytes, t)).collect()
        };
        let (parameters, frozen) = (tensors(module, 0)?, tensors(module, 1)?);
        let (mut step, mut moments) = (0, BTreeMap::new());
        let mut groups = bytes.len();
        for group in root.tables(2, &mut groups).map_err(words)? {
            step = group.int64(1).map_err(words)?;
            for state in group.tables(3, &mut groups).map_err(words)? {
                moments.insert(state.text(0).map_err(words)?.to_owned(), tensors(state, 1)?);
            }
        }
        Ok(Checkpoint { parameters, frozen, step, moments })
    }
}

fn words(Damaged(reason): Damaged) -> String {
    format!("it is damaged: {reason}")
}

/// A tensor; what its type and contents are worth is judged where a model's are.
fn tensor(file: &Bytes, t: Table) -> Result<TensorProto, String> {
    let name = t.text(0).map_err(words)?;
    let raw = t.raw(4).map_err(words)?.unwrap_or_default();
    Ok(TensorProto {
        name: Some(name.to_owned()),
        dims: t.int64s(2, MAX_RANK).map_err(words)?,
        data_type: Some(t.int32(3).map_err(words)?),
        raw_data: Some(file.slice_ref(raw)),
        ..TensorProto::default()
    })
}
