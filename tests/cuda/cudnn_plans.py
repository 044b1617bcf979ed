#!/usr/bin/env python3
"""What cuDNN plans for the convolutions and attentions of artifacts on GPUs that are only described.

    cudnn_plans.py ARENIC ARTIFACT …

cuDNN 9.8 and newer plans for a device by its properties (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR): no GPU and no
driver are needed. Those in devices/ are from public tables, not read from devices. Of each convolution, as the artifact
has it in `arenic inspect`, a plan must finalise that multiplies by tensor cores within the workspace that is planned;
of each attention its graph must pass the support check (its plan's code cannot be loaded without a device). The plans are
those of cuDNN's graph interface. Prints a line for each that differs from another one before, and ends with 1 where
one is not as it must be and not among EXPECTED.
"""

import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import cudnn
import stand_in

# Of CUDA's runtime, what the support check of an attention asks which device there is: one of the compute capability in
# the environment. Loaded before cuDNN's frontend looks for the library by this name.
RUNTIME = r"""
#include <cstdlib>
#include <cstring>
extern "C" {
int cudaGetDevice(int* device) { *device = 0; return 0; }
const char* cudaGetErrorString(int) { return "there is no device"; }
int cudaGetDeviceProperties(char* properties, int) {
    // `major` and `minor` of cudaDeviceProp.
    const int capability = atoi(getenv("DESCRIBED_CAPABILITY")), both[2] = {capability / 10, capability % 10};
    memset(properties, 0, 512);
    memcpy(properties + 360, both, sizeof both);
    return 0;
}
int cudaGetDeviceProperties_v2(char* properties, int device) { return cudaGetDeviceProperties(properties, device); }
}
"""


def load_stand_ins():
    """Convolutions are planned without: they would use the driver's."""
    with tempfile.TemporaryDirectory() as folder:
        for soname, text in (("libcudart.so.13", RUNTIME), ("libcuda.so.1", stand_in.driver())):
            ctypes.CDLL(str(stand_in.build(folder, soname, text)), ctypes.RTLD_GLOBAL)


DEVICES = ["h100", "a100", "rtx4090"]
TYPES = {"f32": cudnn.data_type.FLOAT, "bf16": cudnn.data_type.BFLOAT16}
# No tensor cores within the workspace: ViT's first convolution, and its weight's gradient, whose three channels are not last.
EXPECTED = {"no tensor cores": lambda c: not c["last"] and 3 in (c["input"][1], c["filter"][1])}


# --------------------------------------------------------------------- what an artifact has
def shape(text):
    """Element type and extents of a type, as `bf16[8,3]`."""
    dtype, extents = re.fullmatch(r"(\w+)\[([\d,]*)\]", text).groups()
    return dtype, [int(n) for n in extents.split(",") if n]


def nodes(text):
    """Operator, attributes, types of operands and of results of each node, and the scratch of its first run."""
    types = dict(re.findall(r"\b(v\d+): (\w+\[[\d,]*\])", text))
    scratch = {}
    for line in text.splitlines():
        run = re.match(r"\s*run (n\d+) .*scratch device\[\d+\+(\d+)\]", line)
        if run:
            scratch.setdefault(run[1], int(run[2]))
    pattern = r'^\s*(n\d+) (?:"(?:[^"\\]|\\.)*" )?(\w+)(?: (\{.*?\}))? \((v[^)]*)\) -> \((.*)\)$'
    for name, op, attributes, operands, results in re.findall(pattern, text, re.MULTILINE):
        x = [shape(types[v]) for v in operands.split(", ")]
        y = [shape(t) for t in re.findall(r"v\d+: (\w+\[[\d,]*\])", results)]
        yield op, json.loads(attributes or "{}"), x, y, scratch.get(name, 0)


