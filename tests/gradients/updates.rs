//! Optimizers and schedules against their formulas, in double precision over several steps.

use super::*;
use arenic_passes::differentiate::{Decay, LrSchedule, Optimizer};

const STEPS: usize = 6;
const RATE: f64 = 0.125;

/// The loss `½ Σ c x²`, whose gradient is `c x`.
fn quadratic(start: &[f64], c: &[f64]) -> Graph {
    let mut g = Graph::default();
    let ty = TensorType::new(DType::F64, [start.len()]);
    let state = g.add_state("x", ty.clone(), Some(Data::Bytes(doubles(start).into())));
    let x = g.states[state].enter;
    let c: Vec<f64> = c.iter().map(|c| c / 2.0).collect();
    let c = g.add_const("", ty, Data::Bytes(doubles(&c).into()));
    let node = |g: &mut Graph, op, x| {
        let n = g.add_node("", op, x).unwrap();
        g.result(n).unwrap()
    };
    let square = node(&mut g, Op::Binary { f: Binary::Mul }, vec![x, x]);
    let each = node(&mut g, Op::Binary { f: Binary::Mul }, vec![square, c]);
    let sum = Op::Reduce { f: Reduction::Sum, axes: vec![0], keep: false };
    let y = node(&mut g, sum, vec![each]);
    g.outputs.push(Output { name: "y".into(), value: y });
    g
}

