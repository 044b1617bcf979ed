//! Recurrences and their gradients: one launch or two for each step, with neighbouring threads
//! that share a sum. Equal texts are one kernel; the number of the step is passed.
//!
//! What all threads of a step read was written by a launch before. What is for gradients alone,
//! and nobody reads, takes the place of two steps in scratch or none.

use super::index::constant;
use super::site::{LaunchSite, Parameter, THREADS, c_type};
use arenic_ir::op::families::Recurrent;
use arenic_ir::op::{Activation, Recurrence};

/// The kernels of a recurrence or of its gradient.
pub(super) fn lower(site: &mut LaunchSite, op: Recurrent) {
    let of = op.extents(site.inputs[0]);
    let steps = |reverse: &bool| Steps::new(site, of, *reverse);
    match op {
        Recurrent::Lstm { reverse } => lstm(steps(reverse), site),
        Recurrent::Gru { reverse, linear_before_reset: true } => {
            linear_gru(steps(reverse), site);
        }
        Recurrent::Gru { reverse, linear_before_reset: false } => gru(steps(reverse), site),
        Recurrent::Rnn { reverse, activation } => rnn(steps(reverse), site, *activation),
        Recurrent::LstmGrad { reverse, dcells } => lstm_grad(steps(reverse), site, *dcells),
        Recurrent::GruGrad { reverse, linear_before_reset } => {
            gru_grad(steps(reverse), site, *linear_before_reset);
        }
        Recurrent::RnnGrad { reverse, activation } => {
            rnn_grad(steps(reverse), site, *activation);
        }
    }
}

/// What the texts of one operator's kernels have in common.
#[derive(Clone, Copy)]
struct Steps {
    of: Recurrence,
    ty: &'static str,
    index: &'static str,
    reverse: bool,
}

impl Steps {
    fn new(site: &LaunchSite, of: Recurrence, reverse: bool) -> Steps {
        Steps { of, ty: c_type(site.inputs[0].dtype), index: site.index(), reverse }
    }

    /// Types, the step `t`, counted by `step` from the one that comes first, and `before` it.
    fn forwards(&self) -> String {
        self.head(self.reverse, ["t + 1", "t - 1"])
    }

    /// The same where steps are counted from the one that comes last: `before` is the one behind,
    /// whose gradients are known, and `earlier` the one that comes before.
    fn backwards(&self) -> String {
        let earlier = if self.reverse { "t + 1" } else { "t - 1" };
        let head = self.head(!self.reverse, ["t + 1", "t - 1"]);
        format!("{head}    const Index earlier = {earlier};\n")
    }

    fn head(&self, down: bool, [above, below]: [&str; 2]) -> String {
        let (t, before) = match down {
            true => (format!("{} - Index(step)", constant(self.of.steps - 1)), above),
            false => ("Index(step)".into(), below),
        };
        format!(
            "    typedef {} T;
    typedef {} Index;
    constexpr Index n = {}, state = {};
    const Index t = {t}, before = {before};
",
            self.ty,
            self.index,
            constant(self.of.hidden),
            constant(self.of.state()),
        )
    }

    /// Neighbouring threads that share a sum over the state.
    fn lanes(&self) -> usize {
        (self.of.hidden / 4).next_power_of_two().min(32)
    }

    /// The unit `j` of sequence `b` that some neighbouring threads have, the first of which is
    /// `first`; `dot(row, x)` is a sum over the state in each of them.
    fn units(&self) -> String {
        format!(
            "    constexpr u32 lanes = {};
    const Index unit = (Index(blockIdx.x) * {THREADS}u + threadIdx.x) / lanes;
    const u32 lane = threadIdx.x % lanes;
    const bool live = unit < state, first = live && lane == 0;
    const Index b = unit / n, j = unit % n;
    auto dot = [&](const T* row, const T* x) {{
        auto term = [&](Index k) {{ return row[k] * x[k]; }};
        const T sum = strided<Sum<T>, T, Index>(lane, live ? n : 0, lanes, term);
        return combine_lanes<Sum<T>, lanes>(sum);
    }};
",
            self.lanes()
        )
    }

    /// The unit `j` of sequence `b` that threads above each other have; `total(count, term)` is
    /// a sum in the one of them that is `first`.
    fn columns(&self) -> String {
        let height = if self.of.gates * self.of.hidden >= 64 { 8 } else { 1 };
        format!(
            "    constexpr u32 height = {height}, width = {THREADS} / height;
    const Index unit = Index(blockIdx.x) * width + threadIdx.x % width;
    const bool live = unit < state, first = live && threadIdx.x < width;
    const Index b = unit / n, j = unit % n;
    auto total = [&](Index count, auto term) {{
        const T sum =
            strided<Sum<T>, T, Index>(threadIdx.x / width, live ? count : 0, height, term);
        return combine_columns<Sum<T>, width, height>(sum);
    }};
"
        )
    }

