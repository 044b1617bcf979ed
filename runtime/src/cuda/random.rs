//! Random operators: each thread draws the four words of one counter, which are the CPU's.

use super::index::index_type;
use super::site::{LaunchSite, Parameter, c_type, literal};
use arenic_ir::DType;
use arenic_ir::op::Rng;
use arenic_ir::op::families::Random;

/// The kernel of a random operator.
pub(super) fn lower(site: &mut LaunchSite, op: Random) {
    match op {
        Random::RandomUniform { low, high, rng, .. } => uniform(site, *low, *high, rng),
        Random::Dropout { rng } => dropout(site, rng),
    }
}

/// The seed of a generator, the run's where it has none of its own.
pub(super) fn seed(rng: &Rng) -> String {
    rng.seed.map_or("draw->seed".into(), |seed| format!("{seed}ull"))
}

/// Text that draws the words of the round's counter `i` for `n` elements.
fn draw(rng: &Rng, n: usize) -> String {
    let (seed, stream) = (seed(rng), rng.stream);
    format!(
        "    const u64 counter = draw->first_counter({n}ull) + i;
    const Philox philox({seed}, {stream}ull, draw->step, counter);\n"
    )
}

fn uniform(site: &mut LaunchSite, low: f32, high: f32, rng: &Rng) {
    let (Some(to), Some(y)) = (site.outputs[0], site.output(0)) else { return };
    let (n, t) = (to.elements(), c_type(to.dtype));
    // Rounding must not reach the upper end.
    let last = match to.dtype {
        DType::F64 if low < high => f64::from(high).next_down(),
        _ if low < high => f64::from(high.next_down()),
        _ => f64::from(low),
    };
    let scale = (f64::from(high) - f64::from(low)) / 4_294_967_296.0;
    let [low, scale, last] = [f64::from(low), scale, last].map(literal);
    let body = format!(
        "{}    Four<{t}> y;
#pragma unroll
    for (u32 k = 0; k < 4; k++) y.at[k] = uniform(philox.word[k], {low}, {scale}, {t}({last}));
    write_four<{n}>(y0, i, y);
",
        draw(rng, n)
    );
    site.for_each(n.div_ceil(4), index_type(n), [y, Parameter::draw()], &body);
}

fn dropout(site: &mut LaunchSite, rng: &Rng) {
    let x = site.inputs[0];
    let (n, t, scalar) = (x.elements(), c_type(x.dtype), c_type(site.inputs[1].dtype));
    // The first thread says what is wrong, with the ratio's bits.
    let mut body = format!(
        "    const Ratio<{scalar}> ratio(x1[0]);
    if (!ratio.fits()) {{
        const i64 bits = reinterpret_cast<const i64&>(ratio.ratio);
        if (i == 0) refuse(refusal, node, DROPOUT_RATIO, bits, 0);
        return;
    }}
    const u64 threshold = ratio.threshold();
{}",
        draw(rng, n)
    );
    let mut parameters = vec![site.input(0), site.input(1), Parameter::draw()];
    parameters.extend(Parameter::refusal());
    if let Some(y) = site.output(0) {
        parameters.push(y);
        body += &format!(
            "    Four<{t}> y = read_four<{n}>(x0, i);
#pragma unroll
    for (u32 k = 0; k < 4; k++) y.at[k] = philox.word[k] >= threshold ? y.at[k] * {t}(ratio.scale) : {t}(0);
    write_four<{n}>(y0, i, y);
"
        );
    }
    if let Some(mask) = site.output(1) {
        parameters.push(mask);
        body += &format!(
            "    Four<uint8_t> mask;
#pragma unroll
    for (u32 k = 0; k < 4; k++) mask.at[k] = philox.word[k] >= threshold;
    write_four<{n}>(y1, i, mask);
"
        );
    }
    site.for_each(n.div_ceil(4), index_type(n), parameters, &body);
}
