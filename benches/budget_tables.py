#!/usr/bin/env python3
"""Prints what byte limits cost, by strategy, and the papers' settings, as Markdown tables.

    benches/budget_tables.py --arenic target/release/arenic GRAPH.onnx …

All times are simulated on --device, all files compiled with `--plan-only`. A strategy is a pass that
takes the place of `budget` in the pipeline `as_exported`, and of `section`, which belongs to it, so that all
begin with the same graph and order;
those that this arenic does not have are left out. Limits are parts of the arena that this
pipeline needs without a limit, the same bytes for all. A cell is the overhead over the step without a
limit and the seconds of planning; `✗` where the strategy keeps no such limit, `–` where the device has
less memory. What follows the table says how often `budget` was the fastest.

The second table is AutoSwap's (section VI-B): `load` is the live peak in definition order without
sharing in place, workspaces included (the pipeline `definition`). The limit is bisected until the
first strategy's overhead is just within 0.1 %, and within 5 %; `saved` is the part of the load that
the plan found does without.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import records

# Passes, and options that limit the seconds of those that search for long.
STRATEGIES = {
    "budget": "",
    "swap_autoswap": "",
    "swap_ilp": ": {effort: 5}",
    "plan_dqn": ": {effort: 15}",
    "recompute": ": {effort: 5}",
}
PERCENTAGES = [90, 70, 50, 35]
OVERHEADS = {"0.1": 0.001, "5": 0.05}
# Of the load: limits are not told apart more finely.
RESOLUTION = 0.005
# Of a step: closer ones are as fast.
CLOSE = 1e-4
BEYOND, IMPOSSIBLE = "–", "✗"


def cost_of(percent):
    """The cell of a limit: an overhead and seconds, or why there is none."""

    def cell(row):
        found = row[f"overhead_at_{percent}"]
        return found if isinstance(found, str) else f"{found:+.1%} ({row[f'planning_seconds_at_{percent}']:.1f} s)"

    return cell


COSTS = {
    "graph": "graph",
    "arena_mb": ("MB", ".1f"),
    "strategy": "strategy",
    **{f"overhead_at_{percent}": (f"{percent} %", cost_of(percent)) for percent in PERCENTAGES},
}
SETTINGS = {
    "graph": "graph",
    "load_mb": ("load, MB", ".1f"),
    "arena_mb": ("arena, MB", ".1f"),
    "saved": ("saved", ".1%"),
    "mb_at_0.1_percent": ("MB at 0.1%", ".1f"),
    "saved_at_0.1_percent": ("saved", ".1%"),
    "mb_at_5_percent": ("MB at 5%", ".1f"),
    "saved_at_5_percent": ("saved", ".1%"),
    "compilations": ("compilations", "d"),
}


class Compiler:
    def __init__(self, arenic, device, folder):
        self.arenic, self.device, self.folder, self.out = arenic, device, folder, folder / "out.arenic"

    def said(self, *arguments):
        return subprocess.run([self.arenic, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout

    def passes(self):
        return set(json.loads(self.said("pipeline", "schema"))["items"]["anyOf"][0]["enum"])

    def pipeline(self, strategy):
        """The pipeline `as_exported` with a strategy in the place of `budget`."""
        yaml = self.said("pipeline", "show", "as_exported")
        if strategy != "budget":
            alone = f"- {strategy}{STRATEGIES.get(strategy, '')}"
            yaml = yaml.replace("- budget", alone).replace("- section\n", "")
        file = self.folder / f"{strategy}.yaml"
        file.write_text(yaml)
        return file

    def arena(self, file):
        """Bytes that the pipeline `as_exported` needs without a limit, the device's included."""
        options = ["--plan-only", "--json", "--device", self.device, "--sweep", "100%..100%", "--pipeline", "as_exported"]
        return json.loads(self.said("compile", file, *options))["limit_bytes"]

    def compile(self, file, pipeline, limit=None):
        """The figures of a plan, or why nothing keeps the limit."""
        command = [self.arenic, "compile", file, "--plan-only", "--json", "-o", self.out, "--pipeline", pipeline]
        if limit is not None:
            command += ["--device", self.device, "--device-memory", str(limit)]
        done = subprocess.run(command, capture_output=True, text=True)
        said = " ".join(word for word in done.stderr.split() if word != "│")
        if done.returncode == 0:
            return json.loads(done.stdout)
        if limit is not None and "more than the device has" in said:
            return BEYOND
        if limit is not None and "bytes of device memory" in said:
            return IMPOSSIBLE
        raise SystemExit(f"{file}, {pipeline}: {done.stderr}")


