"""Models of PyTorch's exporter without what it writes in too long a way, wrongly, or beside the graph."""

from __future__ import annotations

from typing import Any

from onnxscript import ir


def clean(model: ir.Model) -> None:
    """Sequences of parts become parts, convolutions without bias have none, and nothing names a file."""
    _split_directly(model)
    _drop_empty_biases(model)
    _forget_sources(model)


def give_way(model: ir.Model) -> None:
    """Results within the graph are called after operators, as a parameter or an input may be, too: these keep the name."""
    graph = model.graph
    kept = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    names = {value.name for value in kept}
    for value in [value for node in graph.all_nodes() for value in node.outputs if value not in kept]:
        if value.name in names:
            value.name = f"{value.name}.inner"


def extent(size: Any) -> int | str:
    """A size as the exporter has it, whose symbol may be called 4."""
    symbol = str(size if isinstance(size, int) else size.value)
    return int(symbol) if symbol.isdigit() else symbol


def _split_directly(model: ir.Model) -> None:
    """The exporter splits to a sequence, from which it takes parts by constant indices."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "SplitToSequence" or len(node.inputs) != 2:
            continue
        x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        whole = extent(x.shape[axis]) if x is not None and x.shape is not None else None
        wanted, readers = _constant(node.inputs[1]), list(node.outputs[0].consumers())
        indices = [_constant(r.inputs[1]) if r.op_type == "SequenceAt" else None for r in readers]
        if not isinstance(whole, int) or wanted is None or any(i is None for i in indices):
            continue
        sizes = wanted.tolist()
        if isinstance(sizes, int):
            sizes = [min(sizes, whole - first) for first in range(0, whole, sizes)]
        constant = ir.node("Constant", [], {"value_ints": sizes})
        split = ir.node("Split", [x, constant.outputs[0]], {"axis": axis}, num_outputs=len(sizes), name=node.name)
        node.graph.insert_before(node, [constant, split])
        for reader, index in zip(readers, indices):
            part = split.outputs[int(index)]
            part.shape, part.type, part.name = reader.outputs[0].shape, reader.outputs[0].type, reader.outputs[0].name
            ir.convenience.replace_all_uses_with(reader.outputs[0], part, replace_graph_outputs=True)
            node.graph.remove(reader, safe=True)
        node.graph.remove(node, safe=True)


def _constant(value: ir.Value | None) -> Any:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def _forget_sources(model: ir.Model) -> None:
    """Drops the exporter's notes, which name files and lines, and what a reader infers."""
    outputs = set(model.graph.outputs)
    for graph in [model.graph, *(function.graph for function in model.functions.values())]:
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
                if value not in outputs:
                    value.shape, value.type = None, None
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()


def _drop_empty_biases(model: ir.Model) -> None:
    """The exporter gives convolutions without bias one of zeros, of a wrong shape where they have three axes."""
    for node in model.graph.all_nodes():
        if node.op_type == "Conv" and len(node.inputs) == 3:
            bias = node.inputs[2].producer() if node.inputs[2] is not None else None
            if bias is not None and bias.op_type == "Expand" and _is_zero(bias.inputs[0]):
                node.replace_input_with(2, None)


def _is_zero(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("CastLike", "Cast"):
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "Constant":
        return False
    constant = _constant(node.outputs[0])
    return constant is not None and not constant.any()
