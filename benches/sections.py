"""The sections of BENCHMARKS.md: how each subject is measured, and its newest rows, as tables and paragraphs.

A section is a function of the records of some scripts. Where there are none it gives nothing, and is left out.
"""

import math

from markdown_text import by_machine, by_threads, figure, label, paragraph, percent, percents, ratio, slashes, source
from markdown_text import table
from records import newest

HEAD = """\
# Benchmarks

<!-- Written by benches/page.py from benches/results. -->

The newest figures of each subject. Scripts (`make bench`, `make bench-…`) write records to `benches/results`, which
have more subjects, rows and fields than this page.

- Ratios are of runs side by side, by turns; below 1 arenic is faster. Do not compare rows of different records: they
  are of other days, and often of other machines.
- `653/346` are figures of what the head of the column or the row names, such as one and two threads.
- `peak` is resident memory above what the process had before. MiB are 2^20 bytes, MB and GB 10^6 and 10^9.
- Below a table are dates, commits, the machine where it is known, and the newest command. Machines are virtual and
  shared; their speed changes by a half within minutes. Before 30 November 2026 the commit is the one that wrote the
  figures down.
"""
SECTIONS = []


def section(title, method, *scripts):
    """Registers a section, whose function takes the records of each of these scripts."""

    def register(body):
        SECTIONS.append((title, method, scripts, body))
        return body

    return register


def texts(found):
    """The texts of all sections that have records."""
    for title, method, scripts, body in SECTIONS:
        blocks = [block for block in body(*(found.get(script, []) for script in scripts)) if block]
        if blocks:
            yield "\n\n".join([f"## {title}", *filter(None, [paragraph(method)]), *blocks]) + "\n"


def only(groups):
    """The rows of groups of one row each."""
    return [row for _, (row,) in groups.values()]


def row_of(groups, *key):
    """The first row of a group, or one without fields."""
    return groups[key][1][0] if key in groups else {}


def firsts(groups):
    """What keys of groups begin with, each once."""
    return dict.fromkeys(key[0] for key in groups)


def mean(values):
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


# ------------------------------------------------------------------------- beside others
@section(
    "Steps at sizes that people train",
    """SGD with momentum, medians of turns, beside the faster of eager and compiled PyTorch, and onnxruntime on what
    `arenic export` writes. Images are 224 × 224 (unet: 128 × 128), sequences 256 (gpt2), 128 (bert), 64 tokens (lstm).
    `over` is over the faster PyTorch of each turn; `peak` is arenic's, and PyTorch's least.""",
    "real_steps",
    "other_steps",
)
def real_steps(records, by_hand):
    blocks = []
    for of_machine in by_machine(records):
        groups, of_counts = newest(of_machine, "network", "batch", "threads", table="steps"), {}
        for key, threads in by_threads(groups).items():
            of_counts.setdefault(slashes(threads), []).append([*key, *real_step(threads.values())])
        for counts, rows in of_counts.items():
            who = [f"PyTorch, ms on {counts} threads", "onnxruntime", "arenic"]
            blocks.append(table(["network", "batch", *who, "over", "peak, MiB"], rows))
        blocks.append(source(groups))
    if groups := newest(by_hand, "network", threads=2):
        said = "; ".join(f"{network} {other_step(rows)}" for (network,), (_, rows) in groups.items())
        text = f"By hand, eager PyTorch/arenic, ms and MiB of peaks on two threads: {said}."
        blocks.append(paragraph(f"{text} {source(groups)}"))
    return blocks


def real_step(groups):
    """The cells of a network and batch: figures for each number of threads."""

    def least(field, *trainers):
        of_trainers = ([row.get(field) for row in rows if row["trained_by"] in trainers] for _, rows in groups)
        return [min(filter(None, values), default=None) for values in of_trainers]

    def extreme(of, values):
        return of(filter(None, values), default=None)

    times = [slashes(least("ms_per_step", *who)) for who in (("eager", "compile"), ("onnxruntime",), ("arenic",))]
    ours, theirs = least("peak_mib", "arenic"), least("peak_mib", "eager", "compile")
    over = slashes(map(ratio, least("over_fastest", "arenic")))
    return [*times, over, slashes([extreme(max, ours), extreme(min, theirs)])]