def overhead(found):
    return max(found["predicted_step_seconds"] / found["unlimited_step_seconds"] - 1, 0)


def costs(compiler, file, strategies, table):
    """Adds a row for each strategy; the seconds of each step, by strategy and limit."""
    arena = compiler.arena(file)
    steps = {}
    for strategy in strategies:
        cells, pipeline = {}, compiler.pipeline(strategy)
        for percent in PERCENTAGES:
            found = compiler.compile(file, pipeline, arena * percent // 100)
            if isinstance(found, str):
                cells[f"overhead_at_{percent}"] = found
            else:
                cells[f"overhead_at_{percent}"] = overhead(found)
                cells[f"planning_seconds_at_{percent}"] = found["seconds"]
                steps[strategy, percent] = found["predicted_step_seconds"]
        table.add(graph=file.stem, arena_mb=arena / 1e6, strategy=strategy, **cells)
    return steps


def lead(steps, strategies):
    """How often the first strategy is as fast as the fastest, of how many limits that any keeps, and by
    what part of a step another was faster at most."""
    first, count, most = 0, 0, 0.0
    for percent in PERCENTAGES:
        seconds = [steps[s, percent] for s in strategies if (s, percent) in steps]
        if seconds:
            behind = steps.get((strategies[0], percent), float("inf")) / min(seconds) - 1
            first, count, most = first + (behind <= CLOSE), count + 1, max(most, behind)
    return first, count, most


def least(compiler, file, strategy, load, arena, most):
    """The smallest arena found whose overhead is at most `most`, in bytes, and the compilations. Takes
    every larger limit to cost no more."""
    low, high, limit = 0, arena, arena
    best, count = None, 0
    while high - low > RESOLUTION * load:
        found = compiler.compile(file, strategy, limit)
        count += 1
        if found == BEYOND:
            high = limit
        elif found == IMPOSSIBLE or overhead(found) > most:
            low = limit
        else:
            best = high = found["arena_bytes"]
        limit = (low + high) // 2
    return best, count


def settings(compiler, file, strategy, table):
    """Adds a row of what is saved at each overhead."""
    load = compiler.compile(file, "definition")["live_peak_bytes"]
    arena, strategy = compiler.arena(file), compiler.pipeline(strategy)
    cells, compilations = {"saved": 1 - arena / load}, 0
    for name, most in OVERHEADS.items():
        best, count = least(compiler, file, strategy, load, arena, most)
        compilations += count
        cells[f"mb_at_{name}_percent"] = None if best is None else best / 1e6
        cells[f"saved_at_{name}_percent"] = None if best is None else 1 - best / load
    table.add(graph=file.stem, load_mb=load / 1e6, arena_mb=arena / 1e6, **cells, compilations=compilations)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--device", default="gtx1080ti")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--only", choices=["costs", "settings"], help="print one of the tables")
    records.add_options(parser)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, args.record, arenic=args.arenic) as record:
        compiler = Compiler(args.arenic, args.device, pathlib.Path(folder))
        known, wanted = compiler.passes(), args.strategies.split(",")
        strategies = [s for s in wanted if s in known]
        if missing := [s for s in wanted if s not in known]:
            print(f"passes that this arenic does not have: {', '.join(missing)}", file=sys.stderr)
        if not strategies:
            raise SystemExit("no strategy is left")
        if args.only != "settings":
            table = record.table(COSTS, table="costs", device=args.device)
            leads = [lead(costs(compiler, file, strategies, table), strategies) for file in args.files]
            first, count = sum(l[0] for l in leads), sum(l[1] for l in leads)
            print(f"\n`{strategies[0]}` is as fast as the fastest in {first} of {count}; at most another takes")
            print(f"{max(l[2] for l in leads):.1%} of a step less.\n")
        if args.only != "costs":
            table = record.table(SETTINGS, table="settings", device=args.device)
            for file in args.files:
                settings(compiler, file, strategies[0], table)


if __name__ == "__main__":
    main()
