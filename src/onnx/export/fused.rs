//! Operators that ONNX does not have, as several that it has. Where graph passes made them, the
//! parts are chosen so that every element keeps its bits.

use super::ExportError;
use super::ops::{gemm, sliding};
use super::writer::{Tensor, Writer, code, int, ints, signed, text};
use arenic_ir::op::channels_last::{first, is_turned, to_first, to_last};
use arenic_ir::op::fused_norm::{DY, kept};
use arenic_ir::op::{Kind, ProductOperands, Step, Window};
use arenic_ir::types::broadcast_shapes;
use arenic_ir::{DType, Op, TensorType};

impl Writer<'_> {
    /// One node per step.
    pub(super) fn pointwise(
        &mut self,
        steps: &[Step],
        results: &[usize],
        x: &[Tensor],
        y: &[Tensor],
    ) {
        let number = x.iter().map(|t| t.ty.dtype).find(|d| d.is_float()).unwrap_or(DType::F32);
        let mut sources = x.to_vec();
        for (i, step) in steps.iter().enumerate() {
            let read: Vec<Tensor> = step.sources().map(|s| sources[s].clone()).collect();
            let kind = step.kind(|s| sources.get(s).and_then(|t| Kind::of(t.ty.dtype)));
            let dtype = if kind == Some(Kind::Condition) { DType::Bool } else { number };
            let mut shape = Vec::new();
            for t in &read {
                shape = broadcast_shapes(&shape, &t.ty.shape).unwrap_or_default();
            }
            let ty = TensorType::new(dtype, shape);
            let source = x.len() + i;
            let of = results.iter().position(|&r| r == source).map(|k| &y[k]);
            let name = match of {
                Some(y) if y.ty == ty => y.name.clone(),
                _ => self.temporary(),
            };
            let given: Vec<&str> = read.iter().map(|t| t.name.as_str()).collect();
            let out = vec![name.clone()];
            match step {
                Step::Unary(f, _) => self.node_into(f.row().onnx, &given, out, vec![]),
                Step::Binary(f, ..) => self.binary(*f, &given, out),
                Step::Where(..) => self.node_into("Where", &given, out, vec![]),
                Step::Cast(_) => {
                    self.node_into("Cast", &given, out, vec![int("to", code(number).into())]);
                }
                Step::Round(_) => {
                    let to = |d: DType| vec![int("to", code(d).into())];
                    let narrow = self.one("Cast", &given, to(DType::Bf16));
                    self.node_into("Cast", &[&narrow], out, to(number));
                }
            }
            sources.push(Tensor { name, ty });
        }
        for (y, &r) in y.iter().zip(results) {
            // A step of few operands may be smaller than the result; two results may be one step.
            if sources[r].name != y.name {
                let shape = self.list(&signed(&y.ty.shape));
                let from = sources[r].name.clone();
                self.node_into("Expand", &[&from, &shape], vec![y.name.clone()], vec![]);
            }
        }
    }

    /// What a `pointwise_reduce` reduces, by its name.
    pub(super) fn terms(&mut self, op: &Op, steps: &[Step], x: &[Tensor]) -> String {
        let types: Vec<&TensorType> = x.iter().map(|t| &t.ty).collect();
        let ty = op.reduction(&types).map_or_else(|| x[0].ty.clone(), |(terms, ..)| terms);
        let terms = Tensor { name: self.temporary(), ty };
        let name = terms.name.clone();
        self.pointwise(steps, &[x.len() + steps.len() - 1], x, &[terms]);
        name
    }

    /// The normalisation, then a node per step.
    pub(super) fn fused_norm(
        &mut self,
        of: &Op,
        (others, steps, rounded): (usize, &[Step], bool),
        x: &[Tensor],
        y: &[Tensor],
    ) -> Result<(), ExportError> {
        let (own, read) = x.split_at(x.len() - others);
        let normal = Tensor { name: self.temporary(), ty: own[0].ty.clone() };
        let mut results = y[..y.len() - usize::from(rounded)].to_vec();
        results[0] = normal.clone();
        self.write(of, own, &results)?;
        let operands = [std::slice::from_ref(&normal), read].concat();
        self.pointwise(steps, &[others + steps.len()], &operands, &y[..1]);
        if let Some(narrow) = y.last().filter(|_| rounded) {
            let cast = Op::Cast { to: narrow.ty.dtype };
            self.write(&cast, &y[..1], std::slice::from_ref(narrow))?;
        }
        Ok(())
    }

    /// A node per step, then the gradient.
    pub(super) fn fused_norm_grad(
        &mut self,
        of: &Op,
        steps: &[Step],
        x: &[Tensor],
        y: &[Tensor],
    ) -> Result<(), ExportError> {
        let (own, read) = x.split_at(kept(of));
        let dy = Tensor { name: self.temporary(), ty: x[0].ty.clone() };
        self.pointwise(steps, &[read.len() + steps.len() - 1], read, std::slice::from_ref(&dy));
        let mut operands = own.to_vec();
        operands.insert(DY, dy);
        self.write(of, &operands, y)
    }

    /// The operator between transposes.
    pub(super) fn channels_last(
        &mut self,
        of: &Op,
        x: &[Tensor],
        y: &[Tensor],
    ) -> Result<(), ExportError> {
        let axes = |t: &Tensor| (0..t.ty.rank()).collect::<Vec<_>>();
        let mut operands = x.to_vec();
        for t in operands.iter_mut().filter(|t| is_turned(&t.ty)) {
            let perm = ints("perm", &to_first(&axes(t)));
            *t = Tensor { name: self.one("Transpose", &[&t.name], vec![perm]), ty: first(&t.ty) };
        }
        let mut results = y.to_vec();
        for t in results.iter_mut().filter(|t| is_turned(&t.ty)) {
            *t = Tensor { name: self.temporary(), ty: first(&t.ty) };
        }
        self.write(of, &operands, &results)?;
        for (made, t) in results.iter().zip(y).filter(|(_, t)| is_turned(&t.ty)) {
            let perm = ints("perm", &to_last(&axes(t)));
            self.node_into("Transpose", &[&made.name], vec![t.name.clone()], vec![perm]);
        }
        Ok(())
    }

    /// The gradient as a product, then the update.
    pub(super) fn product_update(
        &mut self,
        op: &Op,
        x: &[Tensor],
        y: &[Tensor],
    ) -> Result<(), ExportError> {
        let Op::ProductUpdate { alpha, trans_a, trans_b, gradient, update } = op else {
            return Ok(());
        };
        let others = x.len() - 2;
        let (a, b) = (&x[others], &x[others + 1]);
        let ty = Op::MatMul { trans_a: *trans_a, trans_b: *trans_b }.infer(&[&a.ty, &b.ty])?;
        let name = self.temporary();
        let attributes = gemm(*alpha, 1.0, *trans_a, *trans_b);
        self.node_into("Gemm", &[&a.name, &b.name], vec![name.clone()], attributes);
        let product = Tensor { name, ty: ty[0].clone() };
        let at = ProductOperands { gradient: *gradient, others };
        let all: Vec<&Tensor> = x.iter().collect();
        let operands: Vec<Tensor> = at.operands(&all, &product).into_iter().cloned().collect();
        self.write(update, &operands, y)
    }

    /// The greatest of `(x − max) − ln_sum` is `0 − ln_sum`, which gives the bits of `ln_sum`.
    pub(super) fn log_softmax_stats(&mut self, x: &[Tensor], y: &[String]) {
        let keep = || vec![int("keepdims", 1)];
        let rows = self.list(&[-1]);
        let x = x[0].name.as_str();
        self.node_into("ReduceMax", &[x, &rows], vec![y[0].clone()], keep());
        let log = self.one("LogSoftmax", &[x], vec![int("axis", -1)]);
        let greatest = self.one("ReduceMax", &[&log, &rows], keep());
        self.node_into("Neg", &[&greatest], vec![y[1].clone()], vec![]);
    }

    /// `exp((x − max) − ln_sum)`.
    pub(super) fn softmax_of_stats(&mut self, x: &[&str], y: String) {
        let rest = self.one("Sub", &[x[0], x[1]], vec![]);
        let log = self.one("Sub", &[&rest, x[2]], vec![]);
        self.node_into("Exp", &[&log], vec![y], vec![]);
    }

    /// `w · onehot(target) − w · softmax(x)`.
    pub(super) fn cross_entropy_grad(&mut self, x: &[Tensor], y: &[String]) {
        let ty = &x[0].ty;
        let [target, w] = [&x[3].name, &x[4].name];
        let given: Vec<&str> = x.iter().map(|t| t.name.as_str()).collect();
        let softmax = self.temporary();
        self.softmax_of_stats(&given[..3], softmax.clone());
        let zero = self.scalar(ty.dtype, 0.0);
        let shape = self.list(&signed(&ty.shape));
        let zeros = self.one("Expand", &[&zero, &shape], vec![]);
        let attributes = vec![int("axis", -1), text("reduction", "none")];
        let one_hot = self.one("ScatterElements", &[&zeros, target, w], attributes);
        let weighted = self.one("Mul", &[&softmax, w], vec![]);
        self.node_into("Sub", &[&one_hot, &weighted], y.to_vec(), vec![]);
    }

    /// A convolution of the transposed operands: each channel is an image, each image a channel,
    /// and strides are dilations. Taps beyond the kernel, which a stride has left over, are cut.
    pub(super) fn conv_weight_grad(
        &mut self,
        x: &[Tensor],
        y: &[String],
        window: &Window,
        group: usize,
    ) -> Result<(), ExportError> {
        let (shape, spatial) = (&x[0].ty.shape, &x[0].ty.shape[2..]);
        let (images, channels) = (shape[0], shape[1] / group);
        let rest = |from: usize| from..from + spatial.len();
        let mut from = x[0].name.clone();
        if group > 1 {
            let split = self.temporary();
            let parts = [&[images, group, channels], spatial].concat();
            self.reshape_into(&from, &parts, split.clone());
            let perm: Vec<usize> = [2, 1, 0].into_iter().chain(rest(3)).collect();
            let turned = self.one("Transpose", &[&split], vec![ints("perm", &perm)]);
            from = self.temporary();
            let joined = [&[channels, group * images], spatial].concat();
            self.reshape_into(&turned, &joined, from.clone());
        }
        let perm: Vec<usize> = [1, 0].into_iter().chain(rest(2)).collect();
        let turn = || vec![ints("perm", &perm)];
        if group == 1 {
            from = self.one("Transpose", &[&from], turn());
        }
        let weights = self.one("Transpose", &[&x[1].name], turn());
        let taken = Window {
            kernel: x[1].ty.shape[2..].to_vec(),
            strides: window.dilations.clone(),
            dilations: window.strides.clone(),
            ..window.clone()
        };
        let mut attributes = sliding(&taken);
        attributes.push(int("group", group as i64));
        let mut taps = self.one("Conv", &[&from, &weights], attributes);
        if taken.slide(spatial, false)? != window.kernel {
            let axes: Vec<usize> = rest(2).collect();
            let lists = [vec![0; spatial.len()], window.kernel.clone(), axes];
            let [starts, ends, axes] = lists.map(|l| self.list(&signed(&l)));
            taps = self.one("Slice", &[&taps, &starts, &ends, &axes], vec![]);
        }
        self.node_into("Transpose", &[&taps], y.to_vec(), turn());
        Ok(())
    }
}
