//! Parameters that are had back from what an exporter's optimizer made of them.
//!
//! A parameter that was merged gets its values back under its name; one that was replaced by what was
//! computed of it is trained as that, transposed or reshaped as it is then; of a copy, whose values
//! prove it, is made what it is a copy of.

use super::lost::{Fate, Lost, Repair};
use super::{elements, name};
use crate::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, attribute_proto::AttributeType,
};
use crate::onnx::read::Reader;
use arenic_ir::Data;
use bytes::Bytes;

/// Restores one parameter in the graph; false where that cannot be done.
pub(super) fn apply(graph: &mut GraphProto, reader: &mut Reader, lost: &Lost) -> bool {
    let Some(repair) = &lost.repair else { return false };
    match &lost.fate {
        Fate::Merged { .. } | Fate::Replaced { .. } => own(graph, repair, &lost.name),
        Fate::Copied { .. } => computed(graph, reader, repair, &lost.name),
        _ => false,
    }
}

/// Gives the nodes an initializer of their own, of this name.
fn own(graph: &mut GraphProto, repair: &Repair, own: &str) -> bool {
    let Some(stored) = graph.initializer.iter().find(|t| name(t) == repair.read) else {
        return false;
    };
    let stored = TensorProto { name: Some(own.to_owned()), ..stored.clone() };
    graph.initializer.push(stored);
    redirect(graph, repair, own);
    true
}

fn redirect(graph: &mut GraphProto, repair: &Repair, to: &str) {
    for &(node, input) in &repair.slots {
        graph.node[node].input[input] = to.to_owned();
    }
}

/// Computes the copy from the parameter, where its values say how.
fn computed(graph: &mut GraphProto, reader: &mut Reader, repair: &Repair, of: &str) -> bool {
    let find = |wanted: &str| graph.initializer.iter().find(|t| name(t) == wanted).cloned();
    let (Some(copy), Some(parameter)) = (find(&repair.read), find(of)) else { return false };
    let mut bytes = |t: &TensorProto| match reader.tensor(t) {
        Ok((ty, Data::Bytes(bytes))) => Some((ty, bytes)),
        _ => None,
    };
    let (Some((ty, copied)), Some((_, values))) = (bytes(&copy), bytes(&parameter)) else {
        return false;
    };
    let size = ty.dtype.size() as usize;
    let result = format!("{}.of.{of}", repair.read);
    let node = |op: &str, input: Vec<String>, attribute: Vec<AttributeProto>| NodeProto {
        op_type: Some(op.to_owned()),
        input,
        output: vec![result.clone()],
        attribute,
        ..NodeProto::default()
    };
    let made = match parameter.dims[..] {
        [rows, columns]
            if copy.dims == [columns, rows]
                && copied == transposed(&values, rows as usize, columns as usize, size) =>
        {
            let perm = AttributeProto {
                name: Some("perm".to_owned()),
                r#type: Some(AttributeType::Ints as i32),
                ints: vec![1, 0],
                ..AttributeProto::default()
            };
            node("Transpose", vec![of.to_owned()], vec![perm])
        }
        _ if elements(&copy) == elements(&parameter) && copied == values => {
            let shape = format!("{result}.shape");
            let dims = copy.dims.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<u8>>();
            let stored = TensorProto {
                name: Some(shape.clone()),
                data_type: Some(7),
                dims: vec![copy.dims.len() as i64],
                raw_data: Some(dims.into()),
                ..TensorProto::default()
            };
            graph.initializer.push(stored);
            node("Reshape", vec![of.to_owned(), shape], Vec::new())
        }
        _ => return false,
    };
    redirect(graph, repair, &result);
    // The importer sorts nodes.
    graph.node.push(made);
    true
}

/// A matrix with its rows as columns.
fn transposed(values: &Bytes, rows: usize, columns: usize, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * size;
            out.extend_from_slice(values.get(at..at + size).unwrap_or_default());
        }
    }
    out
}
