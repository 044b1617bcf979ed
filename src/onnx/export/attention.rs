//! Attention and its gradient, whose scores ONNX stores.

use super::error::ExportError;
use super::writer::{Tensor, Writer, int, ints, signed};
use crate::onnx::proto::AttributeProto;
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

    /// `tanh(s / cap)`.
    fn bounded(&mut self, scores: &str, ty: &TensorType, cap: f64) -> String {
        let cap = self.scalar(ty.dtype, cap);
        let part = self.apply(Binary::Div, scores, &cap);
        self.one("Tanh", &[&part], vec![])
    }

    /// Keys or values, one matrix for each of queries.
    fn repeated(&mut self, spec: AttentionSpec, x: &Tensor) -> String {
        let [batch @ .., heads, rows, columns] = &x.ty.shape[..] else { return x.name.clone() };
        if spec.group == 1 {
            return x.name.clone();
        }
        let shape = |of: &[usize]| [batch, of, &[*rows, *columns]].concat();
        let [apart, repeated] = [1, spec.group].map(|n| shape(&[*heads, n]));
        let y = self.temporary();
        self.reshape_into(&x.name, &apart, y.clone());
        let repeated = self.list(&signed(&repeated));
        let y = self.one("Expand", &[&y, &repeated], vec![]);
        let all = self.temporary();
        self.reshape_into(&y, &shape(&[heads * spec.group]), all.clone());
        all
    }

    /// The product of a transpose with a matrix of each query's: the gradient of keys or values, which
    /// is a sum over the matrices that share these.
    fn of_shared(
        &mut self,
        spec: AttentionSpec,
        [a, b]: [&str; 2],
        ty: &TensorType,
        y: String,
    ) -> Result<(), ExportError> {
        let turned = self.turned(a, ty.rank());
        let [batch @ .., heads, rows, columns] = &ty.shape[..] else {
            self.node_into("MatMul", &[&turned, b], vec![y], vec![]);
            return Ok(());
        };
        if spec.group == 1 {
            self.node_into("MatMul", &[&turned, b], vec![y], vec![]);
            return Ok(());
        }
        let all = self.one("MatMul", &[&turned, b], vec![]);
        let apart = self.temporary();
        let shape = [batch, &[*heads, spec.group, *rows, *columns]].concat();
        self.reshape_into(&all, &shape, apart.clone());
        let axes = self.list(&[-3]);
        self.node_into("ReduceSum", &[&apart, &axes], vec![y], vec![int("keepdims", 0)]);
        Ok(())
    }

    /// `scale · q kᵀ + mask`, of which the product may be bounded, and −∞ beyond the diagonal where
    /// that is causal.
    fn scores(&mut self, spec: AttentionSpec, x: &[Tensor], masks: &[Tensor]) -> String {
        let (q, k) = (&x[0], &x[1]);
        let rank = q.ty.rank();
        let keys = self.repeated(spec, k);
        let turned = self.turned(&keys, rank);
        let product = self.one("MatMul", &[&q.name, &turned], vec![]);
        let mut scores = self.scaled(product, &q.ty, spec.scale);
        if let Some(cap) = spec.softcap {
            let part = self.bounded(&scores, &q.ty, cap);
            scores = self.scaled(part, &q.ty, cap);
        }
        for mask in masks {
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

    /// Operands with heads before positions, of which these are matrices.
    fn heads_first(
        &mut self,
        spec: AttentionSpec,
        x: &[Tensor],
        matrices: &[usize],
    ) -> Vec<Tensor> {
        let mut made = x.to_vec();
        if spec.packed {
            let heads = packed_heads(spec, x);
            let sizes = self.list(&signed(&heads));
            let parts = [0; 3].map(|_| self.temporary());
            self.node_into("Split", &[&x[0].name, &sizes], parts.to_vec(), vec![int("axis", -2)]);
            for ((part, name), heads) in made.iter_mut().zip(parts).zip(heads) {
                let ty = part.ty.with_extent(part.ty.rank() - 2, heads);
                *part = Tensor { name, ty };
            }
        }
        for &i in matrices.iter().filter(|_| spec.positions_first) {
            let x = &mut made[i];
            x.name = self.one("Transpose", &[&x.name], vec![exchange(x.ty.rank())]);
            let heads = x.ty.rank() - 3;
            x.ty.shape.swap(heads, heads + 1);
        }
        made
    }

    /// The name by which a result is written with heads before positions.
    fn written(&mut self, y: &Tensor, positions_first: bool) -> String {
        if positions_first { self.temporary() } else { y.name.clone() }
    }

    /// Writes the result of what was written by that name.
    fn turn_into(&mut self, from: &str, y: &Tensor) {
        if from != y.name {
            let perm = exchange(y.ty.rank());
            self.node_into("Transpose", &[from], vec![y.name.clone()], vec![perm]);
        }
    }

    /// `q, k, v[, mask[, mask]] → o, max, sum`.
    pub(super) fn attention(&mut self, spec: AttentionSpec, x: &[Tensor], y: &[Tensor]) {
        let x = &self.heads_first(spec, x, &[0, 1, 2])[..];
        let ty = &x[0].ty;
        let scores = self.scores(spec, x, &x[3..]);
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
        let values = self.repeated(spec, &x[2]);
        let o = self.written(&y[0], spec.positions_first);
        self.node_into("MatMul", &[&p, &values], vec![o.clone()], vec![]);
        self.turn_into(&o, &y[0]);
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

    /// The gradient of the first mask: that of scores, summed where the mask broadcasts.
    fn of_mask(&mut self, ds: &str, x: &[Tensor], y: &str) {
        let (q, k, mask) = (&x[0].ty, &x[1].ty, &x[6].ty);
        let batch = q.rank() - 2;
        let own = &mask.shape[..mask.rank().saturating_sub(2)];
        let missing = batch - own.len();
        let is_shared = |d: &usize| d.checked_sub(missing).is_none_or(|i| own[i] == 1);
        let axes: Vec<usize> = (0..batch).filter(is_shared).collect();
        let axes = self.list(&signed(&axes));
        let sums = [int("keepdims", 1), int("noop_with_empty_axes", 1)].to_vec();
        let once = self.one("ReduceSum", &[ds, &axes], sums);
        let shape = [own, &[q.shape[batch], k.shape[batch]]].concat();
        self.reshape_into(&once, &shape, y.to_owned());
    }

    /// `q, k, v, max, sum, do[, mask[, mask]] → dq, dk, dv[, dm]`.
    pub(super) fn attention_grad(
        &mut self,
        spec: AttentionSpec,
        x: &[Tensor],
        y: &[Tensor],
    ) -> Result<(), ExportError> {
        let operands = x;
        let x = &self.heads_first(spec, x, &[0, 1, 2, 5])[..];
        let (ty, rank) = (&x[0].ty, x[0].ty.rank());
        let row = [&ty.shape[..rank - 1], &[1]].concat();
        let [max, sum] = [3, 4].map(|i| {
            let name = self.temporary();
            self.reshape_into(&x[i].name, &row, name.clone());
            name
        });
        let scores = self.scores(spec, x, &x[6..]);
        let rest = self.apply(Binary::Sub, &scores, &max);
        let exponentials = self.one("Exp", &[&rest], vec![]);
        let p = self.apply(Binary::Div, &exponentials, &sum);
        let p = self.without_empty(spec, ty, &max, p);
        let values = self.repeated(spec, &x[2]);
        let values = self.turned(&values, rank);
        let dp = self.one("MatMul", &[&x[5].name, &values], vec![]);
        let dp = self.dropped(spec, ty, dp)?;
        let weighted = self.apply(Binary::Mul, &p, &dp);
        let total = self.along_rows("ReduceSum", &weighted);
        let rest = self.apply(Binary::Sub, &dp, &total);
        let ds = self.apply(Binary::Mul, &p, &rest);
        if let Some(of_mask) = y.get(spec.gradients()) {
            self.of_mask(&ds, x, &of_mask.name);
        }
        let mut ds = self.scaled(ds, ty, spec.scale);
        let keys = self.repeated(spec, &x[1]);
        if let Some(cap) = spec.softcap {
            let turned = self.turned(&keys, rank);
            let product = self.one("MatMul", &[&x[0].name, &turned], vec![]);
            let scores = self.scaled(product, ty, spec.scale);
            let part = self.bounded(&scores, ty, cap);
            let square = self.apply(Binary::Mul, &part, &part);
            let one = self.scalar(ty.dtype, 1.0);
            let slope = self.apply(Binary::Sub, &one, &square);
            ds = self.apply(Binary::Mul, &ds, &slope);
        }
        let factors = self.dropped(spec, ty, p)?;
        let parts: Vec<Tensor> = match spec.packed {
            true => {
                let ty = &y[0].ty;
                let of = packed_heads(spec, operands).map(|n| ty.with_extent(ty.rank() - 2, n));
                of.map(|ty| Tensor { name: self.temporary(), ty }).to_vec()
            }
            false => y[..3].to_vec(),
        };
        let [dq, dk, dv] = [0, 1, 2].map(|i| self.written(&parts[i], spec.positions_first));
        self.node_into("MatMul", &[&ds, &keys], vec![dq.clone()], vec![]);
        self.of_shared(spec, [&ds, &x[0].name], &x[1].ty, dk.clone())?;
        self.of_shared(spec, [&factors, &x[5].name], &x[2].ty, dv.clone())?;
        for (from, part) in [dq, dk, dv].iter().zip(&parts) {
            self.turn_into(from, part);
        }
        if spec.packed {
            let parts: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
            self.node_into("Concat", &parts, vec![y[0].name.clone()], vec![int("axis", -2)]);
        }
        Ok(())
    }
}

/// Heads of queries, keys and values in one tensor of all three.
fn packed_heads(spec: AttentionSpec, x: &[Tensor]) -> [usize; 3] {
    let types = [0, 1, 2].map(|i| &x[i].ty);
    spec.heads_first(&types).map(|ty| ty.shape[ty.rank() - 3])
}

/// The permutation that exchanges heads and positions.
fn exchange(rank: usize) -> AttributeProto {
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 3, rank - 2);
    ints("perm", &perm)
}