    fn launch_units(&self, site: &mut LaunchSite, step: usize, more: &[Parameter], body: &str) {
        let blocks = (self.of.state() * self.lanes()).div_ceil(THREADS as usize);
        self.launch(site, blocks, step, more, &(self.forwards() + &self.units() + body));
    }

    fn launch_columns(&self, site: &mut LaunchSite, step: usize, more: &[Parameter], body: &str) {
        let height = if self.of.gates * self.of.hidden >= 64 { 8 } else { 1 };
        let blocks = self.of.state().div_ceil(THREADS as usize / height);
        self.launch(site, blocks, step, more, &(self.backwards() + &self.columns() + body));
    }

    fn launch(
        &self,
        site: &mut LaunchSite,
        blocks: usize,
        step: usize,
        more: &[Parameter],
        body: &str,
    ) {
        let mut parameters = site.all_inputs();
        parameters.extend(site.all_outputs());
        parameters.extend(more.iter().cloned());
        parameters.push(Parameter::number("step", step as u64));
        site.launch([blocks, 1, 1], THREADS, parameters, body);
    }

    /// Scratch from a number of states on.
    fn room(&self, site: &LaunchSite, name: &str, states: usize) -> Parameter {
        let size = site.inputs[0].dtype.size();
        Parameter::scratch(self.ty, name, (states * self.of.state()) as u64 * size)
    }
}

/// Where a step's part of result `o` is, and that of the step `before`: states of so many units
/// each. In scratch, of which two are there, where nobody reads the result.
fn places(site: &LaunchSite, o: usize, width: usize, room: &str) -> [String; 2] {
    match site.outputs[o] {
        Some(_) => ["t", "before"].map(|t| format!("y{o} + {t} * {width} * state")),
        None => ["step", "(step + 1)"].map(|s| format!("{room} + {s} % 2 * {width} * state")),
    }
}

/// Stores, where somebody reads result `o`.
fn if_read(site: &LaunchSite, o: usize, statement: &str) -> String {
    if site.outputs[o].is_some() { format!("        {statement}\n") } else { String::new() }
}

fn lstm(s: Steps, site: &mut LaunchSite) {
    let more = [s.room(site, "states", 0), s.room(site, "kept", 2)];
    let [h_now, h_before] = places(site, 0, 1, "states");
    let [c_now, c_before] = match site.outputs[2] {
        Some(_) => places(site, 2, 1, ""),
        None => ["kept".into(), "kept".into()],
    };
    let peephole = |k: usize, c: &str| match site.inputs.get(4) {
        Some(_) => format!(" + x4[{k} * n + j] * {c}"),
        None => String::new(),
    };
    let stored = if_read(
        site,
        1,
        "T* g = y1 + a;
        g[0] = i, g[n] = o, g[2 * n] = f, g[3 * n] = c_hat;",
    );
    let body = format!(
        "    const T* h = (step == 0 ? x2 : {h_before}) + b * n;
    T sums[4];
    for (u32 k = 0; k < 4; k++) sums[k] = dot(x1 + (k * n + j) * n, h);
    if (first) {{
        const Index a = (t * state + b * n) * 4 + j;
        const T c0 = (step == 0 ? x3 : {c_before})[unit];
        const T i = sigmoid_of(x0[a] + sums[0]{});
        const T f = sigmoid_of(x0[a + 2 * n] + sums[2]{});
        const T c_hat = tanh_of(x0[a + 3 * n] + sums[3]);
        const T c = f * c0 + i * c_hat;
        const T o = sigmoid_of(x0[a + n] + sums[1]{});
{stored}        ({c_now})[unit] = c;
        ({h_now})[unit] = o * tanh_of(c);
    }}
",
        peephole(0, "c0"),
        peephole(2, "c0"),
        peephole(1, "c"),
    );
    for step in 0..s.of.steps {
        s.launch_units(site, step, &more, &body);
    }
}