/// Trains by the pass, and by `formula`, which updates `x` by its gradient in step `t` (from 1).
fn holds(pass: Differentiate, mut formula: impl FnMut(usize, &mut [f64], &[f64])) {
    let (start, c) = ([1.5, -2.0, 0.75], [1.0, 0.5, 3.0]);
    let mut g = quadratic(&start, &c);
    let pass = Differentiate { loss: "y".into(), ..pass };
    pass.run(&mut g, &Cx::new(CPU.target())).unwrap();
    verify(&g).unwrap();
    let mut reference = Reference::new(&g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for state in g.states.values() {
        let init = state.init.as_ref().and_then(Data::bytes).unwrap();
        reference.value_mut(state.enter).unwrap().copy_from_slice(init);
    }
    for v in g.inputs() {
        reference.value_mut(v).unwrap().copy_from_slice(&(RATE as f32).to_le_bytes());
    }
    let x = g.states.values().find(|s| s.name == "x").unwrap().enter;
    let mut expected = start;
    for t in 1..=STEPS {
        let gradient: Vec<f64> = expected.iter().zip(&c).map(|(x, c)| x * c).collect();
        formula(t, &mut expected, &gradient);
        reference.step(Draw::default()).unwrap();
        for (a, b) in numbers(reference.value(x)).iter().zip(&expected) {
            assert!((a - b).abs() < 1e-12, "{:?}, step {t}: {a}, not {b}", pass.optimizer);
        }
    }
}

fn with(optimizer: Optimizer) -> Differentiate {
    Differentiate { optimizer, ..Differentiate::default() }
}

#[test]
fn descent() {
    holds(with(Optimizer::Sgd), |_, x, g| {
        x.iter_mut().zip(g).for_each(|(x, g)| *x -= RATE * g);
    });
    let decayed = Differentiate { weight_decay: Some(0.25), ..with(Optimizer::Sgd) };
    holds(decayed, |_, x, g| {
        x.iter_mut().zip(g).for_each(|(x, g)| *x -= RATE * (g + 0.25 * *x));
    });
    for nesterov in [false, true] {
        let mut v = [0.0; 3];
        let pass = Differentiate { momentum: Some(0.8), nesterov, ..with(Optimizer::Momentum) };
        holds(pass, |_, x, g| {
            for i in 0..3 {
                v[i] = 0.8 * v[i] + g[i];
                x[i] -= RATE * if nesterov { g[i] + 0.8 * v[i] } else { v[i] };
            }
        });
    }
}

#[test]
fn moments() {
    for (optimizer, decay) in
        [(Optimizer::Adam, 0.0), (Optimizer::Adam, 0.5), (Optimizer::Adamw, 0.5)]
    {
        let (mut m, mut v) = ([0.0; 3], [0.0; 3]);
        let pass = Differentiate {
            weight_decay: Some(decay),
            beta1: Some(0.75),
            epsilon: Some(0.01),
            ..with(optimizer)
        };
        holds(pass, |t, x, g| {
            for i in 0..3 {
                let mut g = g[i];
                if optimizer == Optimizer::Adamw {
                    x[i] *= 1.0 - RATE * decay;
                } else {
                    g += decay * x[i];
                }
                m[i] = 0.75 * m[i] + 0.25 * g;
                v[i] = 0.999 * v[i] + 0.001 * g * g;
                let first = m[i] / (1.0 - 0.75f64.powi(t as i32));
                let second = v[i] / (1.0 - 0.999f64.powi(t as i32));
                x[i] -= RATE * first / (second.sqrt() + 0.01);
            }
        });
    }
    let mut v = [0.0; 3];
    holds(with(Optimizer::Adagrad), |_, x, g| {
        for i in 0..3 {
            v[i] += g[i] * g[i];
            x[i] -= RATE * g[i] / (v[i].sqrt() + 1e-10);
        }
    });
    let mut v = [0.0; 3];
    holds(with(Optimizer::Rmsprop), |_, x, g| {
        for i in 0..3 {
            v[i] = 0.99 * v[i] + 0.01 * g[i] * g[i];
            x[i] -= RATE * g[i] / (v[i].sqrt() + 1e-8);
        }
    });
    let mut m = [0.0f64; 3];
    holds(with(Optimizer::Lion), |_, x, g| {
        for i in 0..3 {
            x[i] -= RATE * (0.9 * m[i] + 0.1 * g[i]).signum();
            m[i] = 0.99 * m[i] + 0.01 * g[i];
        }
    });
}

#[test]
fn decay_of_some() {
    let rule = |of: &str, is| Decay { of: of.parse().unwrap(), is };
    let decay = vec![rule("*", 0.5), rule("x", 0.25)];
    let pass = Differentiate { weight_decay: Some(1.0), decay, ..with(Optimizer::Sgd) };
    holds(pass, |_, x, g| {
        x.iter_mut().zip(g).for_each(|(x, g)| *x -= RATE * (g + 0.25 * *x));
    });
}

#[test]
fn clipped() {
    let pass = Differentiate { clip_norm: Some(0.5), ..with(Optimizer::Sgd) };
    holds(pass, |_, x, g| {
        let norm = g.iter().map(|g| g * g).sum::<f64>().sqrt();
        let factor = (0.5 / (norm + 1e-6)).min(1.0);
        x.iter_mut().zip(g).for_each(|(x, g)| *x -= RATE * factor * g);
    });
}

#[test]
fn schedules() {
    let descent = |pass: Differentiate, factor: &dyn Fn(f64) -> f64| {
        holds(pass, |t, x, g| {
            let rate = RATE * factor((t - 1) as f64);
            x.iter_mut().zip(g).for_each(|(x, g)| *x -= rate * g);
        });
    };
    let of = |lr_schedule| Differentiate { lr_schedule, ..with(Optimizer::Sgd) };
    let warm = |k: f64, rest: f64| if k < 2.0 { (k + 1.0) / 2.0 } else { rest };
    let decaying = |s| Differentiate { warmup_steps: 2, total_steps: Some(5), ..of(s) };
    let done = |k: f64| ((k - 2.0) / 3.0).clamp(0.0, 1.0);
    descent(decaying(LrSchedule::Cosine), &|k| {
        warm(k, 0.5 * (1.0 + (std::f64::consts::PI * done(k)).cos()))
    });
    descent(decaying(LrSchedule::Linear), &|k| warm(k, 1.0 - done(k)));
    let stepped =
        Differentiate { lr_step_size: Some(2), lr_gamma: Some(0.5), ..of(LrSchedule::Step) };
    descent(stepped, &|k| 0.5f64.powi((k / 2.0).floor() as i32));
    let rising = Differentiate { warmup_steps: 4, ..of(LrSchedule::Constant) };
    descent(rising, &|k| ((k + 1.0) / 4.0).min(1.0));
}
