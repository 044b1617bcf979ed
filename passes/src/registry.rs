//! From a list of passes to YAML entries, help and dispatch. Each crate that has passes lists them by [`passes!`](crate::passes!).

pub use crate::explain::{first_bytes, head_len};
use crate::pass::{GraphPass, PlanPass, ProgramPass};
use crate::strategy::Strategy;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
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

/// Passes and pipelines that a pipeline's text may name. Whoever reads a text says which: those of this crate
/// ([`Standard`](crate::Standard)), or those of another that adds its own to them.
pub trait PassSet {
    /// Every pass, in the order of the list.
    fn passes(&self) -> Vec<PassInfo>;

    /// The named pipelines: name and YAML. The first is the default.
    fn pipelines(&self) -> Vec<(&'static str, &'static str)>;

    /// Reads the options of the pass `name` from `options`; `None` if no pass has this name.
    fn configure<'de, D: Deserializer<'de>>(
        &self,
        name: &str,
        options: D,
    ) -> Option<Result<Pass, D::Error>>;
}

/// No passes at all, to which [`passes!`](crate::passes!) adds some.
impl PassSet for () {
    fn passes(&self) -> Vec<PassInfo> {
        Vec::new()
    }

    fn pipelines(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    fn configure<'de, D: Deserializer<'de>>(
        &self,
        _: &str,
        _: D,
    ) -> Option<Result<Pass, D::Error>> {
        None
    }
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
pub fn schema<T: JsonSchema>() -> schemars::Schema {
    let settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.with(|s| s.inline_subschemas = true).into_generator().into_root_schema_for::<T>()
}

/// A pass with its options, which must be within the ranges that its schema states.
///
/// # Errors
/// What the reader of the options says, and options out of range.
pub fn configured<'de, T, D>(options: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de> + JsonSchema + Serialize,
    D: Deserializer<'de>,
{
    let pass = Option::<T>::deserialize(options)?.unwrap_or_default();
    let schema = schema::<T>();
    let options = serde_json::to_value(&pass).map_err(D::Error::custom)?;
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
            return Err(D::Error::custom(format!("`{name}` must be at least {least}{most}")));
        }
    }
    Ok(pass)
}

/// Lists the passes of a crate: makes the set of them, a unit struct that implements [`PassSet`](crate::PassSet).
///
/// The set has all passes and pipelines of the one behind `beside`, which is `()` if there are none, the named
/// pipelines behind `pipelines`, and the passes of the list. An entry is `level module::Type`; a pass whose source
/// is not `module.rs` has its file behind `in`. The case that shows a pass is `cases/<module>/example.ir` beside the
/// folder of sources.
#[macro_export]
macro_rules! passes {
    (
        $(#[$doc:meta])*
        pub struct $set:ident beside $base:expr, pipelines $pipelines:expr;
        $($level:ident $module:ident :: $ty:ident $(in $file:literal)?),* $(,)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $set;

        impl $crate::PassSet for $set {
            fn passes(&self) -> Vec<$crate::PassInfo> {
                let mut all = $crate::PassSet::passes(&$base);
                all.extend([$($crate::PassInfo {
                    name: stringify!($module),
                    level: stringify!($level),
                    schema: $crate::registry::schema::<$module::$ty>(),
                    head: $crate::pass_head!($module $($file)?),
                    example: include_str!(
                        concat!("../cases/", stringify!($module), "/example.ir")
                    ),
                }),*]);
                all
            }

            fn pipelines(&self) -> Vec<(&'static str, &'static str)> {
                let mut all = $crate::PassSet::pipelines(&$base);
                all.extend_from_slice($pipelines);
                all
            }

            fn configure<'de, D: serde::Deserializer<'de>>(
                &self,
                name: &str,
                options: D,
            ) -> Option<Result<$crate::Pass, D::Error>> {
                match name {
                    $(stringify!($module) => Some(
                        $crate::registry::configured::<$module::$ty, D>(options)
                            .map(|pass| $crate::wrap_pass!($level, pass)),
                    ),)*
                    _ => $crate::PassSet::configure(&$base, name, options),
                }
            }
        }
    };
}

/// The head of a pass's source.
#[doc(hidden)]
#[macro_export]
macro_rules! pass_head {
    ($module:ident) => {
        $crate::pass_head!(@ include_str!(concat!(stringify!($module), ".rs")))
    };
    ($module:ident $file:literal) => {
        $crate::pass_head!(@ include_str!($file))
    };
    (@ $source:expr) => {{
        const SOURCE: &str = $source;
        const LEN: usize = $crate::registry::head_len(SOURCE);
        static HEAD: [u8; LEN] = $crate::registry::first_bytes(SOURCE);
        std::str::from_utf8(&HEAD).unwrap_or_default()
    }};
}

/// A pass as one of its level.
#[doc(hidden)]
#[macro_export]
macro_rules! wrap_pass {
    (graph, $pass:expr) => {
        $crate::Pass::Graph(std::sync::Arc::new($pass))
    };
    (plan, $pass:expr) => {
        $crate::Pass::Plan(std::sync::Arc::new($pass))
    };
    (strategy, $pass:expr) => {
        $crate::Pass::Strategy(std::sync::Arc::new($pass))
    };
    (program, $pass:expr) => {
        $crate::Pass::Program(std::sync::Arc::new($pass))
    };
}