def convolution(op, attributes, x, y, workspace):
    """A convolution as cuDNN takes it; `None` for other operators."""
    last = op == "channels_last"
    if last:
        ((op, attributes),) = attributes["of"].items()
    if op not in ("conv", "conv_transpose", "conv_weight_grad"):
        return None

    def first(extents):
        return [extents[0], extents[-1], *extents[1:-1]] if last else extents

    of = [first(t[1]) for t in (*x[:2], y[0])]
    direction, sides = {
        "conv": ("forward", (of[0], of[1], of[2])),
        "conv_transpose": ("input's gradient", (of[2], of[1], of[0])),
        "conv_weight_grad": ("filter's gradient", (of[0], of[2], of[1])),
    }[op]
    window = attributes["window"]
    return {
        "direction": direction,
        "dtype": x[0][0],
        "input": sides[0],
        "filter": sides[1],
        "output": sides[2],
        "last": last,
        "pads": [window["pads_begin"], window["pads_end"]],
        "strides": window["strides"],
        "dilations": window["dilations"],
        "group": attributes["group"],
        "workspace": workspace,
    }


# --------------------------------------------------------------------------- what cuDNN has
def graph(device, dtype):
    f32 = cudnn.data_type.FLOAT
    return cudnn.pygraph(io_data_type=dtype, intermediate_data_type=f32, compute_data_type=f32, device_property=device)


def strides(extents, last):
    n, c, h, w = extents
    return [c * h * w, 1, c * w, c] if last else [c * h * w, h * w, w, 1]


def plans(c, device):
    """Engines, notes and workspaces of a convolution's plans that finalise."""

    def made():
        g = graph(device, TYPES[c["dtype"]])

        def tensor(name):
            return g.tensor(name=name, dim=c[name], stride=strides(c[name], c["last"]))

        how = {"pre_padding": c["pads"][0], "post_padding": c["pads"][1], "stride": c["strides"], "dilation": c["dilations"]}
        if c["direction"] == "forward":
            result, of = g.conv_fprop(tensor("input"), tensor("filter"), **how), "output"
        elif c["direction"] == "input's gradient":
            result, of = g.conv_dgrad(tensor("output"), tensor("filter"), **how), "input"
        else:
            result, of = g.conv_wgrad(tensor("input"), tensor("output"), **how), "filter"
        result.set_output(True).set_dim(c[of]).set_stride(strides(c[of], c["last"]))
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        return g

    found = []
    for tensor_cores in (True, False):
        g = made()
        notes = [cudnn.numerical_note.TENSOR_CORE]
        g.select_numeric_notes(notes) if tensor_cores else g.deselect_numeric_notes(notes)
        try:
            g.check_support()
        except cudnn.cudnnGraphNotSupportedError:
            continue
        for i in range(g.get_execution_plan_count()):
            try:
                g.build_plan_at_index(i)
            except Exception:  # what cannot be built is no plan
                continue
            found.append((tensor_cores, g.get_workspace_size_plan_at_index(i)))
    return found


def judged(c, device):
    """What is wrong with a convolution's plans; `None` if nothing is."""
    found = plans(c, device)
    if not found:
        return "no plan"
    if not any(w <= c["workspace"] for _, w in found):
        return f"no workspace: {min(w for _, w in found)} bytes at least, {c['workspace']} are planned"
    cores = [w for is_core, w in found if is_core]
    if c["dtype"] == "bf16" and not any(w <= c["workspace"] for w in cores):
        least = f"{min(cores)} bytes at least, {c['workspace']} are planned" if cores else "none has any"
        return f"no tensor cores: {least}"
    return None