def other_step(rows):
    """What is said of a network that no script measures."""
    of = {row["trained_by"]: row for row in rows}
    return ", ".join(slashes(of[who][field] for who in ("eager", "arenic")) for field in ("ms_per_step", "peak_mib"))


@section(
    "Small steps beside onnxruntime",
    "Medians of alternating rounds. onnxruntime carries states over by I/O binding.",
    "step_times",
)
def step_times(records):
    blocks = []
    for of_machine in by_machine(records):
        groups, of_counts = newest(of_machine, "graph", "threads"), {}
        for key, threads in by_threads(groups).items():
            rows = only(threads)
            cells = [slashes(row["arenic_ms"] for row in rows), slashes(ratio(row["ratio"]) for row in rows)]
            of_counts.setdefault(slashes(threads), []).append([*key, *cells])
        for counts, rows in of_counts.items():
            blocks.append(table(["graph", f"arenic, ms on {counts} threads", "over onnxruntime"], rows))
        blocks.append(source(groups))
    return blocks


@section(
    "Single operators",
    "Microseconds on one thread, by `arenic profile` and by onnxruntime in turn.",
    "single_operators",
)
def single_operators(records):
    machines = [newest(of_machine, "operator") for of_machine in by_machine(records)]
    rows, titles = [], ["operator"]
    for groups in machines:
        record, _ = next(iter(groups.values()))
        titles += [label(record["machine"]), "ratio"]
    for (operator,) in dict.fromkeys(key for groups in machines for key in groups):
        cells = [operator]
        for groups in machines:
            row = row_of(groups, operator)
            cells += [slashes([row.get("arenic_us"), row.get("onnxruntime_us")]), ratio(row.get("ratio"))]
        rows.append(cells)
    return [table(titles, rows), *map(source, machines)]


# ------------------------------------------------------------------------------ planning
@section("Compile time", "", "compile_times", "compile_networks", "build")
def compile_times(synthetic, networks, builds):
    blocks = []
    if groups := newest(synthetic, "nodes"):
        rows = sorted(only(groups), key=lambda row: row["nodes"])
        said = ", ".join(f"{row['operators']} operators {figure(row['seconds'])} s" for row in rows)
        blocks.append(f"Deep perceptrons with momentum: {said}. {source(groups)}")
    if groups := newest(networks, "network"):
        said = ", ".join(f"{row['network']} {row['seconds']}" for row in only(groups))
        blocks.append(f"Networks as above, with their weights, in seconds: {said}. {source(groups)}")
    if groups := newest(builds, "features"):
        said = ", ".join(
            f"{row['crates']} crates, {row['seconds']} s, {row['core_minutes']:.1f} core-minutes" for row in only(groups)
        )
        blocks.append(f"arenic itself: {said}. {source(groups)}")
    return map(paragraph, blocks)


ORDERS = {
    "best": "`order`",
    "definition": "as defined",
    "freed_minus_allocated": "XLA's list scheduler",
    "least_peak_first": "Inductor's scheduler",
    "eager_free": "eager free",
    "depth_first": "XLA's depth first",
    "olla": "OLLA",
}


@section(
    "Order",
    """Peaks over the certified bound, on memory graphs of traced steps and on whole steps as ONNX; after the slash, the
    same method on the reversed graph. Peaks further than 0.01 % from their bound follow.""",
    "order_tables",
)
def order(records):
    groups = newest(records, "graph")
    rows, summary = only(groups), []
    if not rows:
        return []
    for method, name in ORDERS.items():
        ways = [way for way in (method, f"{method}_reversed") if f"{way}_mib" in rows[0]]
        over = [[row[f"{way}_mib"] / row["bound_mib"] for row in rows] for way in ways]
        best = sum(row[f"{method}_mib"] <= row["best_mib"] for row in rows)
        cells = [slashes(ratio(of(way), digits) for way in over) for of, digits in ((mean, 3), (max, 2))]
        summary.append([name, *cells, best])
    proved = sum(row["proved_optimal"] for row in rows)
    far = [row for row in rows if row["best_mib"] > 1.0001 * row["bound_mib"]]
    gaps = [f"{row['graph']} {row['best_mib']:.2f} MiB of {row['bound_mib']:.2f}" for row in far]
    return [
        table(["method", "geometric mean", "at most", f"as low as `order`, of {len(rows)}"], summary),
        paragraph(f"`order` proves {proved} optimal; {', '.join(gaps)}. {source(groups)}"),
    ]


