//! How each operator is written: those that ONNX has.

use super::ExportError;
use super::writer::{Tensor, Writer, code, float, int, ints, signed, text};
use crate::onnx::proto::AttributeProto;
use arenic_ir::op::{Binary, PoolIndices, Reduction, Rng, Scatter, Window};
use arenic_ir::{DType, Op};

fn names(tensors: &[Tensor]) -> Vec<&str> {
    tensors.iter().map(|t| t.name.as_str()).collect()
}

impl Writer<'_> {
    /// Writes a function of two operands; ONNX's `Mod` truncates where it is told to.
    pub(super) fn binary(&mut self, f: Binary, x: &[&str], y: Vec<String>) {
        let attributes = if f == Binary::Rem { vec![int("fmod", 1)] } else { vec![] };
        self.node_into(f.row().onnx, x, y, attributes);
    }

    /// Writes an operator; results have the names and types of `y`.
    ///
    /// ONNX has no operands of different floats: those of `bf16` become `f32` and results `bf16`
    /// again, as the operator says, unless elements are moved or cast.
    pub(super) fn write(&mut self, op: &Op, x: &[Tensor], y: &[Tensor]) -> Result<(), ExportError> {
        let narrow = |t: &Tensor| t.ty.dtype == DType::Bf16;
        let takes = op.moves_elements() || matches!(op, Op::Cast { .. });
        if takes || !x.iter().chain(y).any(narrow) {
            return self.write_uniform(op, x, y);
        }
        let to = |d: DType| vec![int("to", code(d).into())];
        let mut wide = x.to_vec();
        for t in wide.iter_mut().filter(|t| narrow(t)) {
            let name = self.one("Cast", &[&t.name], to(DType::F32));
            *t = Tensor { name, ty: t.ty.accumulated() };
        }
        let mut results = y.to_vec();
        for t in results.iter_mut().filter(|t| narrow(t)) {
            *t = Tensor { name: self.temporary(), ty: t.ty.accumulated() };
        }
        self.write_uniform(op, &wide, &results)?;
        for (made, t) in results.iter().zip(y).filter(|(_, t)| narrow(t)) {
            self.node_into("Cast", &[&made.name], vec![t.name.clone()], to(DType::Bf16));
        }
        Ok(())
    }

    /// Writes an operator on floats of one type.
    fn write_uniform(&mut self, op: &Op, x: &[Tensor], y: &[Tensor]) -> Result<(), ExportError> {
        let out: Vec<String> = y.iter().map(|t| t.name.clone()).collect();
        let given = names(x);
        match op {
            Op::Reshape { shape } => self.reshape_into(given[0], shape, out[0].clone()),
            Op::Slice { starts, steps, shape } => self.slice(x, &out, (starts, steps, shape)),
            Op::Pad { starts, steps, shape, value } => {
                self.pad(&x[0], &out, (starts, steps, shape), *value);
            }
            Op::Transpose { perm } => {
                self.node_into("Transpose", &given, out, vec![ints("perm", perm)]);
            }
            Op::Expand { shape } => {
                let list = self.list(&signed(shape));
                self.node_into("Expand", &[given[0], &list], out, vec![]);
            }
            Op::Concat { axis } => self.node_into("Concat", &given, out, vec![at(*axis)]),
            Op::Copy => self.node_into("Identity", &given, out, vec![]),
            Op::Gather { axis } => self.node_into("Gather", &given, out, vec![at(*axis)]),
            Op::GatherElements { axis } => {
                self.node_into("GatherElements", &given, out, vec![at(*axis)]);
            }
            Op::GatherNd { batch_dims } => {
                let batch = int("batch_dims", *batch_dims as i64);
                self.node_into("GatherND", &given, out, vec![batch]);
            }
            Op::TopK { axis, k, largest } => {
                let k = self.list(&[*k as i64]);
                let attributes = vec![at(*axis), int("largest", (*largest).into())];
                self.node_into("TopK", &[given[0], &k], out, attributes);
            }
            Op::ScatterElements { axis, reduction } => {
                let attributes = vec![at(*axis), text("reduction", scatter(*reduction))];
                self.node_into("ScatterElements", &given, out, attributes);
            }
            Op::ScatterNd { reduction } => {
                let attributes = vec![text("reduction", scatter(*reduction))];
                self.node_into("ScatterND", &given, out, attributes);
            }
            Op::Cast { to } => {
                self.node_into("Cast", &given, out, vec![int("to", code(*to).into())]);
            }
            Op::Unary { f } => self.node_into(f.row().onnx, &given, out, vec![]),
            Op::Binary { f } => self.binary(*f, &given, out),
            Op::Where => self.node_into("Where", &given, out, vec![]),
            Op::Clip { min, .. } => {
                let mut bounds: Vec<String> = vec![given[0].to_owned()];
                bounds.extend((!min).then(String::new));
                for bound in &x[1..] {
                    bounds.push(self.as_scalar(bound));
                }
                let bounds: Vec<&str> = bounds.iter().map(String::as_str).collect();
                self.node_into("Clip", &bounds, out, vec![]);
            }
            Op::Dropout { rng } => {
                let ratio = self.as_scalar(&x[1]);
                self.dropout(rng, given[0], &ratio, out);
            }
            Op::RandomUniform { dtype, shape, low, high, rng } => {
                let mut attributes = vec![
                    int("dtype", code(*dtype).into()),
                    ints("shape", shape),
                    float("low", *low),
                    float("high", *high),
                ];
                attributes.extend(self.float_seed(rng)?);
                self.node_into("RandomUniform", &[], out, attributes);
            }
            Op::Reduce { f, axes, keep } => self.reduce(*f, axes, *keep, given[0], out),
            Op::Softmax { axis } => self.node_into("Softmax", &given, out, vec![at(*axis)]),
            Op::LogSoftmax { axis } => self.node_into("LogSoftmax", &given, out, vec![at(*axis)]),
            Op::LayerNorm { axis, epsilon } if x[0].ty.dtype == DType::F32 => {
                let attributes = vec![at(*axis), float("epsilon", *epsilon)];
                self.node_into("LayerNormalization", &given, out, attributes);
            }
            Op::LayerNorm { axis, epsilon } => self.layer_norm(x, y, *axis, *epsilon),
            Op::LayerNormParamGrad { axis } => self.layer_norm_param_grad(x, &out, *axis),
            Op::LayerNormInputGrad { axis } => self.layer_norm_input_grad(x, &out, *axis),
            Op::BatchNorm { epsilon } => self.batch_norm(x, y, *epsilon),
            Op::BatchNormParamGrad => self.batch_norm_param_grad(x, &out),
            Op::BatchNormInputGrad => self.batch_norm_input_grad(x, &out),
            Op::FusedNorm { of, others, steps, rounded } => {
                self.fused_norm(of, (*others, steps, *rounded), x, y)?;
            }
            Op::FusedNormGrad { of, steps } => self.fused_norm_grad(of, steps, x, y)?,
            Op::SoftmaxGrad { axis } => self.softmax_grad(x, &out, *axis),
            Op::LogSoftmaxGrad { axis } => self.log_softmax_grad(x, &out, *axis),
            Op::MatMul { trans_a: false, trans_b: false } => {
                self.node_into("MatMul", &given, out, vec![]);
            }
            &Op::MatMul { trans_a, trans_b } => self.mat_mul(x, &out, (trans_a, trans_b)),
            Op::Gemm { alpha, beta, trans_a, trans_b } => {
                let attributes = gemm(*alpha, *beta, *trans_a, *trans_b);
                self.node_into("Gemm", &given, out, attributes);
            }
            Op::Conv { window, group } => {
                let mut attributes = sliding(window);
                attributes.push(int("group", *group as i64));
                self.node_into("Conv", &given, out, attributes);
            }
            Op::ConvTranspose { window, group, output_padding } => {
                let mut attributes = sliding(window);
                attributes.push(int("group", *group as i64));
                attributes.push(ints("output_padding", output_padding));
                self.node_into("ConvTranspose", &given, out, attributes);
            }
            Op::ConvWeightGrad { window, group } => {
                self.conv_weight_grad(x, &out, window, *group)?;
            }
            Op::MaxPool { window, ceil, indices } => {
                let mut attributes = sliding(window);
                attributes.extend(ceil.then(|| int("ceil_mode", 1)));
                let column_major = *indices == PoolIndices::ColumnMajorPositions;
                attributes.extend(column_major.then(|| int("storage_order", 1)));
                match (*indices, y) {
                    (PoolIndices::Taps, [_, taps]) => {
                        let pooled = vec![out[0].clone(), self.temporary()];
                        self.node_into("MaxPool", &given, pooled.clone(), attributes);
                        self.taps_of_positions(&pooled[1], taps, window, &x[0].ty.shape);
                    }
                    _ => self.node_into("MaxPool", &given, out, attributes),
                }
            }
            Op::AveragePool { window, ceil, count_include_pad } => {
                let mut attributes = sliding(window);
                if window.dilations.iter().all(|&d| d == 1) {
                    attributes.retain(|a| a.name.as_deref() != Some("dilations"));
                } else {
                    self.dilated_pool = true;
                }
                attributes.extend(ceil.then(|| int("ceil_mode", 1)));
                attributes.extend(count_include_pad.then(|| int("count_include_pad", 1)));
                self.node_into("AveragePool", &given, out, attributes);
            }
            Op::MaxPoolGrad { window, indices, shape, .. } => {
                let places = match indices {
                    PoolIndices::Taps => self.positions_of_taps(&x[1], window, shape),
                    PoolIndices::Positions | PoolIndices::ColumnMajorPositions => x[1].name.clone(),
                };
                let column_major = *indices == PoolIndices::ColumnMajorPositions;
                self.max_pool_grad(&x[0], &places, &out, (shape, column_major));
            }
            Op::AveragePoolGrad { window, count_include_pad, shape, .. } => {
                self.average_pool_grad(&x[0], &out, window, (shape, *count_include_pad))?;
            }
            Op::Lstm { reverse } => self.lstm(*reverse, x, &out),
            Op::LstmGrad { reverse, dcells } => self.lstm_grad(*reverse, *dcells, x, &out),
            Op::Gru { reverse, linear_before_reset } => {
                self.gru(*reverse, *linear_before_reset, x, &out);
            }
            Op::GruGrad { reverse, linear_before_reset } => {
                self.gru_grad(*reverse, *linear_before_reset, x, &out);
            }
            Op::Rnn { reverse, activation } => self.rnn(*reverse, *activation, x, &out[0]),
            Op::RnnGrad { reverse, activation } => self.rnn_grad(*reverse, *activation, x, &out),
            Op::Resize { spec } => self.resize(&x[0], out, spec)?,
            Op::Adam { alpha, beta, epsilon, norm_coefficient, norm_coefficient_post } => {
                let attributes = vec![
                    float("alpha", *alpha),
                    float("beta", *beta),
                    float("epsilon", *epsilon),
                    float("norm_coefficient", *norm_coefficient),
                    float("norm_coefficient_post", *norm_coefficient_post),
                ];
                self.optimizer("Adam", x, out, attributes);
            }
            Op::Adagrad { decay_factor, epsilon, norm_coefficient } => {
                let attributes = vec![
                    float("decay_factor", *decay_factor),
                    float("epsilon", *epsilon),
                    float("norm_coefficient", *norm_coefficient),
                ];
                self.optimizer("Adagrad", x, out, attributes);
            }
            Op::Momentum { alpha, beta, nesterov, norm_coefficient } => {
                let attributes = vec![
                    float("alpha", *alpha),
                    float("beta", *beta),
                    text("mode", if *nesterov { "nesterov" } else { "standard" }),
                    float("norm_coefficient", *norm_coefficient),
                ];
                self.optimizer("Momentum", x, out, attributes);
            }
            Op::Pointwise { steps, results } => self.pointwise(steps, results, x, y),
            Op::PointwiseReduce { steps, f, axes, keep } => {
                let terms = self.terms(op, steps, x);
                self.reduce(*f, axes, *keep, &terms, out);
            }
            Op::ChannelsLast { of } => self.channels_last(of, x, y)?,
            Op::ForEach { of, lots } => {
                for (x, y) in x.chunks(x.len() / lots).zip(y.chunks(y.len() / lots)) {
                    self.write(of, x, y)?;
                }
            }
            Op::ProductUpdate { .. } => self.product_update(op, x, y)?,
            Op::GemmGelu { trans_a, trans_b } => self.gemm_gelu(x, &out, [*trans_a, *trans_b]),
            Op::GemmGeluGrad { trans_a, trans_b } => {
                self.gemm_gelu_grad(x, out, [*trans_a, *trans_b]);
            }
            Op::Attention { spec } => self.attention(*spec, x, y),
            Op::AttentionGrad { spec, has_result, .. } => {
                // The result says what the sums of its scores say, too.
                let operands = [&x[..6], &x[6 + usize::from(*has_result)..]].concat();
                self.attention_grad(*spec, &operands, y)?;
            }
            Op::LogSoftmaxStats => self.log_softmax_stats(x, &out),
            Op::SoftmaxOfStats => {
                self.softmax_of_stats(&given, out[0].clone());
            }
            Op::CrossEntropyGrad => self.cross_entropy_grad(x, &out),
            Op::AllReduce { .. }
            | Op::ReduceScatter { .. }
            | Op::AllGather { .. }
            | Op::OwnPart { .. } => return Err(ExportError::Ranks(op.ranks().unwrap_or(1))),
            Op::Opaque { .. } => return Err(ExportError::Opaque(self.label().to_owned())),
        }
        Ok(())
    }

    fn reduce(&mut self, f: Reduction, axes: &[usize], keep: bool, x: &str, out: Vec<String>) {
        if axes.is_empty() {
            return self.node_into("Identity", &[x], out, vec![]);
        }
        let axes = self.list(&signed(axes));
        let keep = vec![int("keepdims", i64::from(keep))];
        self.node_into(reduction(f), &[x, &axes], out, keep);
    }

    fn slice(
        &mut self,
        x: &[Tensor],
        out: &[String],
        (starts, steps, shape): (&[usize], &[i64], &[usize]),
    ) {
        // An end before the first element is one that no count from the end reaches.
        let end = |i: usize| match (shape[i] as i64).checked_sub(1) {
            None | Some(-1) => starts[i] as i64,
            Some(last) => match starts[i] as i64 + last * steps[i] + steps[i].signum() {
                -1 => i64::MIN + 1,
                end => end,
            },
        };
        let ends: Vec<i64> = (0..shape.len()).map(end).collect();
        let axes: Vec<usize> = (0..shape.len()).collect();
        let lists = [signed(starts), ends, signed(&axes), steps.to_vec()].map(|l| self.list(&l));
        let [starts, ends, axes, steps] = &lists;
        self.node_into("Slice", &[&x[0].name, starts, ends, axes, steps], out.to_vec(), vec![]);
    }

    /// A tensor of one element as one of rank 0.
    fn as_scalar(&mut self, x: &Tensor) -> String {
        if x.ty.rank() == 0 {
            return x.name.clone();
        }
        let y = self.temporary();
        self.reshape_into(&x.name, &[], y.clone());
        y
    }

    /// `y`, and which elements are kept.
    pub(super) fn dropout(&mut self, rng: &Rng, x: &str, ratio: &str, y: Vec<String>) {
        let training = self.scalar(DType::Bool, 1.0);
        let seed = rng.seed.map(|seed| int("seed", seed as i64));
        self.node_into("Dropout", &[x, ratio, &training], y, seed.into_iter().collect());
    }

    /// ONNX has the seeds of other operators as floats.
    fn float_seed(&mut self, rng: &Rng) -> Result<Option<AttributeProto>, ExportError> {
        let Some(seed) = rng.seed else { return Ok(None) };
        let whole = seed as i64 as f32;
        let bits = f32::from_bits(seed as u32);
        let x = if whole as i64 as u64 == seed {
            whole
        } else if u64::from(bits.to_bits()) == seed && bits.fract() != 0.0 {
            bits
        } else {
            return Err(ExportError::Seed { node: self.label().to_owned(), seed });
        };
        Ok(Some(float("seed", x)))
    }

    /// Of matrices it is a Gemm without a third operand, else transposes come first.
    fn mat_mul(&mut self, x: &[Tensor], out: &[String], trans: (bool, bool)) {
        if x.iter().all(|t| t.ty.rank() == 2) {
            let attributes = gemm(1.0, 1.0, trans.0, trans.1);
            self.node_into("Gemm", &names(x), out.to_vec(), attributes);
            return;
        }
        let operands = [(&x[0], trans.0), (&x[1], trans.1)].map(|(t, trans)| {
            let rank = t.ty.rank();
            if !trans || rank < 2 {
                return t.name.clone();
            }
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(rank - 2, rank - 1);
            self.one("Transpose", &[&t.name], vec![ints("perm", &perm)])
        });
        self.node_into("MatMul", &[&operands[0], &operands[1]], out.to_vec(), vec![]);
    }

    /// Rate and count are scalars in ONNX.
    fn optimizer(
        &mut self,
        op: &str,
        x: &[Tensor],
        out: Vec<String>,
        attributes: Vec<AttributeProto>,
    ) {
        let (rate, count) = (self.as_scalar(&x[0]), self.as_scalar(&x[1]));
        let mut given = vec![rate.as_str(), &count];
        given.extend(names(&x[2..]));
        self.optimizer_into(op, &given, out, attributes);
    }
}

