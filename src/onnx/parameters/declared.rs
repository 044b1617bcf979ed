//! The model's property `arenic.parameters`, which says what is a parameter.
//!
//! Its value is JSON:
//!
//! ```json
//! {"parameters": [
//!   {"name": "encoder.weight", "requires_grad": true, "ties": ["decoder.weight"]},
//!   {"name": "scale", "requires_grad": false},
//!   {"name": "aux.weight", "used": false}
//! ], "stop_gradients": ["detach"], "bn_variance": "unbiased"}
//! ```
//!
//! The list has every parameter of the module once; all other initializers of floats are kept as
//! they are. `name` is an initializer's, or one of `ties` is: further names of the same tensor,
//! which may be initializers, too, and are one parameter with it. Without `requires_grad` a
//! parameter is kept as it is. `used` is false where the graph does not read the parameter, so that
//! the file need not have it. Other keys are ignored. It is a property of the model, not of the graph.
//!
//! Two keys may be left out. `stop_gradients` names all tensors that gradients do not pass. `bn_variance`
//! is `unbiased` where the running variances of batch normalisation are made of the unbiased estimate,
//! as PyTorch's are, and `population` where they are made of the batch's variance, as ONNX says.

use super::{Fate, Lost, Said, floats, name};
use crate::onnx::Variance;
use crate::onnx::error::ImportError;
use crate::onnx::proto::{GraphProto, StringStringEntryProto};
use arenic_passes::differentiate::Standing;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};

/// The property's name.
const PROPERTY: &str = "arenic.parameters";

/// What the property says.
#[derive(Deserialize)]
pub(super) struct Declared {
    parameters: Vec<Row>,
    stop_gradients: Option<Vec<String>>,
    bn_variance: Option<Estimate>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Estimate {
    Population,
    Unbiased,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    #[serde(default = "yes")]
    requires_grad: bool,
    #[serde(default)]
    ties: Vec<String>,
    #[serde(default = "yes")]
    used: bool,
}

fn yes() -> bool {
    true
}

fn error(reason: &str) -> ImportError {
    ImportError::Model(format!("metadata property {PROPERTY}: {reason}"))
}

/// Reads the property, where the model has it.
///
/// # Errors
/// It is not of this form, or names a parameter twice.
pub(super) fn read(metadata: &[StringStringEntryProto]) -> Result<Option<Declared>, ImportError> {
    let Some(entry) = metadata.iter().find(|e| e.key.as_deref() == Some(PROPERTY)) else {
        return Ok(None);
    };
    let declared: Declared = serde_json::from_str(entry.value.as_deref().unwrap_or(""))
        .map_err(|e| error(&e.to_string()))?;
    let mut rows: HashMap<&str, &str> = HashMap::new();
    for row in &declared.parameters {
        for name in std::iter::once(&row.name).chain(&row.ties) {
            if rows.insert(name, &row.name).is_some() {
                return Err(error(&format!("it names `{name}` twice")));
            }
        }
    }
    Ok(Some(declared))
}

impl Declared {
    /// What it says of a graph's initializers.
    ///
    /// # Errors
    /// Initializers that are said to be one have other types, or gradients are said to stop at what no
    /// node gives.
    pub(super) fn applied(self, graph: &GraphProto) -> Result<Said, ImportError> {
        let variance = self.bn_variance.map(|of| match of {
            Estimate::Population => Variance::Population,
            Estimate::Unbiased => Variance::Unbiased,
        });
        let given: HashSet<&String> = graph.node.iter().flat_map(|n| &n.output).collect();
        let mut stops = self.stop_gradients.iter().flatten();
        if let Some(stop) = stops.find(|s| !given.contains(s)) {
            return Err(error(&format!("it stops gradients at `{stop}`, which no node gives")));
        }
        let mut said = Said { stops: self.stop_gradients, variance, ..Said::default() };
        let stored: HashMap<&str, _> = floats(graph).map(|t| (name(t), t)).collect();
        said.standing = stored.keys().map(|n| ((*n).to_owned(), Standing::Constant)).collect();
        for row in self.parameters {
            let all = || std::iter::once(&row.name).chain(&row.ties);
            let mut there = all().filter(|n| stored.contains_key(n.as_str()));
            let standing = if row.requires_grad { Standing::Parameter } else { Standing::Fixed };
            let Some(first) = there.next() else {
                if row.used && row.requires_grad {
                    said.lost.push(Lost::new(row.name, Fate::Missing));
                } else {
                    said.unread.push(row.name);
                }
                continue;
            };
            for other in there {
                let (a, b) = (stored[first.as_str()], stored[other.as_str()]);
                if (&a.dims, a.data_type) != (&b.dims, b.data_type) {
                    let reason = format!("`{first}`, which it is tied to, is of another type");
                    return Err(ImportError::Tensor { name: other.clone(), reason });
                }
                said.tied.insert(other.clone(), first.clone());
                said.standing.remove(other);
            }
            said.standing.insert(first.clone(), standing);
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{NodeProto, TensorProto};
    use std::collections::BTreeMap;

    fn said(json: &str, stored: &[&str]) -> Result<Said, ImportError> {
        let text = |s: &str| Some(s.to_owned());
        let property = StringStringEntryProto { key: text(PROPERTY), value: text(json) };
        let tensor = |name: &&str| TensorProto {
            name: text(name),
            data_type: Some(1),
            dims: vec![2],
            ..TensorProto::default()
        };
        let initializer = stored.iter().map(tensor).collect();
        let node = vec![NodeProto { output: vec!["y".to_owned()], ..NodeProto::default() }];
        let graph = GraphProto { initializer, node, ..GraphProto::default() };
        read(&[property])?.unwrap().applied(&graph)
    }

    #[test]
    fn what_is_listed_is_a_parameter_and_all_else_is_not() {
        let json = r#"{"parameters": [{"name": "w"}, {"name": "f", "requires_grad": false},
            {"name": "a", "ties": ["b", "c"], "later": 1}, {"name": "u", "used": false}]}"#;
        let said = said(json, &["w", "f", "b", "c", "k"]).unwrap();
        let of = |name: &str| said.standing.get(name).copied();
        assert_eq!(of("w"), Some(Standing::Parameter));
        assert_eq!(of("f"), Some(Standing::Fixed));
        assert_eq!(of("k"), Some(Standing::Constant));
        assert_eq!((of("b"), of("c")), (Some(Standing::Parameter), None));
        assert_eq!(said.tied, BTreeMap::from([("c".to_owned(), "b".to_owned())]));
        assert_eq!((said.unread, said.lost), (vec!["u".to_owned()], Vec::new()));
    }

