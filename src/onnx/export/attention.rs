//! Attention and its gradient, whose scores ONNX stores.

use super::error::ExportError;
use super::writer::{Tensor, Writer, int, ints, signed};
use arenic_ir::op::{AttentionDropout, AttentionSpec, Binary};
use arenic_ir::{DType, TensorType};

impl Writer<'_> {
    fn apply(&mut self, f: Binary, a: &str, b: &str) -> String {
        let y = self.temporary();
        self.binary(f, &[a, b], vec![y.clone()]);
        y
    }

    /// The last two axes exchanged.
    fn turned(&mut self, x: &str, rank: usize) -> String {
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.one("Transpose", &[x], vec![ints("perm", &perm)])
    }

    /// What rows have in common, along the last axis.
    fn along_rows(&mut self, op: &str, x: &str) -> String {
        let axes = self.list(&[-1]);
        self.one(op, &[x, &axes], vec![int("keepdims", 1)])
    }

    fn scaled(&mut self, x: String, ty: &TensorType, scale: f64) -> String {
        if scale == 1.0 {
            return x;
        }
        let scale = self.scalar(ty.dtype, scale);
        self.apply(Binary::Mul, &x, &scale)
    }

    /// `scale · q kᵀ + mask`, and −∞ beyond the diagonal where that is causal.
    fn scores(&mut self, spec: AttentionSpec, x: &[Tensor], mask: Option<&Tensor>) -> String {
        let (q, k) = (&x[0], &x[1]);
        let rank = q.ty.rank();
        let turned = self.turned(&k.name, rank);
        let product = self.one("MatMul", &[&q.name, &turned], vec![]);
        let mut scores = self.scaled(product, &q.ty, spec.scale);
        if let Some(mask) = mask {
            scores = self.apply(Binary::Add, &scores, &mask.name);
        }
        if spec.causal {
            let low = self.scalar(q.ty.dtype, f64::NEG_INFINITY);
            let shape = self.list(&signed(&[q.ty.shape[rank - 2], k.ty.shape[rank - 2]]));
            let low = self.one("Expand", &[&low, &shape], vec![]);
            let first = self.scalar(DType::I64, 1.0);
            let beyond = self.one("Trilu", &[&low, &first], vec![int("upper", 1)]);
            scores = self.apply(Binary::Add, &scores, &beyond);
        }
        scores
    }

    /// `x`, and zero in rows whose maximum is −∞ where these are to be zero.
    fn without_empty(
        &mut self,
        spec: AttentionSpec,
        ty: &TensorType,
        max: &str,
        x: String,
    ) -> String {
        if !spec.zero_rows {
            return x;
        }
        let low = self.scalar(ty.dtype, f64::NEG_INFINITY);
        let empty = self.apply(Binary::Equal, max, &low);
        let zero = self.scalar(ty.dtype, 0.0);
        self.one("Where", &[&empty, &zero, &x], vec![])
    }

    /// `q, k, v[, mask] → o, max, sum`.
    pub(super) fn attention(&mut self, spec: AttentionSpec, x: &[Tensor], y: &[Tensor]) {
        let ty = &x[0].ty;
        let scores = self.scores(spec, x, x.get(3));
        let max = self.along_rows("ReduceMax", &scores);
        let rest = self.apply(Binary::Sub, &scores, &max);
        let exponentials = self.one("Exp", &[&rest], vec![]);
        let sum = self.along_rows("ReduceSum", &exponentials);
        let p = self.apply(Binary::Div, &exponentials, &sum);
        let p = self.without_empty(spec, ty, &max, p);
        let sum = self.without_empty(spec, ty, &max, sum);
        let p = match spec.dropout {
            None => p,
            Some(AttentionDropout { ratio, rng }) => {
                let [y, kept] = [self.temporary(), self.temporary()];
                let ratio = self.scalar(ty.dtype, ratio);
                self.dropout(&rng, &p, &ratio, vec![y.clone(), kept.clone()]);
                self.kept.insert((rng.stream, rng.seed), kept);
                y
            }
        };
        self.node_into("MatMul", &[&p, &x[2].name], vec![y[0].name.clone()], vec![]);
        self.reshape_into(&max, &y[1].ty.shape, y[1].name.clone());
        self.reshape_into(&sum, &y[2].ty.shape, y[2].name.clone());
    }

    /// What the attention kept of `x`, divided by `1 − ratio`.
    fn dropped(
        &mut self,
        spec: AttentionSpec,
        ty: &TensorType,
        x: String,
    ) -> Result<String, ExportError> {
        let Some(AttentionDropout { ratio, rng }) = spec.dropout else { return Ok(x) };
        let kept = self.kept.get(&(rng.stream, rng.seed)).cloned();
        let kept = kept.ok_or_else(|| ExportError::Attention(self.label().to_owned()))?;
        let [rest, zero] = [1.0 - ratio, 0.0].map(|x| self.scalar(ty.dtype, x));
        let x = self.apply(Binary::Div, &x, &rest);
        Ok(self.one("Where", &[&kept, &x, &zero], vec![]))
    }

    /// `q, k, v, max, sum, do[, mask] → dq, dk, dv`.
    pub(super) fn attention_grad(
        &mut self,
        spec: AttentionSpec,
        x: &[Tensor],
        y: &[String],
    ) -> Result<(), ExportError> {
        let (ty, rank) = (&x[0].ty, x[0].ty.rank());
        let row = [&ty.shape[..rank - 1], &[1]].concat();
        let [max, sum] = [3, 4].map(|i| {
            let name = self.temporary();
            self.reshape_into(&x[i].name, &row, name.clone());
            name
        });
        let scores = self.scores(spec, x, x.get(6));
        let rest = self.apply(Binary::Sub, &scores, &max);
        let exponentials = self.one("Exp", &[&rest], vec![]);
        let p = self.apply(Binary::Div, &exponentials, &sum);
        let p = self.without_empty(spec, ty, &max, p);
        let values = self.turned(&x[2].name, rank);
        let dp = self.one("MatMul", &[&x[5].name, &values], vec![]);
        let dp = self.dropped(spec, ty, dp)?;
        let weighted = self.apply(Binary::Mul, &p, &dp);
        let total = self.along_rows("ReduceSum", &weighted);
        let rest = self.apply(Binary::Sub, &dp, &total);
        let ds = self.apply(Binary::Mul, &p, &rest);
        let ds = self.scaled(ds, ty, spec.scale);
        self.node_into("MatMul", &[&ds, &x[1].name], vec![y[0].clone()], vec![]);
        let factors = self.dropped(spec, ty, p)?;
        for (of, by, y) in [(&ds, &x[0].name, &y[1]), (&factors, &x[5].name, &y[2])] {
            let turned = self.turned(of, rank);
            self.node_into("MatMul", &[&turned, by], vec![y.clone()], vec![]);
        }
        Ok(())
    }
}