@section(
    "Placement",
    """Heights over the lower bound, of instances of MiniMalloc (`A` to `K`) and idealloc (`somas`, `iopddl`), of
    PyTorch's training graphs, and of transformers of up to 100,000 operators.""",
    "place_tables",
)
def placement(records):
    groups = newest(records, "instance")
    rows, summary = only(groups), []
    if not rows:
        return []
    for method in ("place", "heuristics", "smartpool_first_fit", "smartpool_best_fit", "pyramid"):
        over = [row[f"{method}_over_bound"] for row in rows]
        at_bound = sum(height == 1 for height in over)
        summary.append([method.replace("_", " "), ratio(mean(over), 4), ratio(max(over), 4), at_bound])
    hard = [
        f"{row['instance']} {ratio(row['place_over_bound'], 5)} in {figure(row['place_seconds'])} s"
        for row in rows
        if row["place_over_bound"] > 1 or row["place_seconds"] >= 1
    ]
    text = f"`place`, above the bound or in a second or more: {', '.join(hard)}."
    return [
        table(["method", "geometric mean", "at most", f"at the bound, of {len(rows)}"], summary),
        paragraph(f"{text} {source(groups)}"),
    ]


@section(
    "Solvers of integer programs",
    "Peaks, heights and times by microlp over those by HiGHS.",
    "solver_tables",
)
def solvers(records):
    groups = newest(records, "file", "pipeline")
    programs = {}
    for row in only(groups):
        programs.setdefault(row["pipeline"], []).append(row)
    rows = []
    for pipeline, found in sorted(programs.items()):
        over = [row["over"] for row in found]
        seconds = [sum(row[f"{name}_seconds"] for row in found) for name in ("microlp", "highs")]
        rows.append([pipeline, len(found), ratio(max(over), 4), *map(figure, seconds)])
    titles = ["passes", "programs", "at most", "microlp, s", "HiGHS, s"]
    return [table(titles, rows), source(groups)]


@section("Pipelines", "Arenas of joint steps (batch 32, Adam), in MiB.", "pipeline_tables", "joint_steps")
def pipelines(records, today):
    named, groups = ["definition", "smartpool", "mxnet", "olla", "default"], newest(records, "graph")
    rows = [[network_of(row), *(f"{row[f'{name}_mib']:.0f}" for name in named)] for row in only(groups)]
    blocks = [table(["graph", *named], rows), source(groups, False)]
    if groups := newest(today, "graph"):
        arenas = ", ".join(f"{network_of(row)} {figure(row['arena_mib'])}" for row in only(groups))
        above = [row for row in only(groups) if row["arena_mib"] > 1.0001 * row["bound_mib"]]
        bounds = ", ".join(f"{network_of(row)} ({row['bound_mib']:.1f})" for row in above)
        text = f"`default` with newer rewrites: {arenas}. All are at their bound to 0.01 % but {bounds}."
        blocks.append(paragraph(f"{text} {source(groups, False)}"))
    return blocks


def network_of(row):
    """The network of a joint step."""
    return row["graph"].removeprefix("joint_").removesuffix("_b32_adamop")


# --------------------------------------------------------------------------- byte limits
# In per cent of an arena: what of the limits that were tried is shown.
SHOWN = (70, 50)


