//! Normalisations in training and their gradients, and those of softmaxes, as the arithmetic that
//! they are.

use super::writer::{Tensor, Writer, int, signed};
use arenic_ir::TensorType;

impl Writer<'_> {
    pub(super) fn both(&mut self, op: &str, a: &str, b: &str) -> String {
        self.one(op, &[a, b], vec![])
    }

    /// Reduces axes, which stay with extent 1.
    fn reduced(&mut self, op: &str, x: &str, axes: &[usize]) -> String {
        if axes.is_empty() {
            return x.to_owned();
        }
        let axes = self.list(&signed(axes));
        self.one(op, &[x, &axes], vec![int("keepdims", 1)])
    }

    /// Sums over axes, which go.
    fn summed_into(&mut self, x: &str, axes: &[usize], y: String) {
        if axes.is_empty() {
            return self.node_into("Identity", &[x], vec![y], vec![]);
        }
        let axes = self.list(&signed(axes));
        self.node_into("ReduceSum", &[x, &axes], vec![y], vec![int("keepdims", 0)]);
    }

    /// One number per channel, so that it broadcasts.
    fn per_channel(&mut self, x: &str, ty: &TensorType) -> String {
        let mut shape = vec![1; ty.rank()];
        shape[1] = ty.shape[1];
        let y = self.temporary();
        self.reshape_into(x, &shape, y.clone());
        y
    }

    /// What normalises `x` over these axes: what is left of `x` without its mean, the mean, the
    /// variance, and the inverse deviation.
    fn statistics(&mut self, x: &Tensor, axes: &[usize], epsilon: f32) -> [String; 4] {
        let mean = self.reduced("ReduceMean", &x.name, axes);
        let centred = self.both("Sub", &x.name, &mean);
        let squared = self.both("Mul", &centred, &centred);
        let variance = self.reduced("ReduceMean", &squared, axes);
        let epsilon = self.scalar(x.ty.dtype, epsilon.into());
        let sum = self.both("Add", &variance, &epsilon);
        let root = self.one("Sqrt", &[&sum], vec![]);
        let inverse = self.one("Reciprocal", &[&root], vec![]);
        [centred, mean, variance, inverse]
    }

    /// `normal · scale + bias`, where there is a bias.
    fn scaled_into(&mut self, normal: &str, scale: &str, bias: Option<&str>, y: String) {
        match bias {
            Some(bias) => {
                let scaled = self.both("Mul", normal, scale);
                self.node_into("Add", &[&scaled, bias], vec![y], vec![]);
            }
            None => self.node_into("Mul", &[normal, scale], vec![y], vec![]),
        }
    }

    /// ONNX's own gives statistics in single precision, whatever the operand is.
    pub(super) fn layer_norm(&mut self, x: &[Tensor], y: &[Tensor], axis: usize, epsilon: f32) {
        let axes: Vec<usize> = (axis..x[0].ty.rank()).collect();
        let [centred, mean, _, inverse] = self.statistics(&x[0], &axes, epsilon);
        let normal = self.both("Mul", &centred, &inverse);
        let bias = x.get(2).map(|b| b.name.as_str());
        self.scaled_into(&normal, &x[1].name, bias, y[0].name.clone());
        for (from, to) in [mean, inverse].iter().zip(&y[1..]) {
            self.node_into("Identity", &[from], vec![to.name.clone()], vec![]);
        }
    }

    /// `x, scale, bias → y, mean, var, inv_std`.
    pub(super) fn batch_norm(&mut self, x: &[Tensor], y: &[Tensor], epsilon: f32) {
        let ty = &x[0].ty;
        let [centred, mean, variance, inverse] = self.statistics(&x[0], &other_axes(ty), epsilon);
        let normal = self.both("Mul", &centred, &inverse);
        let [scale, bias] = [1, 2].map(|i| self.per_channel(&x[i].name, ty));
        self.scaled_into(&normal, &scale, Some(&bias), y[0].name.clone());
        for (from, to) in [mean, variance, inverse].iter().zip(&y[1..]) {
            self.reshape_into(from, &to.ty.shape, to.name.clone());
        }
    }

    /// `x, dy, mean, inv_std → dscale, dbias`: sums over the axes before `axis`.
    pub(super) fn layer_norm_param_grad(&mut self, x: &[Tensor], y: &[String], axis: usize) {
        let axes: Vec<usize> = (0..axis).collect();
        let (mean, inverse) = (x[2].name.clone(), x[3].name.clone());
        self.param_grad(x, y, [&mean, &inverse], &axes);
    }

    /// The same of channels.
    pub(super) fn batch_norm_param_grad(&mut self, x: &[Tensor], y: &[String]) {
        let ty = &x[0].ty;
        let [mean, inverse] = [2, 3].map(|i| self.per_channel(&x[i].name, ty));
        self.param_grad(x, y, [&mean, &inverse], &other_axes(ty));
    }

    fn param_grad(&mut self, x: &[Tensor], y: &[String], of: [&str; 2], axes: &[usize]) {
        let normal = self.normal(&x[0].name, of);
        let product = self.both("Mul", &x[1].name, &normal);
        self.summed_into(&product, axes, y[0].clone());
        self.summed_into(&x[1].name, axes, y[1].clone());
    }

    /// `(x − mean) · inv_std`.
    fn normal(&mut self, x: &str, [mean, inverse]: [&str; 2]) -> String {
        let centred = self.both("Sub", x, mean);
        self.both("Mul", &centred, inverse)
    }

    /// `x, dy, scale, mean, inv_std → dx = inv_std · (g − mean(g) − n · mean(g · n))`, with
    /// `g = dy · scale` and the normalised `n`.
    pub(super) fn layer_norm_input_grad(&mut self, x: &[Tensor], y: &[String], axis: usize) {
        let axes: Vec<usize> = (axis..x[0].ty.rank()).collect();
        let normal = self.normal(&x[0].name, [&x[3].name, &x[4].name]);
        let weighted = self.both("Mul", &x[1].name, &x[2].name);
        let of_mean = self.reduced("ReduceMean", &weighted, &axes);
        let product = self.both("Mul", &weighted, &normal);
        let of_deviation = self.reduced("ReduceMean", &product, &axes);
        let along = self.both("Mul", &normal, &of_deviation);
        let rest = self.both("Sub", &weighted, &of_mean);
        let rest = self.both("Sub", &rest, &along);
        self.node_into("Mul", &[&rest, &x[4].name], y.to_vec(), vec![]);
    }

    /// `x, dy, scale, mean, inv_std, dscale, dbias → dx`, of `m` elements of a channel:
    /// `scale · inv_std · (dy − (dbias + n · dscale) / m)` with the normalised `n`.
    pub(super) fn batch_norm_input_grad(&mut self, x: &[Tensor], y: &[String]) {
        let ty = &x[0].ty;
        let [scale, mean, inverse, dscale, dbias] =
            [2, 3, 4, 5, 6].map(|i| self.per_channel(&x[i].name, ty));
        let normal = self.normal(&x[0].name, [&mean, &inverse]);
        let along = self.both("Mul", &normal, &dscale);
        let sum = self.both("Add", &dbias, &along);
        let count: usize = other_axes(ty).iter().map(|&i| ty.shape[i]).product();
        let count = self.scalar(ty.dtype, count as f64);
        let part = self.both("Div", &sum, &count);
        let rest = self.both("Sub", &x[1].name, &part);
        let factor = self.both("Mul", &scale, &inverse);
        self.node_into("Mul", &[&factor, &rest], y.to_vec(), vec![]);
    }

    /// `y, dy → y · (dy − Σ y · dy)`.
    pub(super) fn softmax_grad(&mut self, x: &[Tensor], y: &[String], axis: usize) {
        let product = self.both("Mul", &x[0].name, &x[1].name);
        let sum = self.reduced("ReduceSum", &product, &[axis]);
        let rest = self.both("Sub", &x[1].name, &sum);
        self.node_into("Mul", &[&x[0].name, &rest], y.to_vec(), vec![]);
    }

    /// `y, dy → dy − exp(y) · Σ dy`.
    pub(super) fn log_softmax_grad(&mut self, x: &[Tensor], y: &[String], axis: usize) {
        let sum = self.reduced("ReduceSum", &x[1].name, &[axis]);
        let probability = self.one("Exp", &[&x[0].name], vec![]);
        let part = self.both("Mul", &probability, &sum);
        self.node_into("Sub", &[&x[1].name, &part], y.to_vec(), vec![]);
    }
}

/// All axes but that of channels.
fn other_axes(ty: &TensorType) -> Vec<usize> {
    (0..ty.rank()).filter(|&i| i != 1).collect()
}