fn linear_gru(s: Steps, site: &mut LaunchSite) {
    let more = [s.room(site, "states", 0)];
    let [now, before] = places(site, 0, 1, "states");
    let stored = if_read(site, 1, "y1[a] = z, y1[a + n] = r, y1[a + 2 * n] = fresh;");
    let body = format!(
        "    const T* h = (step == 0 ? x2 : {before}) + b * n;
    T sums[3];
    for (u32 k = 0; k < 3; k++) sums[k] = dot(x1 + (k * n + j) * n, h);
    if (first) {{
        const Index a = (t * state + b * n) * 3 + j;
        const T z = sigmoid_of(x0[a] + sums[0]), r = sigmoid_of(x0[a + n] + sums[1]);
        const T fresh = tanh_of(x0[a + 2 * n] + r * (sums[2] + x3[j]));
{stored}        ({now})[unit] = (T(1) - z) * fresh + z * h[j];
    }}
"
    );
    for step in 0..s.of.steps {
        s.launch_units(site, step, &more, &body);
    }
}

/// The third gate reads the state that was reset, all of it, so that it takes a launch of its
/// own.
fn gru(s: Steps, site: &mut LaunchSite) {
    let more = [s.room(site, "states", 0), s.room(site, "turned", 2), s.room(site, "kept", 3)];
    let [now, before] = places(site, 0, 1, "states");
    let (z, r) = match site.outputs[1] {
        Some(_) => ("y1[a]", "y1[a + n] = r;"),
        None => ("kept[unit]", ""),
    };
    let gates = format!(
        "    const T* h = (step == 0 ? x2 : {before}) + b * n;
    T sums[2];
    for (u32 k = 0; k < 2; k++) sums[k] = dot(x1 + (k * n + j) * n, h);
    if (first) {{
        const Index a = (t * state + b * n) * 3 + j;
        const T z = sigmoid_of(x0[a] + sums[0]), r = sigmoid_of(x0[a + n] + sums[1]);
        {z} = z;
        {r}
        turned[unit] = r * h[j];
    }}
"
    );
    let stored = if_read(site, 1, "y1[a + 2 * n] = fresh;");
    let states = format!(
        "    const T sum = dot(x1 + (2 * n + j) * n, turned + b * n);
    if (first) {{
        const Index a = (t * state + b * n) * 3 + j;
        const T h = (step == 0 ? x2 : {before})[unit], z = {z};
        const T fresh = tanh_of(x0[a + 2 * n] + sum);
{stored}        ({now})[unit] = (T(1) - z) * fresh + z * h;
    }}
"
    );
    for step in 0..s.of.steps {
        s.launch_units(site, step, &more, &gates);
        s.launch_units(site, step, &more, &states);
    }
}

fn rnn(s: Steps, site: &mut LaunchSite, activation: Activation) {
    let f = match activation {
        Activation::Tanh => "tanh_of(a)",
        Activation::Relu => "larger(a, T(0))",
    };
    let body = format!(
        "    const T sum = dot(x1 + j * n, (step == 0 ? x2 : y0 + before * state) + b * n);
    if (first) {{
        const T a = x0[t * state + unit] + sum;
        y0[t * state + unit] = {f};
    }}
"
    );
    for step in 0..s.of.steps {
        s.launch_units(site, step, &[], &body);
    }
}

fn lstm_grad(s: Steps, site: &mut LaunchSite, has_dcells: bool) {
    let more = [s.room(site, "room", 0), s.room(site, "carry", 8)];
    let [now, behind] = places(site, 0, 4, "room");
    let carried = |behind: &str| {
        format!(
            "    const T* d_behind = {behind} + b * 4 * n;
        carried = total(4 * n, [&](Index k) {{ return d_behind[k] * x2[k * n + j]; }});
"
        )
    };
    let p = 5 + usize::from(has_dcells);
    let peephole = |k: usize, of: &str| match site.inputs.get(p) {
        Some(_) => format!(" + {of} * x{p}[{k} * n + j]"),
        None => String::new(),
    };
    let body = format!(
        "    T carried = T(0);
    if (step > 0) {{
    {carried}    }}
    if (first) {{
        const Index a = (t * state + b * n) * 4 + j, at = t * state + unit;
        const T i = x0[a], o = x0[a + n], f = x0[a + 2 * n], c_hat = x0[a + 3 * n];
        const T c0 = step == {last}u ? x3[unit] : x1[earlier * state + unit];
        const T dh = x4[at] + carried, after = tanh_of(x1[at]);
        const T of_o = dh * after * o * (T(1) - o);
        const T dc = {dcells}(step > 0 ? carry[unit] : T(0)) + dh * o * (T(1) - after * after){po};
        const T of_i = dc * c_hat * i * (T(1) - i);
        const T of_f = dc * c0 * f * (T(1) - f);
        T* d = {now} + b * 4 * n + j;
        d[0] = of_i, d[n] = of_o, d[2 * n] = of_f;
        d[3 * n] = dc * i * (T(1) - c_hat * c_hat);
        carry[unit] = dc * f{pi}{pf};
    }}
",
        carried = carried(&behind),
        last = s.of.steps - 1,
        dcells = if has_dcells { "x5[at] + " } else { "" },
        po = peephole(1, "of_o"),
        pi = peephole(0, "of_i"),
        pf = peephole(2, "of_f"),
    );
    for step in 0..s.of.steps {
        s.launch_columns(site, step, &more, &body);
    }
    if site.outputs[1].is_some() || site.outputs[2].is_some() {
        let body = format!(
            "    T carried;
    {}    if (first) {{
{}{}    }}
",
            carried(&behind),
            if_read(site, 1, "y1[unit] = carried;"),
            if_read(site, 2, "y2[unit] = carry[unit];"),
        );
        s.launch_columns(site, s.of.steps, &more, &body);
    }
}

