//! Changes models where they say something.

use super::NUMBERS;
use arenic::onnx::proto::attribute_proto::AttributeType;
use arenic::onnx::proto::tensor_shape_proto::dimension::Value as Extent;
use arenic::onnx::proto::{
    GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, type_proto,
};
use arenic::onnx::supported_ops;
use arenic_programs::Random;
use prost::Message;

fn number(random: &mut Random, old: i64) -> i64 {
    match random.below(5) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_neg(),
        3 => random.below(9) as i64,
        _ => random.pick(&NUMBERS),
    }
}

/// Changes a model once; `None` where the bytes are no model.
pub(super) fn mutate(random: &mut Random, input: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    let mut model = ModelProto::decode(input).ok()?;
    let other = ModelProto::decode(other).ok().and_then(|m| m.graph).unwrap_or_default();
    if random.chance(4) {
        let import = model.opset_import.first_mut()?;
        import.version = Some(1 + random.below(25) as i64);
    }
    let graph = model.graph.as_mut()?;
    let nodes = graph.node.len();
    match random.below(12) {
        0 => {
            // One value's name in the place of another.
            let names = names(graph);
            let node = graph.node.get_mut(random.below(nodes))?;
            let k = random.below(node.input.len());
            *node.input.get_mut(k)? = random.pick(&names.iter().collect::<Vec<_>>()).clone();
        }
        1 => {
            let ops: Vec<_> = supported_ops().collect();
            let op = &ops[random.below(ops.len())];
            graph.node.get_mut(random.below(nodes))?.op_type = Some(op.name.to_owned());
        }
        2 => {
            graph.node.get(random.below(nodes))?;
            graph.node.remove(random.below(nodes));
        }
        3 => {
            let (i, j) = (random.below(nodes), random.below(nodes));
            (i < nodes).then(|| graph.node.swap(i, j))?;
        }
        4 | 5 => {
            let at = random.below(nodes);
            attribute(random, graph.node.get_mut(at)?)?;
        }
        6 => {
            let at = random.below(graph.initializer.len());
            tensor(random, graph.initializer.get_mut(at)?);
        }
        7 => {
            let at = random.below(graph.input.len());
            info(random, graph.input.get_mut(at)?)?;
        }
        8 => {
            let node = graph.node.get_mut(random.below(nodes))?;
            match random.below(3) {
                0 => drop(node.input.pop()),
                1 => node.input.push(node.input.first().cloned().unwrap_or_default()),
                _ => drop(node.attribute.pop()),
            }
        }
        9 => bring(random, graph, &other)?,
        10 => {
            let names = names(graph);
            let mut output = graph.output.first()?.clone();
            output.name = Some(names[random.below(names.len())].clone());
            output.r#type = None;
            let at = random.below(graph.output.len());
            match random.chance(50) {
                true => graph.output[at] = output,
                false => graph.output.push(output),
            }
        }
        _ => {
            let n = graph.initializer.len();
            graph.initializer.get(random.below(n))?;
            graph.initializer.remove(random.below(n));
        }
    }
    Some(model.encode_to_vec())
}

fn names(graph: &GraphProto) -> Vec<String> {
    let inputs = graph.input.iter().filter_map(|i| i.name.clone());
    let stored = graph.initializer.iter().filter_map(|i| i.name.clone());
    let made = graph.node.iter().flat_map(|n| n.output.iter().cloned());
    inputs.chain(stored).chain(made).chain([String::new()]).collect()
}

/// A node of another model, that reads what this one has.
fn bring(random: &mut Random, graph: &mut GraphProto, other: &GraphProto) -> Option<()> {
    let mut node = other.node.get(random.below(other.node.len()))?.clone();
    let names = names(graph);
    for input in &mut node.input {
        *input = names[random.below(names.len())].clone();
    }
    for (k, output) in node.output.iter_mut().enumerate() {
        *output = format!("brought{}_{k}", graph.node.len());
    }
    let made = node.output.first()?.clone();
    let at = random.below(graph.node.len() + 1);
    graph.node.insert(at, node);
    // Somebody reads it.
    let reader = graph.node.len() - 1 - random.below(graph.node.len() - at);
    if reader > at
        && let Some(input) = graph.node[reader].input.first_mut()
    {
        *input = made;
    }
    Some(())
}

fn attribute(random: &mut Random, node: &mut NodeProto) -> Option<()> {
    let n = node.attribute.len();
    let a = node.attribute.get_mut(random.below(n))?;
    match AttributeType::try_from(a.r#type.unwrap_or_default()) {
        Ok(AttributeType::Int) => a.i = Some(number(random, a.i.unwrap_or_default())),
        Ok(AttributeType::Float) => {
            a.f = Some(random.pick(&[0.0, -1.0, 0.5, 1e30, 1e-30, f32::NAN, f32::INFINITY]));
        }
        Ok(AttributeType::Ints) => list(random, &mut a.ints),
        Ok(AttributeType::Tensor) => tensor(random, a.t.as_mut()?),
        Ok(AttributeType::String) => {
            let words =
                ["", "SAME_UPPER", "VALID", "linear", "cubic", "mul", "reflect", "ij,jk->ik"];
            a.s = Some(random.pick(&words).to_owned().into());
        }
        _ => a.r#type = Some(random.below(15) as i32),
    }
    Some(())
}

fn list(random: &mut Random, list: &mut Vec<i64>) {
    let at = random.below(list.len());
    match (list.get(at).copied(), random.below(4)) {
        (Some(_), 0) => drop(list.remove(at)),
        (Some(old), 1 | 2) => list[at] = number(random, old),
        _ => list.push(number(random, 1)),
    }
}

fn tensor(random: &mut Random, t: &mut TensorProto) {
    match random.below(5) {
        0 => list(random, &mut t.dims),
        1 => t.data_type = Some(random.below(20) as i32),
        2 if !t.int64_data.is_empty() => list(random, &mut t.int64_data),
        _ => {
            let mut raw = t.raw_data.clone().unwrap_or_default().to_vec();
            if raw.is_empty() {
                return;
            }
            // Whole numbers: shapes, axes and the like.
            let at = random.below(raw.len()) / 8 * 8;
            let end = raw.len().min(at + 8);
            let old = raw[at..end].iter().rev().fold(0, |n, &b| n << 8 | i64::from(b));
            raw[at..end].copy_from_slice(&number(random, old).to_le_bytes()[..end - at]);
            t.raw_data = Some(raw.into());
        }
    }
}

fn info(random: &mut Random, info: &mut ValueInfoProto) -> Option<()> {
    let type_proto::Value::TensorType(tensor) = info.r#type.as_mut()?.value.as_mut()? else {
        return None;
    };
    if random.chance(25) {
        tensor.elem_type = Some(random.below(18) as i32);
        return Some(());
    }
    let dims = &mut tensor.shape.as_mut()?.dim;
    let n = dims.len();
    let dim = dims.get_mut(random.below(n))?;
    dim.value = match dim.value {
        Some(Extent::DimValue(old)) => Some(Extent::DimValue(number(random, old))),
        _ => Some(Extent::DimValue(random.below(5) as i64)),
    };
    Some(())
}
