//! From the list of passes to YAML entries, help and dispatch.

use crate::{GraphPass, PlanPass, ProgramPass};

/// A configured pass.
pub enum Pass {
    /// Rewrites the graph.
    Graph(Box<dyn GraphPass>),
    /// Establishes facts.
    Plan(Box<dyn PlanPass>),
    /// Makes or completes the program.
    Program(Box<dyn ProgramPass>),
}

/// What the list says about a pass.
#[derive(Clone, Debug)]
pub struct PassInfo {
    /// Its name in YAML.
    pub name: &'static str,
    /// `graph`, `plan` or `program`.
    pub level: &'static str,
    /// JSON schema of its options; its `description` is the doc comment.
    pub schema: schemars::Schema,
}

impl PassInfo {
    /// The first line of the doc comment.
    pub fn help(&self) -> String {
        let description = self.schema.get("description").and_then(|d| d.as_str());
        description.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
    }
}

/// The schema of a pass's options, in one piece.
pub(crate) fn schema<T: schemars::JsonSchema>() -> schemars::Schema {
    let settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.with(|s| s.inline_subschemas = true).into_generator().into_root_schema_for::<T>()
}

/// Turns `graph module::Type, …` into the functions `find` and `all_passes`.
macro_rules! passes {
    ($($level:ident $module:ident :: $ty:ident),* $(,)?) => {
        /// Every pass, in the order of the list.
        pub fn all_passes() -> Vec<PassInfo> {
            vec![$(PassInfo {
                name: stringify!($module),
                level: stringify!($level),
                schema: crate::registry::schema::<$module::$ty>(),
            }),*]
        }

        /// Reads the options of the pass `name` from `options`; `None` where no pass has
        /// this name.
        pub(crate) fn configure<'de, D: serde::Deserializer<'de>>(
            name: &str,
            options: D,
        ) -> Option<Result<Pass, D::Error>> {
            match name {
                $(stringify!($module) => Some(
                    <Option<$module::$ty> as serde::Deserialize>::deserialize(options)
                        .map(|pass| crate::registry::wrap!($level, pass.unwrap_or_default())),
                ),)*
                _ => None,
            }
        }
    };
}

macro_rules! wrap {
    (graph, $pass:expr) => {
        Pass::Graph(Box::new($pass))
    };
    (plan, $pass:expr) => {
        Pass::Plan(Box::new($pass))
    };
    (program, $pass:expr) => {
        Pass::Program(Box::new($pass))
    };
}

pub(crate) use {passes, wrap};