@section(
    "Byte limits (simulated)",
    """What limits add to a step, in per cent, at 70/50 % of the arena: joint steps (batch 32, Adam), on devices; and
    steps of papers, by strategies, on gtx1080ti. ✗: refused.""",
    "limits",
    "budget_tables",
    "limits_tvdnn",
)
def limits(joint, papers, tvdnn):
    blocks = [under_limits(joint)]
    groups = newest(papers, "graph", "strategy", table="costs")
    strategies, rows = dict.fromkeys(strategy for _, strategy in groups), []
    for graph in firsts(groups):
        of = [row_of(groups, graph, strategy) for strategy in strategies]
        rows.append([graph, *(percents(row.get(f"overhead_at_{limit}") for limit in SHOWN) for row in of)])
    blocks += [table(["step", *strategies], rows), source(groups, False)]
    saved = []
    for row in only(newest(papers, "graph", table="settings")):
        parts = percents(row[f"saved_at_{cost}_percent"] for cost in ("0.1", "5"))
        saved.append(f"{row['graph'].split('_')[0]} {parts}")
    if saved:
        text = "AutoSwap's settings, per cent of the load saved for 0.1/5 % of a step"
        blocks.append(paragraph(f"{text}: {', '.join(saved)}."))
    if groups := newest(tvdnn, "step", "device"):
        said = [f"{' '.join(key)} {percents(row['overhead'] for row in rows)}" for key, (_, rows) in groups.items()]
        blocks.append(paragraph(f"tvDNN's settings, at 4/11 GiB: {'; '.join(said)}. {source(groups, False)}"))
    return blocks


def under_limits(joint):
    """What limits add to joint steps, by device."""
    groups, of_devices = newest(joint, "device", "host_percent", "step", "limit_percent"), {}
    for device, host, step in dict.fromkeys(key[:-1] for key in groups):
        overheads = [row_of(groups, device, host, step, limit).get("overhead") for limit in SHOWN]
        if any(overhead is not None for overhead in overheads):
            name = f"{device} with {host} % in host memory" if host else device
            of_devices.setdefault(name, []).append(f"{step} {percents(overheads, '–')}")
    said = "; ".join(f"{name}: {', '.join(cells)}" for name, cells in sorted(of_devices.items()))
    return paragraph(f"{said}. {source(groups, False)}") if said else ""


@section(
    "Recomputation alone",
    """Simulated, without host memory: what 70/50 % of the arena add to a joint step, in per cent, and in brackets what
    any order adds at least. ✗: refused. On gtx1080ti it is much as on h100.""",
    "recomputation",
)
def recomputation(records):
    groups = newest(records, "device", "step", basis="arena")
    rows, devices = [], ("h100", "cpu")
    for step in dict.fromkeys(step for _, step in groups):
        cells = [step]
        for device in devices:
            at = {row["limit_percent"]: row for row in groups[device, step][1]}
            added, least = (percents(at[limit][f] for limit in SHOWN) for f in ("overhead", "overhead_at_least"))
            cells.append(f"{added} ({least})")
        rows.append(cells)
    return [table(["step", *devices], rows), source(groups, False)]


@section(
    "Real runs under limits",
    """SGD with momentum, two threads: peak MiB/ms a step. PyTorch runs eagerly, with a checkpoint for each block, and
    compiled (with a budget of 0.5); limits are of what the arena holds beside states.""",
    "limited_runs",
)
def limited_runs(records):
    blocks = []
    for of_machine in by_machine(records):
        groups, rows = newest(of_machine, "network"), []
        networks = [{row["trained_by"]: row for row in found} for _, found in groups.values()]
        for who in dict.fromkeys(who for network in networks for who in network):
            of = [network.get(who, {}) for network in networks]
            cells = (slashes(row.get(field) for field in ("peak_mib", "ms_per_step")) for row in of)
            rows.append([who.removeprefix("PyTorch, "), *cells])
        blocks += [table(["", *firsts(groups)], rows), source(groups)]
    return blocks


@section(
    "Micro-batches chosen with the limit",
    "`--accumulate auto`: micro-batches, and per cent over the whole batch's step, measured.",
    "micro_batches",
)
def micro_batches(records):
    blocks = []
    for of_machine in by_machine(records):
        groups, rows = newest(of_machine, "network"), []
        tried = dict.fromkeys(row["limit_percent"] for _, of in groups.values() for row in of if row["limit_percent"])
        for (network,), (_, of) in groups.items():
            cells = {
                row["limit_percent"]: f"{row['micro_batches']}: {percent(row['overhead'])}"
                for row in of
                if row["limit_percent"] and row["micro_batches"]
            }
            rows.append([network, *(cells.get(limit, "✗") for limit in tried)])
        blocks += [table(["network", *(f"{limit} %" for limit in tried)], rows), source(groups)]
    return blocks


