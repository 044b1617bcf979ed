//! Recurrences and their gradients, which are written step by step.

use super::{alone, close};
use arenic_ir::op::Activation;
use arenic_ir::{DType, Op, TensorType};

#[test]
fn recurrences_are_read_back_with_close_results() {
    let [t, b, n] = [3, 2, 4];
    let steps = |k: usize| TensorType::new(DType::F64, [t, b, k * n]);
    let state = || TensorType::new(DType::F64, [b, n]);
    let weight = |k: usize| TensorType::new(DType::F64, [k * n, n]);
    let units = |k: usize| TensorType::new(DType::F64, [k * n]);
    for reverse in [false, true] {
        let lstm = || vec![steps(4), weight(4), state(), state()];
        let of_lstm = || vec![steps(4), steps(1), weight(4), state(), steps(1)];
        let gru = || vec![steps(3), weight(3), state()];
        let of_gru = || vec![steps(3), steps(1), weight(3), state(), steps(1)];
        let with = |mut x: Vec<TensorType>, more: &[TensorType]| {
            x.extend_from_slice(more);
            x
        };
        let mut cases = vec![
            (Op::Lstm { reverse }, lstm()),
            (Op::Lstm { reverse }, with(lstm(), &[units(3)])),
            (Op::LstmGrad { reverse, dcells: false }, of_lstm()),
            (Op::LstmGrad { reverse, dcells: false }, with(of_lstm(), &[units(3)])),
            (Op::LstmGrad { reverse, dcells: true }, with(of_lstm(), &[steps(1), units(3)])),
            (Op::Gru { reverse, linear_before_reset: false }, gru()),
            (Op::Gru { reverse, linear_before_reset: true }, with(gru(), &[units(1)])),
            (Op::GruGrad { reverse, linear_before_reset: false }, of_gru()),
            (Op::GruGrad { reverse, linear_before_reset: true }, with(of_gru(), &[steps(1)])),
        ];
        for activation in [Activation::Tanh, Activation::Relu] {
            cases.push((Op::Rnn { reverse, activation }, vec![steps(1), weight(1), state()]));
            let of_rnn = vec![steps(1), weight(1), steps(1)];
            cases.push((Op::RnnGrad { reverse, activation }, of_rnn));
        }
        for (op, inputs) in cases {
            close(&alone(op, &inputs), 1e-12);
        }
    }
}
