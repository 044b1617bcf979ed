#!/usr/bin/env python3
"""Writes BENCHMARKS.md, and the figures in README.md, from the records in benches/results.

    benches/page.py [--check]

Of each subject the page has the newest rows; `sections.py` says which. With `--check` nothing is written, and the exit
code is 1 where a file is not what would be written.
"""

import argparse
import difflib
import re
import sys

import records
import sections
from markdown_text import by_machine, figure, label, paragraph, table

PAGE, README = records.ROOT / "BENCHMARKS.md", records.ROOT / "README.md"
# Bytes of the page: nobody reads a longer one.
MOST = 20_000
BEGIN, END = "<!-- benches/page.py writes this -->\n", "<!-- to here -->\n"
TRAINERS = {"eager": "PyTorch, eager", "compile": "PyTorch, compiled", "onnxruntime": "onnxruntime", "arenic": "arenic"}
NETWORKS = {"resnet50": "ResNet-50, batch {}", "gpt2": "GPT-2, {} × 256 tokens"}
LIBRARIES = {"torch": "PyTorch", "onnxruntime": "onnxruntime"}
# The sentence, whatever its figures are.
ON_GPUS = re.compile(r"steps of \w+ networks took [^,|]+ of `torch\.compile`'s time, and [^,|]+ in 0\.7 of its bytes")
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def page(found):
    """The text of BENCHMARKS.md."""
    text = "\n".join([sections.HEAD, *sections.texts(found)])
    if (size := len(text.encode())) > MOST:
        raise SystemExit(f"{PAGE.name} would have {size} bytes of {MOST}: remove records that newer ones replace")
    return text


# ------------------------------------------------------------------------------- README
def readme(text, found):
    """README.md with the figures of the records in the place of those that it has."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{README.name} has no place for figures, between {BEGIN.strip()} and {END.strip()}")
    before, rest = text.split(BEGIN)
    blocks = [*beside_others(found["real_steps"]), under_limits(found["limited_runs"])]
    blocks.append(small_steps(found["step_times"]))
    text = f"{before}{BEGIN}\n" + "\n\n".join(blocks) + f"\n\n{END}{rest.split(END)[1]}"
    said = on_gpus(found["gpu_benchmarks"])
    text, count = ON_GPUS.subn(lambda _: said, text)
    if count != 1:
        raise SystemExit(f"{README.name} does not say once: {said}")
    return text


def beside_others(steps):
    """Networks on two threads beside PyTorch and onnxruntime, of the machine that was measured last."""
    for of_machine in by_machine(steps):
        groups = records.newest(of_machine, "network", "batch", "threads", table="steps")
        measured = {network: largest(groups, network) for network in NETWORKS}
        if all(measured.values()):
            break
    else:
        raise SystemExit(f"no machine has figures of {' and '.join(NETWORKS)} on two threads")
    rows = []
    for network, (_, of) in measured.items():
        name = NETWORKS[network].format(of[0]["batch"])
        for row in of:
            rows.append([name, TRAINERS[row["trained_by"]], figure(row["peak_mib"]), figure(row["ms_per_step"])])
            name = ""
    record = max((record for record, _ in measured.values()), key=lambda record: record["date"])
    versions = record["versions"]
    libraries = [f"{name} {versions[package]}" for package, name in LIBRARIES.items() if versions.get(package)]
    text = f"""Two threads of a shared virtual machine ({label(record['machine'])}), {' and '.join(libraries)},
        {record['date'][:10]}; how each figure was obtained stands in [BENCHMARKS.md](BENCHMARKS.md). `MiB` is peak
        resident memory beside what the process had before."""
    return [paragraph(text), table(["network", "trained by", "MiB", "ms a step"], rows)]


def largest(groups, network):
    """The group of a network on two threads that has all figures, of several that of the largest batch; or none."""
    of = {batch: group for (name, batch, threads), group in groups.items() if name == network and threads == 2}
    whole = [batch for batch, (_, rows) in of.items() if all(row.get("peak_mib") for row in rows)]
    return of[max(whole)] if whole else None


def under_limits(runs):
    """What half of the bytes cost ResNet-50, beside PyTorch's checkpoints."""
    record, rows = records.newest(runs, "network")["resnet50",]
    of = {row["trained_by"]: f"{row['peak_mib']:.0f} MiB and {row['ms_per_step']:.0f} ms a step" for row in rows}
    return paragraph(
        f"""ResNet-50 (batch 8) under a limit that leaves half of what the arena holds beside weights and moments took
        {of['arenic, 50%']}; without a limit {of['arenic, no limit']}, by eager PyTorch {of['PyTorch, eager']}, and with
        a checkpoint for each block {of['PyTorch, checkpoint']} ({record['date'][:10]})."""
    )


def small_steps(steps):
    """What part of onnxruntime's time small steps take."""
    rows = [row for _, of in records.newest(steps, "graph", "threads").values() for row in of]
    least, most = (of(row["ratio"] for row in rows) for of in (min, max))
    return f"Steps of small graphs take {least:.2f} to {most:.2f} of onnxruntime's time on the same file."


def on_gpus(measured):
    """What part of `torch.compile`'s time steps take on a GPU."""
    steps = sections.steps_on_gpus(measured).values()
    free, limited = ([of[who]["over_compiled"] for of in steps if of[who]] for who in ("arenic", "limited"))
    return (
        f"steps of {NUMBERS[len(free)]} networks took {min(free):.2f} to {max(free):.2f} of `torch.compile`'s time, "
        f"and {min(limited):.2f} to {max(limited):.2f} in 0.7 of its bytes"
    )


# --------------------------------------------------------------------------------- main
def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file would change")
    check = parser.parse_args().check
    found = records.load(records.RESULTS)
    stale = 0
    for path, text in ((PAGE, page(found)), (README, readme(README.read_text(), found))):
        before = path.read_text() if path.exists() else ""
        if not check:
            path.write_text(text)
        elif before != text:
            stale = 1
            changes = list(difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm=""))
            print(f"{path.name} is not what benches/page.py writes from benches/results; run it:", file=sys.stderr)
            print("\n".join(changes[2:12]), file=sys.stderr)
    return stale


if __name__ == "__main__":
    sys.exit(main())