    #[test]
    fn stops_and_the_variance_may_be_said() {
        let none = said(r#"{"parameters": []}"#, &[]).unwrap();
        assert_eq!((none.stops, none.variance), (None, None));
        let json = r#"{"parameters": [], "stop_gradients": ["y"], "bn_variance": "unbiased"}"#;
        let both = said(json, &[]).unwrap();
        assert_eq!(both.stops, Some(vec!["y".to_owned()]));
        assert_eq!(both.variance, Some(Variance::Unbiased));
    }

    #[test]
    fn what_is_missing_and_what_is_wrong_is_said() {
        let missing = said(r#"{"parameters": [{"name": "w"}]}"#, &["k"]).unwrap().lost;
        assert_eq!(missing, [Lost::new("w".into(), Fate::Missing)]);
        let wrong = |json: &str| said(json, &[]).err().unwrap().to_string();
        let twice = wrong(r#"{"parameters": [{"name": "w"}, {"name": "v", "ties": ["w"]}]}"#);
        assert!(twice.contains("arenic.parameters: it names `w` twice"), "{twice}");
        let nowhere = wrong(r#"{"parameters": [], "stop_gradients": ["y", "z"]}"#);
        assert!(nowhere.contains("arenic.parameters: it stops gradients at `z`"), "{nowhere}");
        assert!(wrong(r#"{"parameters": [], "bn_variance": "n"}"#).contains("`unbiased`"));
        assert!(wrong("{").contains("arenic.parameters"));
        assert!(wrong(r#"{"parameters": [{}]}"#).contains("`name`"));
    }
}