@section("Variants in one arena", "Seconds an epoch of the process's own time, and bytes of the arena.", "variants")
def variants(records):
    groups = newest(records, "network", "programs")
    said = []
    for key, (_, (row,)) in groups.items():
        said.append(f"{', '.join(key)} {row['seconds_per_epoch']:.2f} s, {row['arena_bytes']}")
    return [paragraph(f"{'; '.join(said)}. {source(groups)}")] if said else []


# ----------------------------------------------------------------------- steps, the loop
@section(
    "Rewrites",
    """Pipelines `as_exported`/`default`; and `default`'s arena over the most that PyTorch's tensors hold, eager or
    compiled. Steps below 1 MiB are in the record alone.""",
    "rewrite_tables",
)
def rewrites(records):
    groups, rows = newest(records, "step"), []
    large = [row for row in only(groups) if row["default_arena_mib"] >= 1]
    counts = sorted({field.split("_")[2] for row in large for field in row if field.startswith("default_ms")})
    for row in large:
        fields = ["arena_mib", *(f"ms_{count}_threads" for count in counts)]
        arena, *times = (slashes(row.get(f"{way}_{field}") for way in ("as_exported", "default")) for field in fields)
        rows.append([row["step"], arena, ratio(row.get("of_live")), *times])
    titles = ["step", "MiB", "over PyTorch", *(f"ms, threads: {count}" for count in counts)]
    return [table(titles, rows), source(groups)]


@section("Steps made of forward models", "By `--loss`/as PyTorch's joint graphs; batch 4.", "forward_tables")
def forward(records):
    blocks = []
    for of_machine in by_machine(records):
        groups, rows = newest(of_machine, "step"), []
        for row in only(groups):
            cells = (slashes([row[field], row[f"exported_{field}"]]) for field in ("arena_kib", "ms_per_step"))
            rows.append([row["step"], *cells])
        blocks += [table(["step", "arena, KiB", "ms"], rows), source(groups)]
    return blocks


@section("A loop in Python", "", "trainer_overhead", "python_examples")
def python(overhead, examples):
    blocks = []
    if groups := newest(overhead):
        ((_, rows),) = groups.values()
        least, most = (of(row["beside_us"] for row in rows) for of in (min, max))
        said = f"{least:.1f} to {most:.1f}" if most > least else f"{most:.1f}"
        blocks.append(paragraph(f"`Trainer.step` takes {said} µs beside a step of `mlp`. {source(groups)}"))
    groups = newest(examples, "script")
    rows = [[*key, *(slashes([row["ms_per_step"], row["mib"]]) for row in of)] for key, (_, of) in groups.items()]
    trainers = dict.fromkeys(row["trained_by"] for _, of in groups.values() for row in of)
    return [*blocks, table(["ms/MiB", *trainers], rows), source(groups)]


@section(
    "Several ranks (processes of one machine)",
    "The GPT of `models/text`, 32 rows in all, one thread a rank: MiB of the arena/resident/of MPI/ms a step.",
    "ranks_times",
)
def ranks_times(records):
    blocks, fields = [], ("arena_mib", "resident_mib", "mpi_mib", "ms_per_step")
    for of_machine in by_machine(records):
        groups = newest(of_machine, "shard", "ranks")
        counts, rows = sorted({count for _, count in groups}), []
        for shard in firsts(groups):
            of = [row_of(groups, shard, count) for count in counts]
            rows.append([shard, *(slashes(row.get(field) for field in fields) for row in of)])
        blocks += [table(["`--shard`", *(f"ranks: {count}" for count in counts)], rows), source(groups)]
    return blocks