fn gru_grad(s: Steps, site: &mut LaunchSite, linear: bool) {
    let more = [s.room(site, "room", 0), s.room(site, "carry", 6), s.room(site, "product", 7)];
    let [now, behind] = places(site, 0, 3, "room");
    // What the gates of the step behind give to the state: of the third one only where its
    // product was reset, else it did so with the reset gate's.
    let (count, factor) = match linear {
        true => ("3 * n", "k < 2 * n ? d_behind[k] : of_product[k - 2 * n]"),
        false => ("2 * n", "d_behind[k]"),
    };
    let carried = format!(
        "        const T* d_behind = {behind} + b * 3 * n;
        const T* of_product = product + (step + 1) % 2 * state + b * n;
        auto term = [&](Index k) {{ return ({factor}) * x2[k * n + j]; }};
        carried = total({count}, term);
        if (first) carried += carry[unit];
"
    );
    let rest = match linear {
        true => {
            "        const T r = x0[a + n];
        d[n] = of_fresh * x5[t * state + unit] * r * (T(1) - r);
        product[step % 2 * state + unit] = of_fresh * r;
"
        }
        false => "",
    };
    let h = format!("(step == {}u ? x3[unit] : x1[earlier * state + unit])", s.of.steps - 1);
    let gates = format!(
        "    T carried = T(0);
    if (step > 0) {{
{carried}    }}
    if (first) {{
        const Index a = (t * state + b * n) * 3 + j;
        const T z = x0[a], fresh = x0[a + 2 * n], h = {h};
        const T dh = x4[t * state + unit] + carried;
        const T of_fresh = dh * (T(1) - z) * (T(1) - fresh * fresh);
        T* d = {now} + b * 3 * n + j;
{rest}        d[0] = dh * (h - fresh) * z * (T(1) - z);
        d[2 * n] = of_fresh;
        carry[unit] = dh * z;
    }}
"
    );
    let reset = format!(
        "    T* d = {now} + b * 3 * n;
    auto term = [&](Index k) {{ return d[2 * n + k] * x2[(2 * n + k) * n + j]; }};
    const T of_turned = total(n, term);
    if (first) {{
        const T r = x0[(t * state + b * n) * 3 + n + j], h = {h};
        d[n + j] = of_turned * h * r * (T(1) - r);
        carry[unit] += of_turned * r;
    }}
"
    );
    for step in 0..s.of.steps {
        s.launch_columns(site, step, &more, &gates);
        if !linear {
            s.launch_columns(site, step, &more, &reset);
        }
    }
    if site.outputs[1].is_some() {
        let body = format!("    T carried;\n{carried}    if (first) y1[unit] = carried;\n");
        s.launch_columns(site, s.of.steps, &more, &body);
    }
}

fn rnn_grad(s: Steps, site: &mut LaunchSite, activation: Activation) {
    let more = [s.room(site, "room", 0)];
    let [now, behind] = places(site, 0, 1, "room");
    let carried = format!(
        "        const T* d_behind = {behind} + b * n;
        carried = total(n, [&](Index k) {{ return d_behind[k] * x1[k * n + j]; }});
"
    );
    let slope = match activation {
        Activation::Tanh => "d * (T(1) - y * y)",
        Activation::Relu => "y > T(0) ? d : T(0)",
    };
    let body = format!(
        "    T carried = T(0);
    if (step > 0) {{
{carried}    }}
    if (first) {{
        const T y = x0[t * state + unit], d = x2[t * state + unit] + carried;
        ({now})[unit] = {slope};
    }}
"
    );
    for step in 0..s.of.steps {
        s.launch_columns(site, step, &more, &body);
    }
    if site.outputs[1].is_some() {
        let body = format!("    T carried;\n{carried}    if (first) y1[unit] = carried;\n");
        s.launch_columns(site, s.of.steps, &more, &body);
    }
}
