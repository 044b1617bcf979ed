//! The list of all operators, by family: names in the text form, operands and results, attributes.

use super::attributes::{self, is_default, is_false, is_one, one};
use super::family::{self, operators};
use super::{
    Activation, AttentionSpec, Binary, PoolIndices, Reduction, ResizeSpec, Rng, Scatter, Step,
    Unary, Window,
};
use crate::types::DType;
use serde::{Deserialize, Serialize};

operators! {
    /// Elements moved, none computed.
    Movement {
        /// `x → y`: the same elements under another shape.
        "reshape" Reshape {
            /// The result's shape.
            shape: Vec<usize>,
        },
        /// `x → y`: `y[i] = x[starts + i · steps]`; a step may be negative.
        "slice" Slice {
            /// First source index of every axis.
            starts: Vec<usize>,
            /// Step of every axis, not zero.
            steps: Vec<i64>,
            /// The result's shape.
            shape: Vec<usize>,
        },
        /// `x → y`: `y[starts + i · steps] = x[i]`, and `value` everywhere else.
        "pad" Pad {
            /// Index of the first element along every axis.
            starts: Vec<usize>,
            /// Step of every axis, not zero.
            steps: Vec<usize>,
            /// The result's shape.
            shape: Vec<usize>,
            /// What is around the elements, cast to their type.
            #[serde(with = "attributes::any_number")]
            value: f64,
        },
        /// `x → y`: `y.shape[i] = x.shape[perm[i]]`.
        "transpose" Transpose {
            /// A permutation of the axes.
            perm: Vec<usize>,
        },
        /// `x → y`: broadcast to `shape` (NumPy's rule; the result's rank may be larger).
        "expand" Expand {
            /// The result's shape.
            shape: Vec<usize>,
        },
        /// `x… → y`: at least one operand, joined along `axis`.
        "concat" Concat {
            /// The axis.
            axis: usize,
        },
        /// `x → y`: the same tensor in bytes of its own.
        "copy" Copy,
    }

    /// Elements chosen by indices, or by their order.
    Indexing {
        /// `x, indices → y`: ONNX `Gather`; negative indices count from the end.
        "gather" Gather {
            /// The axis of `x` that `indices` select from.
            axis: usize,
        },
        /// `x, indices → y`: ONNX `GatherElements`.
        "gather_elements" GatherElements {
            /// The axis.
            axis: usize,
        },
        /// `x, indices → y`: ONNX `GatherND`.
        "gather_nd" GatherNd {
            /// Leading axes shared by both operands.
            batch_dims: usize,
        },
        /// `x, indices, updates → y`: ONNX `ScatterElements`.
        "scatter_elements" ScatterElements {
            /// The axis.
            axis: usize,
            /// How updates combine.
            reduction: Scatter,
        },
        /// `x, indices, updates → y`: ONNX `ScatterND`.
        "scatter_nd" ScatterNd {
            /// How updates combine.
            reduction: Scatter,
        },
        /// `x → values, indices(i64)`: the `k` largest, or smallest, elements along an axis in their
        /// order, and where they are; of equal ones the first comes first. NaN counts as largest.
        "top_k" TopK {
            /// The axis.
            axis: usize,
            /// How many.
            k: usize,
            /// The largest ones.
            largest: bool,
        },
    }

    /// One element of each operand makes one of the result.
    Elementwise {
        /// `x → y` of element type `to`; float to integer truncates and saturates.
        "cast" Cast {
            /// The result's element type.
            to: DType,
        },
        /// `x → f(x)`.
        "unary" Unary {
            /// The function.
            f: Unary,
        },
        /// `a, b → f(a, b)`, operands of one element type, broadcast.
        "binary" Binary {
            /// The function.
            f: Binary,
        },
        /// `cond, a, b → y`: `a` where `cond` else `b`, all three broadcast.
        "where" Where,
        /// `x[, min][, max] → y`; the bounds are scalars of `x`'s element type. NaN stays.
        "clip" Clip {
            /// A lower bound is the next operand.
            min: bool,
            /// An upper bound is the next operand.
            max: bool,
        },
        /// `x… → y…`: straight-line elementwise arithmetic on floats of one type and on bool.
        /// Operands broadcast to the shape that every result has. Each step rounds like the
        /// operator it stands for. Operands of `bf16` are read as `f32`; a result that a step
        /// rounds to `bf16` is stored as such, others are as wide as the arithmetic.
        "pointwise" Pointwise {
            /// What is computed, in order.
            steps: Vec<Step>,
            /// The sources that are results.
            results: Vec<usize>,
        },
    }

    /// Numbers drawn by a counter generator.
    Random {
        /// `x, ratio → y, mask`: training dropout, `y = x · mask / (1 − ratio)`; the bool
        /// `mask` is 1 with probability `1 − ratio`. `ratio` is a float scalar.
        "dropout" Dropout {
            /// The generator's key.
            rng: Rng,
        },
        /// `→ y`: uniform in `[low, high)`.
        "random_uniform" RandomUniform {
            /// The result's element type, a float.
            dtype: DType,
            /// The result's shape.
            shape: Vec<usize>,
            /// Lower end.
            low: f32,
            /// Upper end.
            high: f32,
            /// The generator's key.
            rng: Rng,
        },
    }

    /// Elements combined along axes.
    Reducing {
        /// `x → y`: reduce `axes`; with `keep` they stay with extent 1.
        "reduce" Reduce {
            /// How elements combine.
            f: Reduction,
            /// The axes, strictly increasing; an empty list leaves `x` as it is.
            axes: Vec<usize>,
            /// Reduced axes stay with extent 1.
            keep: bool,
        },
        /// `x… → y`: the reduction of what the last step computes, of which no tensor exists. Operands
        /// have one shape, or one element.
        "pointwise_reduce" PointwiseReduce {
            /// What is computed of each element, in order.
            steps: Vec<Step>,
            /// How what comes of it combines.
            f: Reduction,
            /// The axes, strictly increasing.
            axes: Vec<usize>,
            /// Reduced axes stay with extent 1.
            keep: bool,
        },
    }

    /// Softmax along an axis, its gradients, and the cross entropy without its probabilities.
    Softmax {
        /// `x → y`: softmax along one axis.
        "softmax" Softmax {
            /// The axis.
            axis: usize,
        },
        /// `x → y`: logarithm of the softmax along one axis.
        "log_softmax" LogSoftmax {
            /// The axis.
            axis: usize,
        },
        /// `y, dy → dx`: the gradient of a softmax's operand from its result:
        /// `dx = y · (dy − Σ dy·y)`, the sum along the axis.
        "softmax_grad" SoftmaxGrad {
            /// The axis.
            axis: usize,
        },
        /// `y, dy → dx`: the gradient of a log softmax's operand from its result:
        /// `dx = dy − exp(y) · Σ dy`, the sum along the axis.
        "log_softmax_grad" LogSoftmaxGrad {
            /// The axis.
            axis: usize,
        },
        /// `x → max, ln_sum`: of every row (the last axis) its maximum, and the logarithm of
        /// the sum of `exp(x − max)`; `(x − max) − ln_sum` is the logarithm of the softmax.
        "log_softmax_stats" LogSoftmaxStats,
        /// `x, max, ln_sum → exp((x − max) − ln_sum)`: the softmax of rows whose
        /// `LogSoftmaxStats` are known.
        "softmax_of_stats" SoftmaxOfStats,
        /// `x, max, ln_sum, target, w → y`: of every row the gradient of `w` times its log
        /// softmax at `target`: `y = w · onehot(target) − w · softmax(x)`; negative targets
        /// count from the end.
        "cross_entropy_grad" CrossEntropyGrad,
    }

    /// Layer and batch normalisation, and their gradients.
    Norm {
        /// `x, scale[, bias] → y, mean, inv_std`: over the axes from `axis` on; `scale` and
        /// `bias` broadcast to `x`.
        "layer_norm" LayerNorm {
            /// First normalised axis.
            axis: usize,
            /// Added to the variance.
            epsilon: f32,
        },
        /// `x, dy, mean, inv_std → dscale, dbias`: gradients of a layer norm's scale and bias, in
        /// the shape of `x` from `axis` on: `Σ dy·(x − mean)·inv_std` and `Σ dy`, summed over the
        /// axes before it. `mean` and `inv_std` are as `LayerNorm` gives them.
        "layer_norm_param_grad" LayerNormParamGrad {
            /// First normalised axis.
            axis: usize,
        },
        /// `x, dy, scale, mean, inv_std → dx`: the gradient of a layer norm's operand. Of every row
        /// `dx = inv_std·(g − mean(g) − n·mean(g·n))`, where `g = dy·scale` and
        /// `n = (x − mean)·inv_std`.
        "layer_norm_input_grad" LayerNormInputGrad {
            /// First normalised axis.
            axis: usize,
        },
        /// `x[N,C,…], scale[C], bias[C] → y, mean[C], var[C], inv_std[C]`: over all axes but the
        /// second, in training: mean and population variance of the batch,
        /// `inv_std = 1 / √(var + epsilon)`, and `y = (x − mean)·inv_std·scale + bias`.
        "batch_norm" BatchNorm {
            /// Added to the variance.
            epsilon: f32,
        },
        /// `x[N,C,…], dy, mean[C], inv_std[C] → dscale[C], dbias[C]`: gradients of a batch norm's
        /// scale and bias, `Σ dy·(x − mean)·inv_std` and `Σ dy` of every channel.
        "batch_norm_param_grad" BatchNormParamGrad,
        /// `x[N,C,…], dy, scale[C], mean[C], inv_std[C], dscale[C], dbias[C] → dx`: the gradient of a
        /// batch norm's operand, `scale·inv_std·(dy − (dbias + (x − mean)·inv_std·dscale) / m)`,
        /// where a channel has `m` elements.
        "batch_norm_input_grad" BatchNormInputGrad,
        /// `operands of the normalisation…, others… → results of the normalisation`: a `LayerNorm`, a
        /// `BatchNorm` or the gradient of such a one's operand, perhaps a `FusedNormGrad`, with what is
        /// computed of each element of its first result, of which no tensor
        /// exists: in its place is what the last step gives. Source 0 of the steps is that element in
        /// the type in which sums are taken, not yet rounded; then come the others, each with an
        /// element for each of its, or with one for all.
        "fused_norm" FusedNorm {
            /// The normalisation, or the gradient.
            of: Box<Op>,
            /// How many operands the steps have beside the normalisation's result.
            others: usize,
            /// What is computed, in order.
            steps: Vec<Step>,
            /// What the last step gives is also given as `bf16`, behind the other results.
            #[serde(default, skip_serializing_if = "is_false")]
            rounded: bool,
        },
        /// `operands of the gradient but dy…, others… → results of the gradient`: a gradient of a
        /// `LayerNorm` or `BatchNorm` whose `dy` is what the last step computes of the others, of
        /// which each has an element for each of `dy`, or one for all. No tensor of `dy` exists. Without
        /// steps it is the only one of these, widened if it is `bf16`.
        "fused_norm_grad" FusedNormGrad {
            /// The gradient.
            of: Box<Op>,
            /// What is computed, in order.
            steps: Vec<Step>,
        },
    }

    /// Products of matrices, and what is computed with them in one go.
    Product {
        /// `a, b → y`: NumPy's `matmul`, operands of rank ≥ 1; a transposed operand has its
        /// last two axes exchanged first (rank ≥ 2).
        "mat_mul" MatMul {
            /// Exchange the last two axes of `a`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_a: bool,
            /// Exchange the last two axes of `b`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_b: bool,
        },
        /// `a, b[, c] → y`: `alpha · a' b' + beta · c`, matrices, `c` broadcast to the result.
        "gemm" Gemm {
            /// Factor of the product.
            alpha: f32,
            /// Factor of `c`.
            beta: f32,
            /// Transpose `a`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_a: bool,
            /// Transpose `b`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_b: bool,
        },
        /// `a, b[, bias[n]] → y[m,n], z[m,n]`: `z = a' b' + bias`, matrices, and `y = gelu(z)` of what
        /// `z` is before it is rounded; GELU in its tanh form, as in [`gelu`](super::gelu).
        "gemm_gelu" GemmGelu {
            /// Transpose `a`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_a: bool,
            /// Transpose `b`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_b: bool,
        },
        /// `a, b, z[m,n] → dz[m,n]`: `dz = (a' b') · gelu'(z)`, matrices: the gradient of what a GELU
        /// in its tanh form was applied to, where that of its result is a product.
        "gemm_gelu_grad" GemmGeluGrad {
            /// Transpose `a`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_a: bool,
            /// Transpose `b`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_b: bool,
        },
        /// `operands of the update without its gradient…, a, b → results of the update`: an
        /// update whose gradient is `alpha · a' b'`, of which only tiles ever exist.
        "product_update" ProductUpdate {
            /// Factor of the product.
            #[serde(default = "one", skip_serializing_if = "is_one")]
            alpha: f32,
            /// Transpose `a`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_a: bool,
            /// Transpose `b`.
            #[serde(default, skip_serializing_if = "is_false")]
            trans_b: bool,
            /// Position of the gradient among the update's operands.
            gradient: usize,
            /// A `Pointwise`, `Adam`, `Adagrad` or `Momentum`.
            update: Box<Op>,
        },
    }

    /// Convolutions, and their gradients.
    Convolution {
        /// `x[N,C,…], w[M,C/group,…][, b[M]] → y[N,M,…]`.
        "conv" Conv {
            /// Kernel, strides, pads, dilations.
            window: Window,
            /// Groups.
            group: usize,
        },
        /// `x[N,C,…], w[C,M/group,…][, b[M]] → y[N,M,…]`.
        "conv_transpose" ConvTranspose {
            /// Kernel, strides, pads, dilations of the convolution whose transpose this is.
            window: Window,
            /// Groups.
            group: usize,
            /// Added to the end of each spatial axis of the result.
            output_padding: Vec<usize>,
        },
        /// `x[N,C,…], dy[N,M,…] → dw[M,C/group,…]`: the gradient of a convolution's weight, from
        /// its operand and the gradient of its result.
        "conv_weight_grad" ConvWeightGrad {
            /// Kernel, strides, pads, dilations of the convolution.
            window: Window,
            /// Groups.
            group: usize,
        },
    }

    /// Pools, and their gradients.
    Pool {
        /// `x[N,C,…] → y, indices`: where each maximum is.
        "max_pool" MaxPool {
            /// Kernel, strides, pads, dilations.
            window: Window,
            /// Round output extents up.
            #[serde(default, skip_serializing_if = "is_false")]
            ceil: bool,
            /// What the indices say, and their type.
            #[serde(
                default,
                alias = "column_major",
                deserialize_with = "attributes::pool_indices",
                skip_serializing_if = "is_default"
            )]
            indices: PoolIndices,
        },
        /// `x[N,C,…] → y`.
        "average_pool" AveragePool {
            /// Kernel, strides, pads, dilations.
            window: Window,
            /// Round output extents up.
            #[serde(default, skip_serializing_if = "is_false")]
            ceil: bool,
            /// The divisor counts padding.
            #[serde(default, skip_serializing_if = "is_false")]
            count_include_pad: bool,
        },
        /// `dy, indices → dx`: the gradient of a max pool's operand, from the indices that `MaxPool`
        /// gave: `dy` is added at these places of `dx`, in their order, and zero elsewhere. An index
        /// counts where its window covers it; another one adds nothing, and one that is no position
        /// in `dx`, where indices are positions, is refused.
        "max_pool_grad" MaxPoolGrad {
            /// Kernel, strides, pads, dilations of the pool.
            window: Window,
            /// Its output extents were rounded up.
            #[serde(default, skip_serializing_if = "is_false")]
            ceil: bool,
            /// What the indices say, and their type.
            #[serde(
                default,
                alias = "column_major",
                deserialize_with = "attributes::pool_indices",
                skip_serializing_if = "is_default"
            )]
            indices: PoolIndices,
            /// The shape of the pool's operand and of `dx`.
            shape: Vec<usize>,
        },
        /// `dy → dx`: the gradient of an average pool's operand.
        "average_pool_grad" AveragePoolGrad {
            /// Kernel, strides, pads, dilations of the pool.
            window: Window,
            /// Its output extents were rounded up.
            #[serde(default, skip_serializing_if = "is_false")]
            ceil: bool,
            /// The divisor counts padding.
            #[serde(default, skip_serializing_if = "is_false")]
            count_include_pad: bool,
            /// The shape of the pool's operand and of `dx`.
            shape: Vec<usize>,
        },
    }

    /// Interpolation along axes.
    Resizing {
        /// `x → y`: ONNX `Resize`.
        "resize" Resize {
            /// All of its attributes.
            spec: ResizeSpec,
        },
    }

    /// Softmax attention, and its gradients.
    Attention {
        /// `q[…,T,D], k[…,S,D], v[…,S,E][, mask[, mask]] → o[…,T,E], max[…,T], sum[…,T]`: softmax
        /// attention. Scores are `s = scale · q kᵀ + mask`, where each `mask` broadcasts to `[…,T,S]`: the
        /// sum of two need not exist. The attributes may bound what the masks are added to, and let
        /// several matrices of queries share keys and values. Of every row of scores the maximum and the
        /// sum of `exp(s − max)`, and `o = (exp(s − max) / sum) v`, where some of the factors of `v` may
        /// be dropped. The attributes may also have positions before heads in tensors, and queries, keys and
        /// values in one.
        /// Scores exist a few rows at a time. Two numbers per row and not one logarithm, which could
        /// not hold a maximum of −1e9, as of a row that a finite mask covers, and a sum beside it.
        "attention" Attention {
            /// Scale, and which scores count.
            spec: AttentionSpec,
        },
        /// `q, k, v, max, sum, do[…,T,E][, o[…,T,E]][, mask[, mask]] → dq, dk, dv[, dm]`: gradients of an
        /// attention's operands; `o`, `max` and `sum` are as `Attention` gives them. With `p = exp(s − max) / sum` these are
        /// `dv = pᵀ do`, and `dq = scale · ds k`, `dk = scale · dsᵀ q` of
        /// `ds = p · (do vᵀ − Σ p · (do vᵀ))`, the sum over each row, which is `Σ do · o` (Dao et al.,
        /// "FlashAttention", 2022, equation 4). What is dropped of `p` in `dv` is
        /// dropped of `do vᵀ` as well. Under a bound `c`, `ds` is multiplied by its slope. Gradients of
        /// shared keys and values are sums over who shares them. `dm` is `ds` before scale and slope, summed
        /// over the batch's axes where the first mask broadcasts: it has that mask's batch and the
        /// scores' rows and columns.
        "attention_grad" AttentionGrad {
            /// Those of the attention.
            spec: AttentionSpec,
            /// The first mask has a gradient, too.
            #[serde(default, skip_serializing_if = "is_false")]
            of_mask: bool,
            /// The result of the attention is an operand.
            #[serde(default, skip_serializing_if = "is_false")]
            has_result: bool,
        },
    }

    /// Recurrences, and their gradients. Steps `T`, batch `B`, hidden units `H`. `pre` is what the input gives
    /// to every gate: `x·Wᵀ` and all biases. Gates lie in ONNX's order. With `reverse` the last step
    /// comes first; results stand where the step's operand does.
    Recurrent {
        /// `pre[T,B,4H], r[4H,H], h0[B,H], c0[B,H][, p[3H]] → y[T,B,H], gates[T,B,4H],
        /// cells[T,B,H]`: ONNX `LSTM` in one direction. `a = pre + h·rᵀ`, in the order i, o, f, c;
        /// `i, o, f = σ(a)`, `g = tanh(a)`, `c' = f·c + i·g`, `h' = o·tanh(c')`. Peepholes `p`, in the
        /// order i, o, f, add `p·c` to i and f, and `p·c'` to o. `gates` are i, o, f, g.
        "lstm" Lstm {
            /// From the last step to the first.
            #[serde(default, skip_serializing_if = "is_false")]
            reverse: bool,
        },
        /// `gates, cells, r, c0, dy[, dcells][, p] → dpre, dh0, dc0`: gradients of an LSTM's operands
        /// from what it gave and the gradients of `y` and `cells`. Those of `r` and `p` are products
        /// and sums of `dpre`.
        "lstm_grad" LstmGrad {
            /// From the last step to the first, which the gradient goes back.
            #[serde(default, skip_serializing_if = "is_false")]
            reverse: bool,
            /// The gradient of `cells` is an operand.
            #[serde(default, skip_serializing_if = "is_false")]
            dcells: bool,
        },
        /// `pre[T,B,3H], r[3H,H], h0[B,H][, rb[H]] → y[T,B,H], gates[T,B,3H]`: ONNX `GRU` in one
        /// direction, gates in the order z, r, h. `z, r = σ(pre + h·rᵀ)`; `n = tanh(pre + (r·h)·rᵀ)`
        /// or, with `linear_before_reset`, `n = tanh(pre + r·(h·rᵀ + rb))`; `h' = (1 − z)·n + z·h`.
        /// `gates` are z, r, n. The operand `rb` is there where the reset is applied to it.
        "gru" Gru {
            /// From the last step to the first.
            #[serde(default, skip_serializing_if = "is_false")]
            reverse: bool,
            /// The reset gate multiplies the product instead of the state.
            #[serde(default, skip_serializing_if = "is_false")]
            linear_before_reset: bool,
        },
        /// `gates, y, r, h0, dy[, m[T,B,H]] → dpre, dh0`: gradients of a GRU's operands from what it
        /// gave and the gradient of `y`. With `linear_before_reset`, `m` is what the reset gates
        /// multiplied. Those of `r` and `rb` are products and sums of `dpre`.
        "gru_grad" GruGrad {
            /// From the last step to the first, which the gradient goes back.
            #[serde(default, skip_serializing_if = "is_false")]
            reverse: bool,
            /// The reset gate multiplied the product instead of the state.
            #[serde(default, skip_serializing_if = "is_false")]
            linear_before_reset: bool,
        },
        /// `pre[T,B,H], r[H,H], h0[B,H] → y[T,B,H]`: ONNX `RNN` in one direction,
        /// `h' = f(pre + h·rᵀ)`.
        "rnn" Rnn {
            /// From the last step to the first.
            #[serde(default, skip_serializing_if = "is_false")]
            reverse: bool,
            /// The function `f`.
            activation: Activation,
        },
        /// `y, r, dy → dpre, dh0[B,H]`: gradients of an RNN's operands from its result and the
        /// gradient of that. That of `r` is a product with `dpre`.
        "rnn_grad" RnnGrad {
            /// From the last step to the first, which the gradient goes back.
            #[serde(default, skip_serializing_if = "is_false")]
            reverse: bool,
            /// The function.
            activation: Activation,
        },
    }

    /// Updates of one parameter (ai.onnx.preview.training).
    Update {
        /// `lr, t(i64), x, g, v, h → x', v', h'`.
        #[allow(missing_docs)] // ONNX's names
        "adam" Adam { alpha: f32, beta: f32, epsilon: f32, norm_coefficient: f32, norm_coefficient_post: f32 },
        /// `lr, t(i64), x, g, h → x', h'`.
        #[allow(missing_docs)] // ONNX's names
        "adagrad" Adagrad { decay_factor: f32, epsilon: f32, norm_coefficient: f32 },
        /// `lr, t(i64), x, g, v → x', v'`.
        #[allow(missing_docs)] // ONNX's names
        "momentum" Momentum { alpha: f32, beta: f32, nesterov: bool, norm_coefficient: f32 },
    }

    /// Exchanges between ranks, which all run the same program.
    Collective {
        /// `x… → y…`: each `y` is the sum of the ranks' `x`, the first rank's term first; `y` is the
        /// same on all ranks.
        "all_reduce" AllReduce {
            /// How many ranks there are.
            ranks: usize,
        },
        /// `x… → y…`: each `y` is the rank's own part of the sum of the ranks' `x`, the first rank's
        /// term first. See [`part_type`](super::part_type).
        "reduce_scatter" ReduceScatter {
            /// How many ranks there are.
            ranks: usize,
        },
        /// `x… → y…`: each `y` is the tensor of which every rank has its part in `x`.
        "all_gather" AllGather {
            /// How many ranks there are.
            ranks: usize,
            /// The results' shapes.
            shapes: Vec<Vec<usize>>,
        },
        /// `x → y`: the rank's own part of a tensor that every rank has. Nothing is exchanged.
        "own_part" OwnPart {
            /// How many ranks there are.
            ranks: usize,
        },
    }

    /// An operator that holds another, on tensors stored otherwise or on more of them.
    Wrapping {
        /// An operator with a window, on tensors whose channels are last: of each operand and result
        /// of rank three or more the second axis stands last, of filters, too.
        "channels_last" ChannelsLast {
            /// The operator: a convolution, a pool or a gradient of one.
            of: Box<Op>,
        },
        /// `operands of the first lot…, of the second… → results of the first lot…, of the second…`: an elementwise
        /// operator on lots of operands of the same types, in any order or at once (PyTorch's `foreach`).
        "for_each" ForEach {
            /// The operator: a program of elements or an update.
            of: Box<Op>,
            /// How many lots there are.
            lots: usize,
        },
    }

    /// An operator of a memory graph.
    Opaque {
        /// `x, … → y, …`: an operator of which only sizes are known. It can be planned, but
        /// has no kernel.
        "opaque" Opaque {
            /// Bytes of each result.
            results: Vec<usize>,
        },
    }
}
