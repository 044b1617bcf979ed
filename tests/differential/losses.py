"""Losses over classes, and their gradients."""

import numpy as np

from axes import softmax_of
from frame import (
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    Case,
    Draw,
    Operand,
    Result,
    fixed,
    row,
    untrained,
    wide,
)


def drawn(d: Draw, types):
    """Scores, labels, weights or none, the label that is ignored or none, and the reduction."""
    dtype = d.dtype(types)
    n, c = d.int(1, 4), d.int(1, 5)
    rest = d.shape(0, 2, zero=False)
    scores = d.floats((n, c, *rest), dtype)
    labels = d.r.integers(0, c, (n, *rest)).astype(d.pick([I32, I64]))
    ignored = None
    if d.chance(0.5):
        ignored = d.pick([-1, c + 3] + [0] * (c > 1))
        labels = np.where(d.r.random(labels.shape) < 0.3, ignored, labels).astype(labels.dtype)
        # One counts, so that there is a mean.
        labels.flat[0] = c - 1 if c - 1 != ignored else labels.flat[0]
    weights = d.floats((c,), dtype, 0.2, 2.0) if d.chance(0.4) else None
    return scores, labels, weights, ignored, d.pick(["none", "sum", "mean"])


def counted(scores, labels, weights, ignored):
    """What each label's element weighs, and the class that it means."""
    classes = np.where(labels == ignored, 0, labels) if ignored is not None else labels
    each = np.ones(labels.shape, np.longdouble) if weights is None else wide(weights)[classes]
    return np.where(labels == ignored, 0, each) if ignored is not None else each, classes


def loss(log, labels, weights, ignored, reduction):
    each, classes = counted(log, labels, weights, ignored)
    picked = -np.take_along_axis(log, np.expand_dims(classes, 1), 1).squeeze(1) * each
    match reduction:
        case "none":
            return picked, np.abs(picked)
        case "sum":
            return picked.sum(), np.abs(picked).sum()
    with np.errstate(all="ignore"):
        return picked.sum() / each.sum(), np.abs(picked).sum() / each.sum()


@row(
    "NegativeLogLikelihoodLoss",
    "SoftmaxCrossEntropyLoss",
    "com.microsoft.SoftmaxCrossEntropyLossInternal",
)
def losses(d: Draw) -> Case:
    scores, labels, weights, ignored, reduction = drawn(
        d, FLOATS if "Internal" not in d.name else [F32, F64]
    )
    log = wide(scores)
    if "Softmax" in d.name:
        log = np.log(softmax_of(log, 1))
    y, size = loss(log, labels, weights, ignored, reduction)
    inputs = [Operand(scores), Operand(labels)]
    if weights is not None:
        inputs.append(untrained(weights))
    attributes = {"reduction": reduction}
    if ignored is not None:
        if "Internal" in d.name:
            inputs += [None] * (3 - len(inputs)) + [fixed(ignored)]
        else:
            attributes["ignore_index"] = ignored
    outputs = [Result(np.asarray(y), scores.dtype, 16, size + 10.0)]
    if "Softmax" in d.name and (d.chance(0.5) or "Internal" in d.name):
        outputs.append(Result(log, scores.dtype, 16, 10.0))
    if d.smooth:
        outputs = outputs[:1]
    return Case(inputs, outputs, attributes)


@row(
    "com.microsoft.SoftmaxCrossEntropyLossGrad", "com.microsoft.SoftmaxCrossEntropyLossInternalGrad"
)
def loss_grad(d: Draw) -> Case:
    scores, labels, weights, ignored, reduction = drawn(d, [F32, F64])
    # The gradient of one loss is a scalar, by which no gradient is tried.
    reduction = "none" if d.smooth else reduction
    log = np.log(softmax_of(wide(scores), 1)).astype(scores.dtype)
    each, classes = counted(log, labels, weights, ignored)
    dy = d.floats(labels.shape if reduction == "none" else (), scores.dtype)
    factor = wide(dy) * each
    if reduction == "mean":
        with np.errstate(all="ignore"):
            factor = factor / each.sum()
    hot = np.zeros(scores.shape)
    np.put_along_axis(hot, np.expand_dims(classes, 1), 1, 1)
    dx = (np.exp(wide(log)) - hot) * np.expand_dims(factor, 1)
    size = np.abs(np.expand_dims(factor, 1)) + np.zeros(scores.shape)
    inputs = [Operand(dy), untrained(log), Operand(labels)]
    if weights is not None:
        inputs.append(untrained(weights))
    attributes = {"reduction": reduction}
    if ignored is not None:
        if "Internal" in d.name:
            inputs += [None] * (4 - len(inputs)) + [fixed(ignored)]
        else:
            attributes["ignore_index"] = ignored
    return Case(inputs, [Result(dx, scores.dtype, 32, size)], attributes)