fn at(axis: usize) -> AttributeProto {
    int("axis", axis as i64)
}

/// Attributes of `Gemm`.
pub(super) fn gemm(alpha: f32, beta: f32, trans_a: bool, trans_b: bool) -> Vec<AttributeProto> {
    vec![
        float("alpha", alpha),
        float("beta", beta),
        int("transA", i64::from(trans_a)),
        int("transB", i64::from(trans_b)),
    ]
}

/// Attributes of a window.
pub(super) fn sliding(w: &Window) -> Vec<AttributeProto> {
    let pads = [&w.pads_begin[..], &w.pads_end].concat();
    vec![
        ints("kernel_shape", &w.kernel),
        ints("strides", &w.strides),
        ints("dilations", &w.dilations),
        ints("pads", &pads),
    ]
}

fn reduction(f: Reduction) -> &'static str {
    match f {
        Reduction::Sum => "ReduceSum",
        Reduction::Mean => "ReduceMean",
        Reduction::Min => "ReduceMin",
        Reduction::Max => "ReduceMax",
        Reduction::Prod => "ReduceProd",
    }
}

fn scatter(f: Scatter) -> &'static str {
    match f {
        Scatter::Replace => "none",
        Scatter::Add => "add",
        Scatter::Mul => "mul",
        Scatter::Min => "min",
        Scatter::Max => "max",
    }
}