@section(
    "Several ranks (simulated)",
    "AdamW in f32, one sequence of 1,024 tokens a rank, planned for eight ranks without weights.",
    "ranks_tables",
)
def ranks_tables(records):
    groups, rows, ranks = newest(records, "network", "level"), [], ""
    for key, (_, of) in groups.items():
        ends = (of[0], of[-1])
        ranks = slashes(row["ranks"] for row in ends)
        gb, ms = (slashes(row[field] for row in ends) for field in ("gb_per_rank", "ms_per_step"))
        rows.append([*key, gb, ms, percents(row["efficiency"] for row in ends)])
    titles = ["network", "`--shard`", f"GB a rank, {ranks} ranks", "ms", "efficiency, %"]
    return [table(titles, rows), source(groups, False)]


# ---------------------------------------------------------------------- zoo, fuzzers, GPUs
@section("The zoo: networks of PyTorch's libraries", "", "zoo")
def zoo(records):
    groups = newest(records, "exporter")
    rows = only(groups)
    if not rows:
        return []
    said = "; ".join(f"`{row['exporter']}` {row['exported']}, {row['equal']}" for row in rows)
    text = f"""Of {rows[0]['networks']} networks so many are exported, and so many have PyTorch's losses for three
        steps: {said}. Of each other one the export or the compiler says why. All are in
        [`models/zoo/README.md`](models/zoo/README.md)."""
    return [paragraph(f"{text} {source(groups, False)}")]


@section("Fuzzers", "", "fuzzers")
def fuzzers(records):
    groups = newest(records, "target")
    rows = only(groups)
    executions, seconds, failures = (sum(row[field] for row in rows) for field in ("executions", "seconds", "failures"))
    said = f"{len(rows)} targets, {executions:,} executions in {seconds / 3600:.1f} hours of a core"
    return [paragraph(f"{said}; failures: {failures}. {source(groups, False)}")] if rows else []


ON_GPUS = {
    "gpt2_124m_b8": "GPT-2 124M, 8 × 1,024",
    "vit_b_16_b64": "ViT-B/16, 64 × 224²",
    "resnet50_b256": "ResNet-50, 256 × 224²",
    "unet_b8": "U-Net, 8 × 256²",
}


@section(
    "On a GPU",
    """bf16, medians of 30 steps; arenic copies its batch to the device in each. The limit is 0.7 of what compiled
    PyTorch allocates; MiB are what it allocates, and arenic's arena. Rates in `passes/devices` are fitted to these
    steps.""",
    "gpu_benchmarks",
    "gpu_checks",
)
def gpu(records, checks):
    rows = []
    for step, of in steps_on_gpus(records).items():
        times = [figure(of[who].get("ms_per_step")) for who in ("eager", "compile", "arenic", "limited")]
        over = slashes(ratio(of[who].get("over_compiled")) for who in ("arenic", "limited"))
        sizes = slashes(of[who].get("allocated_mib") for who in ("compile", "arenic", "limited"))
        rows.append([ON_GPUS.get(step, step), *times, over, sizes])
    titles = ["step", "eager, ms", "compiled", "arenic", "under limit", "over compiled", "MiB"]
    blocks = [table(titles, rows), source(bf16(records))]
    if groups := newest(checks):
        ((_, found),) = groups.values()
        said = "; ".join(f"{row['date']} {row['what']}" for row in found)
        blocks.append(paragraph(f"Checks: {said}. {source(groups, False)}"))
    return blocks


def bf16(records):
    """The newest row of each step, trainer and limit."""
    return newest(records, "step", "trained_by", "limit_mib", precision="bf16")


def steps_on_gpus(records):
    """By step, rows by trainer, of which `limited` is arenic under a limit; arenic's are over compiled PyTorch's."""
    found = {}
    for (step, trainer, limit), (_, (row,)) in bf16(records).items():
        of = found.setdefault(step, {who: {} for who in ("eager", "compile", "arenic", "limited")})
        of["limited" if limit else trainer] = row
    for of in found.values():
        for who in ("arenic", "limited"):
            if of[who] and of["compile"]:
                of[who] = {**of[who], "over_compiled": of[who]["ms_per_step"] / of["compile"]["ms_per_step"]}
    return found
