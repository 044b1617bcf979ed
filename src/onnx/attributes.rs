//! Typed access to a node's attributes.

use super::error::Fault;
use super::proto::{AttributeProto, TensorProto, attribute_proto::AttributeType};

/// The attributes of a node, by the name they have there.
pub(super) type Attributes<'m> = Vec<(&'m str, &'m AttributeProto)>;

/// The kind of an attribute; files of the first IR version do not say it.
pub(super) fn kind(a: &AttributeProto) -> Option<AttributeType> {
    match AttributeType::try_from(a.r#type.unwrap_or_default()) {
        Ok(AttributeType::Undefined) => {}
        Ok(kind) => return Some(kind),
        Err(_) => return None,
    }
    let guesses = [
        (a.f.is_some(), AttributeType::Float),
        (a.i.is_some(), AttributeType::Int),
        (a.s.is_some(), AttributeType::String),
        (a.t.is_some(), AttributeType::Tensor),
        (a.g.is_some(), AttributeType::Graph),
        (!a.floats.is_empty(), AttributeType::Floats),
        (!a.ints.is_empty(), AttributeType::Ints),
        (!a.strings.is_empty(), AttributeType::Strings),
        (!a.graphs.is_empty(), AttributeType::Graphs),
    ];
    guesses.into_iter().find_map(|(set, kind)| set.then_some(kind))
}

/// Access by name and type.
pub(super) struct Access<'a, 'm>(pub(super) &'a Attributes<'m>);

impl<'m> Access<'_, 'm> {
    /// The attribute, which must be of this kind where it is there.
    fn get(&self, name: &str, want: AttributeType) -> Result<Option<&'m AttributeProto>, Fault> {
        let Some(&(_, a)) = self.0.iter().find(|(n, _)| *n == name) else { return Ok(None) };
        match kind(a) {
            Some(is) if is == want => Ok(Some(a)),
            Some(is) => Err(Fault(format!(
                "attribute `{name}` is of type {}, not {}",
                is.as_str_name(),
                want.as_str_name()
            ))),
            // An empty list of the first IR version looks like nothing at all.
            None if matches!(
                want,
                AttributeType::Ints | AttributeType::Floats | AttributeType::Strings
            ) =>
            {
                Ok(Some(a))
            }
            None => Err(Fault(format!("attribute `{name}` has no value"))),
        }
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, Fault> {
        Ok(self.get(name, AttributeType::Int)?.map(|a| a.i.unwrap_or_default()))
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, Fault> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An int that is 0 or 1.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Fault> {
        match self.int(name)? {
            None => Ok(default),
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(Fault(format!("attribute `{name}` is {other}, not 0 or 1"))),
        }
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, Fault> {
        Ok(self.get(name, AttributeType::Float)?.map(|a| a.f.unwrap_or_default()))
    }

    pub(super) fn float_or(&self, name: &str, default: f32) -> Result<f32, Fault> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'m str>, Fault> {
        let stored = self.get(name, AttributeType::String)?;
        stored.map(|a| text(name, a.s.as_deref().unwrap_or_default())).transpose()
    }

    pub(super) fn text_or(&self, name: &str, default: &'m str) -> Result<&'m str, Fault> {
        Ok(self.text(name)?.unwrap_or(default))
    }

    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&'m str>>, Fault> {
        let Some(a) = self.get(name, AttributeType::Strings)? else { return Ok(None) };
        a.strings.iter().map(|s| text(name, s)).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<&'m [i64]>, Fault> {
        Ok(self.get(name, AttributeType::Ints)?.map(|a| a.ints.as_slice()))
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<&'m [f32]>, Fault> {
        Ok(self.get(name, AttributeType::Floats)?.map(|a| a.floats.as_slice()))
    }

    pub(super) fn strings(&self, name: &str) -> Result<Option<Vec<&'m str>>, Fault> {
        let Some(a) = self.get(name, AttributeType::Strings)? else { return Ok(None) };
        let words = a.strings.iter().map(|s| std::str::from_utf8(s));
        let words: Result<_, _> = words.collect();
        words.map(Some).map_err(|_| Fault(format!("attribute `{name}` is no UTF-8 text")))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Option<&'m TensorProto>, Fault> {
        match self.get(name, AttributeType::Tensor)? {
            None => Ok(None),
            Some(a) => match &a.t {
                Some(t) => Ok(Some(t)),
                None => Err(Fault(format!("attribute `{name}` has no value"))),
            },
        }
    }

    /// A choice among words.
    pub(super) fn one_of<T: Copy>(
        &self,
        name: &str,
        default: &'m str,
        choices: &[(&str, T)],
    ) -> Result<T, Fault> {
        let word = self.text_or(name, default)?;
        choices.iter().find(|(w, _)| *w == word).map(|&(_, value)| value).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|&(w, _)| w).collect();
            Fault(format!("attribute `{name}` is `{word}`, not one of {}", words.join(", ")))
        })
    }
}

fn text<'m>(name: &str, bytes: &'m [u8]) -> Result<&'m str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault(format!("attribute `{name}` is no UTF-8 text")))
}