def attention(op, attributes, x, device):
    """Why an attention does not pass the support check; `None` if it does."""
    # Images and heads are alike where they are one axis.
    q, k, v = ([1] * (4 - len(t[1])) + t[1] for t in x[:3])
    if x[0][0] != "bf16" or len(q) != 4:
        return "not asked: cuDNN's attention is of bf16"
    g, spec = graph(device, TYPES["bf16"]), attributes["spec"]
    positions_first = spec.get("positions_first", False)
    if positions_first:
        q, k, v = ([images, heads, rows, columns] for images, rows, heads, columns in (q, k, v))

    # Heads that lie between two positions of queries, keys and values: their own, or those of all three in one tensor.
    between = None
    if spec.get("packed", False):
        images, between, rows, columns = q
        heads = between // (spec.get("group", 1) + 2)
        q, k, v = ([images, n, rows, columns] for n in (heads * spec.get("group", 1), heads, heads))

    def packed(extents):
        _, _, rows, columns = extents
        return dense(extents) if between is None else [between * rows * columns, columns, between * columns, 1]

    def dense(extents):
        _, heads, rows, columns = extents
        inner = [columns, heads * columns] if positions_first else [rows * columns, columns]
        return [heads * rows * columns, *inner, 1]

    def tensor(name, extents, stride):
        return g.tensor(name=name, dim=extents, stride=stride(extents))

    operands = [tensor(n, t, packed) for n, t in zip("qkv", (q, k, v))]
    how = {"attn_scale": spec["scale"], "use_causal_mask": spec.get("causal", False), "name": op}
    if op == "attention":
        o, stats = g.sdpa(*operands, generate_stats=True, **how)
        o.set_output(True).set_dim([*q[:3], v[3]]).set_stride(dense([*q[:3], v[3]]))
        stats.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    else:
        o, do = (tensor(n, [*q[:3], v[3]], dense) for n in ("o", "do"))
        rows = [q[1] * q[2], q[2], 1, 1]
        stats = g.tensor(name="stats", dim=[*q[:3], 1], stride=rows, data_type=cudnn.data_type.FLOAT)
        gradients = g.sdpa_backward(*operands, o, do, stats, **how)
        for result, extents in zip(gradients, (q, k, v)):
            result.set_output(True).set_dim(extents).set_stride(packed(extents))
    try:
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A])
        g.check_support()
    except Exception as error:  # whatever it says is why
        return str(error)[:200]
    return None


# What must be refused, so that being accepted says something: a convolution without workspace, an attention over
# 7 elements.
NO_WORKSPACE = {
    "direction": "forward", "dtype": "bf16", "group": 1, "last": False, "workspace": 0, "input": [64, 64, 56, 56],
    "filter": [64, 64, 3, 3], "output": [64, 64, 56, 56], "pads": [[1, 1], [1, 1]], "strides": [1, 1], "dilations": [1, 1],
}  # fmt: skip
ODD = ("attention", {"spec": {"scale": 1.0}}, [("bf16", [8, 12, 1024, 7])] * 3)


def main():
    arenic, *artifacts = sys.argv[1:]
    here = pathlib.Path(__file__).parent / "devices"
    described = {name: (here / f"{name}.json").read_text() for name in DEVICES}
    devices = {
        name: (json.loads(text)["deviceVer"] // 10, cudnn.create_device_properties(text)) for name, text in described.items()
    }
    convolutions, attentions = {}, {}
    for artifact in artifacts:
        text = subprocess.run([arenic, "inspect", artifact], capture_output=True, text=True, check=True).stdout
        for op, attributes, x, y, scratch in nodes(text):
            c = convolution(op, attributes, x, y, scratch)
            if c:
                convolutions.setdefault(json.dumps(c), (artifact, c))
            elif op in ("attention", "attention_grad"):
                attentions.setdefault(json.dumps([op, attributes, x]), (artifact, (op, attributes, x)))
    counts = {}

    def note(kind, name, artifact, said, expected, what):
        state = "ok" if not said else "expected" if expected else "WRONG"
        counts[kind, name, state] = counts.get((kind, name, state), 0) + 1
        if said:
            print(f"{state}: {pathlib.Path(artifact).stem}, {name}: {said}: {what}", flush=True)

    for name, (_, device) in devices.items():
        if not judged(NO_WORKSPACE, device):
            sys.exit(f"{name}: a convolution without workspace has a plan by tensor cores: nothing is shown by this")
        for artifact, c in convolutions.values():
            said = judged(c, device)
            expected = bool(said) and any(said.startswith(what) and of(c) for what, of in EXPECTED.items())
            note("convolutions", name, artifact, said, expected, c)
    load_stand_ins()
    for name, (capability, device) in devices.items():
        os.environ["DESCRIBED_CAPABILITY"] = str(capability)
        if not attention(*ODD, device):
            sys.exit(f"{name}: an attention over 7 elements is taken: nothing is shown by this")
        for artifact, of in attentions.values():
            note("attentions", name, artifact, attention(*of, device), False, of)
    for (kind, name, state), count in sorted(counts.items()):
        print(f"{name}: {count} {kind} {state}")
    return 1 if not counts or any(state == "WRONG" for _, _, state in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
