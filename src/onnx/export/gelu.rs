//! Products with a GELU in its tanh form, or with its slope: the arithmetic of the kernels, step
//! by step.

use super::ops::gemm;
use super::writer::{Tensor, Writer};
use arenic_ir::DType;
use arenic_ir::op::gelu::{CUBIC, SCALE};

impl Writer<'_> {
    /// `z = a' b' + bias`, then `½ z (1 + t)`.
    pub(super) fn gemm_gelu(&mut self, x: &[Tensor], y: &[String], trans: [bool; 2]) {
        let given: Vec<&str> = x.iter().map(|t| t.name.as_str()).collect();
        let (dtype, z) = (x[0].ty.dtype, y[1].as_str());
        self.node_into("Gemm", &given, vec![z.to_owned()], gemm(1.0, 1.0, trans[0], trans[1]));
        let t = self.gelu_tanh(dtype, z);
        let twice = self.by_number("Add", dtype, &t, 1.0);
        let half = self.by_number("Mul", dtype, z, 0.5);
        self.node_into("Mul", &[&half, &twice], vec![y[0].clone()], vec![]);
    }

    /// `a' b'`, times `½ (1 + t) + ½ z (1 − t²) α (1 + 3κ z²)`.
    pub(super) fn gemm_gelu_grad(&mut self, x: &[Tensor], y: Vec<String>, trans: [bool; 2]) {
        let [a, b, z] = [0, 1, 2].map(|i| x[i].name.as_str());
        let dtype = x[0].ty.dtype;
        let dy = self.one("Gemm", &[a, b], gemm(1.0, 1.0, trans[0], trans[1]));
        let t = self.gelu_tanh(dtype, z);
        let square = self.both("Mul", z, z);
        let inner = self.by_number("Mul", dtype, &square, 3.0 * CUBIC);
        let inner = self.by_number("Add", dtype, &inner, 1.0);
        let inner = self.by_number("Mul", dtype, &inner, SCALE);
        let squared = self.both("Mul", &t, &t);
        let one = self.scalar(dtype, 1.0);
        let rest = self.both("Sub", &one, &squared);
        let slope = self.both("Mul", &rest, &inner);
        let slope = self.both("Mul", &slope, z);
        let value = self.by_number("Add", dtype, &t, 1.0);
        let sum = self.both("Add", &value, &slope);
        let factor = self.by_number("Mul", dtype, &sum, 0.5);
        self.node_into("Mul", &[&dy, &factor], y, vec![]);
    }

    /// `tanh(α (z + κ z³))`.
    fn gelu_tanh(&mut self, dtype: DType, z: &str) -> String {
        let square = self.both("Mul", z, z);
        let scaled = self.by_number("Mul", dtype, &square, CUBIC);
        let factor = self.by_number("Add", dtype, &scaled, 1.0);
        let inner = self.both("Mul", z, &factor);
        let inner = self.by_number("Mul", dtype, &inner, SCALE);
        self.one("Tanh", &[&inner], vec![])
    }

    fn by_number(&mut self, op: &str, dtype: DType, x: &str, number: f64) -> String {
        let number = self.scalar(dtype, number);
        self.both(op, x, &number)
    }
}
