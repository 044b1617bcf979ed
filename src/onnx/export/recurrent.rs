//! Recurrences and their gradients, step by step.
//!
//! ONNX's own operators begin with the product of their input, which is a node of its own here,
//! and give neither gates nor the cells of every step. So each step is written as the arithmetic
//! that it is.

use super::ops::gemm;
use super::writer::{Tensor, Writer, int};
use arenic_ir::DType;
use arenic_ir::op::{Activation, Recurrence};

/// The sum of two tensors, of which one may not be there.
type Carried = Option<String>;

impl Writer<'_> {
    /// A step of what has all steps.
    fn step(&mut self, x: &Tensor, t: usize) -> String {
        let t = self.scalar(DType::I64, t as f64);
        self.one("Gather", &[&x.name, &t], vec![int("axis", 0)])
    }

    /// What is before a step: that of the step before, or `initial`.
    fn before(&mut self, all: &Tensor, initial: &Tensor, step: Option<usize>) -> String {
        match step {
            Some(t) => self.step(all, t),
            None => initial.name.clone(),
        }
    }

    /// All steps, in the order in which they were made.
    fn stacked_into(&mut self, mut steps: Vec<String>, backwards: bool, y: &str) {
        if backwards {
            steps.reverse();
        }
        let axes = self.list(&[0]);
        let parts: Vec<String> =
            steps.iter().map(|s| self.one("Unsqueeze", &[s, &axes], vec![])).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node_into("Concat", &parts, vec![y.to_owned()], vec![int("axis", 0)]);
    }

    /// Equal parts along an axis.
    fn split<const K: usize>(&mut self, x: &str, extent: usize, axis: i64) -> [String; K] {
        let sizes = self.list(&[extent as i64; K]);
        let parts: [String; K] = std::array::from_fn(|_| self.temporary());
        self.node_into("Split", &[x, &sizes], parts.to_vec(), vec![int("axis", axis)]);
        parts
    }

    /// `a · bᵀ + c`.
    fn affine(&mut self, a: &str, b: &str, c: &str) -> String {
        self.one("Gemm", &[a, b, c], gemm(1.0, 1.0, false, true))
    }

    fn plus(&mut self, a: &str, b: &Carried) -> String {
        b.as_ref().map_or_else(|| a.to_owned(), |b| self.both("Add", a, b))
    }

    fn of(&mut self, f: &str, x: &str) -> String {
        self.one(f, &[x], vec![])
    }

    /// `1 − x`.
    fn rest(&mut self, x: &str, dtype: DType) -> String {
        let one = self.scalar(dtype, 1.0);
        self.both("Sub", &one, x)
    }

    /// `d · y · (1 − y)`.
    fn of_sigmoid(&mut self, d: &str, y: &str, dtype: DType) -> String {
        let (product, rest) = (self.both("Mul", d, y), self.rest(y, dtype));
        self.both("Mul", &product, &rest)
    }

    /// `d · (1 − y²)`.
    fn of_tanh(&mut self, d: &str, y: &str, dtype: DType) -> String {
        let square = self.both("Mul", y, y);
        let rest = self.rest(&square, dtype);
        self.both("Mul", d, &rest)
    }

    fn joined(&mut self, parts: &[&String]) -> String {
        let parts: Vec<&str> = parts.iter().map(|p| p.as_str()).collect();
        self.one("Concat", &parts, vec![int("axis", 1)])
    }

    pub(super) fn lstm(&mut self, reverse: bool, x: &[Tensor], y: &[String]) {
        let of = Recurrence::new(4, &x[0].ty);
        let n = of.hidden;
        let peepholes: Option<[String; 3]> = x.get(4).map(|p| self.split(&p.name, n, 0));
        let (mut h, mut c) = (x[2].name.clone(), x[3].name.clone());
        let mut all: [Vec<String>; 3] = Default::default();
        for t in of.order(reverse) {
            let pre = self.step(&x[0], t);
            let sums = self.affine(&h, &x[1].name, &pre);
            let [mut i, mut o, mut f, g] = self.split(&sums, n, 1);
            if let Some([of_i, _, of_f]) = &peepholes {
                for (gate, p) in [(&mut i, of_i), (&mut f, of_f)] {
                    let product = self.both("Mul", p, &c);
                    *gate = self.both("Add", gate, &product);
                }
            }
            let (i_, f_, g_) =
                (self.of("Sigmoid", &i), self.of("Sigmoid", &f), self.of("Tanh", &g));
            let (kept, new) = (self.both("Mul", &f_, &c), self.both("Mul", &i_, &g_));
            c = self.both("Add", &kept, &new);
            if let Some([_, of_o, _]) = &peepholes {
                let product = self.both("Mul", of_o, &c);
                o = self.both("Add", &o, &product);
            }
            let o_ = self.of("Sigmoid", &o);
            let seen = self.of("Tanh", &c);
            h = self.both("Mul", &o_, &seen);
            let gates = self.joined(&[&i_, &o_, &f_, &g_]);
            for (steps, step) in all.iter_mut().zip([&h, &gates, &c]) {
                steps.push(step.clone());
            }
        }
        for (steps, y) in all.into_iter().zip(y) {
            self.stacked_into(steps, reverse, y);
        }
    }

    pub(super) fn lstm_grad(
        &mut self,
        reverse: bool,
        has_dcells: bool,
        x: &[Tensor],
        y: &[String],
    ) {
        let of = Recurrence::new(4, &x[0].ty);
        let (n, dtype) = (of.hidden, x[0].ty.dtype);
        let peephole = x.get(5 + usize::from(has_dcells));
        let peepholes: Option<[String; 3]> = peephole.map(|p| self.split(&p.name, n, 0));
        let (mut carried_h, mut carried_c): (Carried, Carried) = (None, None);
        let mut steps = Vec::new();
        let mut order = of.order(reverse).rev().peekable();
        while let Some(t) = order.next() {
            let gates = self.step(&x[0], t);
            let [i, o, f, g] = self.split(&gates, n, 1);
            let (c, dy) = (self.step(&x[1], t), self.step(&x[4], t));
            let earlier = self.before(&x[1], &x[3], order.peek().copied());
            let dh = self.plus(&dy, &carried_h);
            let seen = self.of("Tanh", &c);
            let d = self.both("Mul", &dh, &seen);
            let of_o = self.of_sigmoid(&d, &o, dtype);
            let d = self.both("Mul", &dh, &o);
            let d = self.of_tanh(&d, &seen, dtype);
            let mut dc = self.plus(&d, &carried_c);
            if has_dcells {
                let more = self.step(&x[5], t);
                dc = self.both("Add", &dc, &more);
            }
            if let Some([_, p, _]) = &peepholes {
                let more = self.both("Mul", &of_o, p);
                dc = self.both("Add", &dc, &more);
            }
            let d = self.both("Mul", &dc, &g);
            let of_i = self.of_sigmoid(&d, &i, dtype);
            let d = self.both("Mul", &dc, &earlier);
            let of_f = self.of_sigmoid(&d, &f, dtype);
            let d = self.both("Mul", &dc, &i);
            let of_g = self.of_tanh(&d, &g, dtype);
            let d = self.joined(&[&of_i, &of_o, &of_f, &of_g]);
            let mut back = self.both("Mul", &dc, &f);
            if let Some([p_i, _, p_f]) = &peepholes {
                for (d, p) in [(&of_i, p_i), (&of_f, p_f)] {
                    let more = self.both("Mul", d, p);
                    back = self.both("Add", &back, &more);
                }
            }
            carried_c = Some(back);
            carried_h = Some(self.both("MatMul", &d, &x[2].name));
            steps.push(d);
        }
        self.stacked_into(steps, !reverse, &y[0]);
        for (carried, y) in [carried_h, carried_c].into_iter().flatten().zip(&y[1..]) {
            self.node_into("Identity", &[&carried], vec![y.clone()], vec![]);
        }
    }

    pub(super) fn gru(&mut self, reverse: bool, linear: bool, x: &[Tensor], y: &[String]) {
        let of = Recurrence::new(3, &x[0].ty);
        let (n, dtype) = (of.hidden, x[0].ty.dtype);
        let [of_z, of_r, of_hidden]: [String; 3] = self.split(&x[1].name, n, 0);
        let mut h = x[2].name.clone();
        let (mut states, mut kept) = (Vec::new(), Vec::new());
        for t in of.order(reverse) {
            let pre = self.step(&x[0], t);
            let [z, r, hidden] = self.split(&pre, n, 1);
            let (z, r) = (self.affine(&h, &of_z, &z), self.affine(&h, &of_r, &r));
            let (z, r) = (self.of("Sigmoid", &z), self.of("Sigmoid", &r));
            let sum = if linear {
                let product = self.affine(&h, &of_hidden, &x[3].name);
                let turned = self.both("Mul", &r, &product);
                self.both("Add", &hidden, &turned)
            } else {
                let turned = self.both("Mul", &r, &h);
                self.affine(&turned, &of_hidden, &hidden)
            };
            let new = self.of("Tanh", &sum);
            let share = self.rest(&z, dtype);
            let (fresh, old) = (self.both("Mul", &share, &new), self.both("Mul", &z, &h));
            h = self.both("Add", &fresh, &old);
            states.push(h.clone());
            kept.push(self.joined(&[&z, &r, &new]));
        }
        self.stacked_into(states, reverse, &y[0]);
        self.stacked_into(kept, reverse, &y[1]);
    }

    pub(super) fn gru_grad(&mut self, reverse: bool, linear: bool, x: &[Tensor], y: &[String]) {
        let of = Recurrence::new(3, &x[0].ty);
        let (n, dtype) = (of.hidden, x[0].ty.dtype);
        let [of_z, of_r, of_hidden]: [String; 3] = self.split(&x[2].name, n, 0);
        let mut carried: Carried = None;
        let mut steps = Vec::new();
        let mut order = of.order(reverse).rev().peekable();
        while let Some(t) = order.next() {
            let gates = self.step(&x[0], t);
            let [z, r, new] = self.split(&gates, n, 1);
            let dy = self.step(&x[4], t);
            let h = self.before(&x[1], &x[3], order.peek().copied());
            let dh = self.plus(&dy, &carried);
            let apart = self.both("Sub", &h, &new);
            let d = self.both("Mul", &dh, &apart);
            let d_z = self.of_sigmoid(&d, &z, dtype);
            let share = self.rest(&z, dtype);
            let d = self.both("Mul", &dh, &share);
            let d_new = self.of_tanh(&d, &new, dtype);
            let kept = self.both("Mul", &dh, &z);
            let (of_reset, back) = if linear {
                let m = self.step(&x[5], t);
                let turned = self.both("Mul", &d_new, &r);
                (self.both("Mul", &d_new, &m), self.both("MatMul", &turned, &of_hidden))
            } else {
                let turned = self.both("MatMul", &d_new, &of_hidden);
                (self.both("Mul", &turned, &h), self.both("Mul", &turned, &r))
            };
            let d_r = self.of_sigmoid(&of_reset, &r, dtype);
            let mut sum = self.both("Add", &kept, &back);
            for (d, weight) in [(&d_z, &of_z), (&d_r, &of_r)] {
                let product = self.both("MatMul", d, weight);
                sum = self.both("Add", &sum, &product);
            }
            carried = Some(sum);
            steps.push(self.joined(&[&d_z, &d_r, &d_new]));
        }
        self.stacked_into(steps, !reverse, &y[0]);
        if let Some(carried) = carried {
            self.node_into("Identity", &[&carried], vec![y[1].clone()], vec![]);
        }
    }

    pub(super) fn rnn(&mut self, reverse: bool, activation: Activation, x: &[Tensor], y: &str) {
        let of = Recurrence::new(1, &x[0].ty);
        let f = match activation {
            Activation::Tanh => "Tanh",
            Activation::Relu => "Relu",
        };
        let mut h = x[2].name.clone();
        let mut steps = Vec::new();
        for t in of.order(reverse) {
            let pre = self.step(&x[0], t);
            let sum = self.affine(&h, &x[1].name, &pre);
            h = self.of(f, &sum);
            steps.push(h.clone());
        }
        self.stacked_into(steps, reverse, y);
    }

    pub(super) fn rnn_grad(
        &mut self,
        reverse: bool,
        activation: Activation,
        x: &[Tensor],
        y: &[String],
    ) {
        let of = Recurrence::new(1, &x[0].ty);
        let dtype = x[0].ty.dtype;
        let mut carried: Carried = None;
        let mut steps = Vec::new();
        for t in of.order(reverse).rev() {
            let (state, dy) = (self.step(&x[0], t), self.step(&x[2], t));
            let dh = self.plus(&dy, &carried);
            let d = match activation {
                Activation::Tanh => self.of_tanh(&dh, &state, dtype),
                Activation::Relu => {
                    let zero = self.scalar(dtype, 0.0);
                    let passes = self.both("Greater", &state, &zero);
                    self.one("Where", &[&passes, &dh, &zero], vec![])
                }
            };
            carried = Some(self.both("MatMul", &d, &x[1].name));
            steps.push(d);
        }
        self.stacked_into(steps, !reverse, &y[0]);
        if let Some(carried) = carried {
            self.node_into("Identity", &[&carried], vec![y[1].clone()], vec![]);
        }
    }
}
