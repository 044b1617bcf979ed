//! Updates of one parameter: one pass over it, its gradient and its moments.
//!
//! Every step rounds as on the CPU. The rate of a step, which takes powers in double, is
//! computed once per block. An element's operands are read before its results are written, so
//! results may take operands' places.

use super::index::{constant, index_type};
use super::site::{LaunchSite, THREADS, c_type, literal};
use arenic_ir::op::families;
use std::fmt::Write;

/// Elements of a block: enough that what it computes first does not count.
const BLOCK: usize = 4096;

/// The kernel of an update.
pub(super) fn lower(site: &mut LaunchSite, op: families::Update) {
    let x = site.inputs[2];
    let (t, n, index) = (c_type(x.dtype), x.elements(), index_type(x.elements()));
    let update = Update::of(op);
    let mut parameters = site.all_inputs();
    parameters.extend(site.all_outputs());
    let mut body = String::from("    __shared__ double rate;\n");
    // Writing to a string does not fail.
    let _ = writeln!(
        body,
        "    const i64 count = x1[0];
    if (threadIdx.x == 0) {{
        const double given = x0[0];
        rate = {};
    }}
    __syncthreads();",
        update.rate
    );
    body.push_str(&update.constants(t, "rate"));
    let _ = writeln!(
        body,
        "    const {index} first = {index}(blockIdx.x) * {BLOCK}u + threadIdx.x;
#pragma unroll 4
    for (u32 k = 0; k < {BLOCK}u; k += {THREADS}u) {{
        const {index} i = first + k;
        if (i >= {}) return;",
        constant(n)
    );
    body.push_str(&update.element(site, t, |operand| format!("x{operand}[i]")));
    body.push_str("    }\n");
    site.launch([n.div_ceil(BLOCK), 1, 1], THREADS, parameters, body);
}

/// An update as text.
pub(super) struct Update {
    /// Attributes, which are constants of the parameter's type.
    constants: Vec<(&'static str, String)>,
    /// The rate in double, from the one that is `given` and `count`.
    rate: String,
    /// Names of an element's operands, from the third on.
    operands: &'static [&'static str],
    /// What is computed of them.
    step: Vec<(&'static str, &'static str)>,
    /// The results.
    results: &'static [&'static str],
}

impl Update {
    /// Statements that name the rate of a step and the attributes. The rate in double is the
    /// expression `rate`.
    fn constants(&self, t: &str, rate: &str) -> String {
        let mut text = format!("    const {t} lr = {t}({rate});\n");
        for (name, value) in &self.constants {
            let _ = writeln!(text, "    const {t} {name} = {t}({value});");
        }
        text
    }

    /// The same where operands `lr` and `count` are not the first ones.
    pub(super) fn setup(&self, t: &str, [lr, count]: [&str; 2]) -> String {
        let mut text = format!("    const double given = {lr};\n    const i64 count = {count};\n");
        text.push_str(&self.constants(t, &self.rate));
        text
    }

    /// Statements that update element `i`; `operand` says where one of it comes from.
    pub(super) fn element(
        &self,
        site: &LaunchSite,
        t: &str,
        operand: impl Fn(usize) -> String,
    ) -> String {
        let mut text = String::new();
        for (name, i) in self.operands.iter().zip(2..) {
            let _ = writeln!(text, "        const {t} {name} = {};", operand(i));
        }
        for (name, value) in &self.step {
            let _ = writeln!(text, "        const {t} {name} = {value};");
        }
        for (o, value) in self.results.iter().enumerate() {
            if site.outputs[o].is_some() {
                let _ = writeln!(text, "        y{o}[i] = {value};");
            }
        }
        text
    }

    /// The text of an update.
    pub(super) fn of(op: families::Update) -> Update {
        let double = |x: f32| f64::from(x);
        // The gradient of the norm of the parameter is added to the gradient.
        let gradient = ("g", "norm * x + d");
        match op {
            families::Update::Adam {
                alpha,
                beta,
                epsilon,
                norm_coefficient,
                norm_coefficient_post,
            } => {
                let [a, b] = [alpha, beta].map(|x| literal(double(*x)));
                Update {
                    constants: constants([
                        ("alpha", double(*alpha)),
                        ("beta", double(*beta)),
                        ("alpha1", 1.0 - double(*alpha)),
                        ("beta1", 1.0 - double(*beta)),
                        ("epsilon", double(*epsilon)),
                        ("norm", double(*norm_coefficient)),
                        ("shrink", 1.0 - double(*norm_coefficient_post)),
                    ]),
                    // Bias correction starts with the first counted step.
                    rate: format!(
                        "count > 0 ? given * sqrt(1.0 - pow({b}, double(count))) / (1.0 - pow({a}, double(count))) : given"
                    ),
                    operands: &["x", "d", "v", "h"],
                    step: vec![
                        gradient,
                        ("v1", "alpha * v + alpha1 * g"),
                        ("h1", "beta * h + beta1 * (g * g)"),
                        ("next", "x - lr * (v1 / (sqrt_of(h1) + epsilon))"),
                    ],
                    results: &["shrink * next", "v1", "h1"],
                }
            }
            families::Update::Adagrad { decay_factor, epsilon, norm_coefficient } => Update {
                constants: constants([
                    ("epsilon", double(*epsilon)),
                    ("norm", double(*norm_coefficient)),
                ]),
                rate: format!("given / (1.0 + double(count) * {})", literal(double(*decay_factor))),
                operands: &["x", "d", "h"],
                step: vec![gradient, ("h1", "h + g * g")],
                results: &["x - lr * g / (sqrt_of(h1) + epsilon)", "h1"],
            },
            families::Update::Momentum { alpha, beta, nesterov, norm_coefficient } => {
                let mut all =
                    constants([("alpha", double(*alpha)), ("norm", double(*norm_coefficient))]);
                // The first gradient counts in full.
                all.push(("beta", format!("count > 0 ? {} : 1.0", literal(double(*beta)))));
                Update {
                    constants: all,
                    rate: "given".into(),
                    operands: &["x", "d", "v"],
                    step: vec![gradient, ("v1", "alpha * v + beta * g")],
                    results: match nesterov {
                        true => &["x - lr * (g + alpha * v1)", "v1"],
                        false => &["x - lr * v1", "v1"],
                    },
                }
            }
        }
    }
}

fn constants<const N: usize>(of: [(&'static str, f64); N]) -> Vec<(&'static str, String)> {
    of.map(|(name, value)| (name, literal(value))).into()
}
