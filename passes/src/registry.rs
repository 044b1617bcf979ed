//! From the list of passes to YAML entries, help and dispatch.

use crate::{GraphPass, PlanPass, ProgramPass, Strategy};
use std::sync::Arc;

/// A configured pass, which pipelines share.
#[derive(Clone)]
pub enum Pass {
    /// Rewrites the graph.
    Graph(Arc<dyn GraphPass>),
    /// Establishes facts.
    Plan(Arc<dyn PlanPass>),
    /// Keeps a limit on device memory.
    Strategy(Arc<dyn Strategy>),
    /// Makes or completes the program.
    Program(Arc<dyn ProgramPass>),
}

/// What the list says about a pass.
#[derive(Clone, Debug)]
pub struct PassInfo {
    /// Its name in YAML.
    pub name: &'static str,
    /// `graph`, `plan`, `strategy` or `program`.
    pub level: &'static str,
    /// JSON schema of its options; its `description` is the doc comment.
    pub schema: schemars::Schema,
    /// The head of its source, which says what it does, why it is sound and where it comes from.
    pub head: &'static str,
    /// The case that shows it, as its file.
    pub example: &'static str,
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

/// A pass whose options are within the ranges that its schema states.
pub(crate) fn in_range<T: schemars::JsonSchema + serde::Serialize, E: serde::de::Error>(
    pass: T,
) -> Result<T, E> {
    let schema = schema::<T>();
    let options = serde_json::to_value(&pass).map_err(E::custom)?;
    let stated = |name: &str, bound: &str| {
        schema.get("properties")?.get(name)?.get(bound).and_then(serde_json::Value::as_f64)
    };
    let may_be_null = |name: &str| {
        let ty = schema.get("properties").and_then(|p| p.get(name)?.get("type"));
        ty.and_then(|ty| ty.as_array()).is_some_and(|all| all.iter().any(|ty| ty == "null"))
    };
    for (name, value) in options.as_object().into_iter().flatten() {
        if value.is_null() && may_be_null(name) {
            continue;
        }
        let (least, most) = (stated(name, "minimum"), stated(name, "maximum"));
        // JSON has no infinities and no NaN: they are null.
        let value = value.as_f64().unwrap_or(f64::NAN);
        let fits =
            least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most);
        if !fits {
            let most = most.map_or(String::new(), |most| format!(" and at most {most}"));
            let least = least.unwrap_or(f64::NEG_INFINITY);
            return Err(E::custom(format!("`{name}` must be at least {least}{most}")));
        }
    }
    Ok(pass)
}

/// Turns `graph module::Type, …` into the functions `configure` and `all_passes`. A pass whose source is
/// not `module.rs` has its file behind `in`.
macro_rules! passes {
    ($($level:ident $module:ident :: $ty:ident $(in $file:literal)?),* $(,)?) => {
        /// Every pass, in the order of the list.
        pub fn all_passes() -> Vec<PassInfo> {
            vec![$(PassInfo {
                name: stringify!($module),
                level: stringify!($level),
                schema: crate::registry::schema::<$module::$ty>(),
                head: crate::registry::head!($module $($file)?),
                example: include_str!(
                    concat!("../../tests/", stringify!($module), "/example.ir")
                ),
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
                        .and_then(|pass| crate::registry::in_range(pass.unwrap_or_default()))
                        .map(|pass| crate::registry::wrap!($level, pass)),
                ),)*
                _ => None,
            }
        }
    };
}

/// The head of a pass's source.
macro_rules! head {
    ($module:ident) => {
        crate::registry::head!(@ include_str!(concat!(stringify!($module), ".rs")))
    };
    ($module:ident $file:literal) => {
        crate::registry::head!(@ include_str!($file))
    };
    (@ $source:expr) => {{
        const SOURCE: &str = $source;
        const LEN: usize = crate::explain::head_len(SOURCE);
        static HEAD: [u8; LEN] = crate::explain::first_bytes(SOURCE);
        std::str::from_utf8(&HEAD).unwrap_or_default()
    }};
}

macro_rules! wrap {
    (graph, $pass:expr) => {
        Pass::Graph(std::sync::Arc::new($pass))
    };
    (plan, $pass:expr) => {
        Pass::Plan(std::sync::Arc::new($pass))
    };
    (strategy, $pass:expr) => {
        Pass::Strategy(std::sync::Arc::new($pass))
    };
    (program, $pass:expr) => {
        Pass::Program(std::sync::Arc::new($pass))
    };
}

pub(crate) use {head, passes, wrap};
