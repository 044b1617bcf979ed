"""Placement: every method on every instance, height over lower bound and seconds.

usage: place_tables.py [--arenic BIN] [--effort S] INSTANCE.csv ...
"""

import argparse
import json
import os
import subprocess
import tempfile

import records

METHODS = {
    "smartpool_first_fit": "- place_smartpool: {fit: first}\n",
    "smartpool_best_fit": "- place_smartpool\n",
    "pyramid": "- place_pyramid\n",
    "heuristics": "- place: {effort: 0}\n",
    "place": "- place\n",
}


def height_of(method):
    """The cell of a method: 1 where the lower bound is met exactly."""

    def cell(row):
        over = row[f"{method}_over_bound"]
        return f"{'1' if over == 1 else f'{over:.5f}'} ({row[f'{method}_seconds']:.2f} s)"

    return cell


COLUMNS = {
    "instance": "instance",
    "lower_bound_bytes": ("bytes", "d"),
    **{f"{method}_over_bound": (method.replace("_", " "), height_of(method)) for method in METHODS},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--effort", help="effort of `place`; its default otherwise")
    records.add_options(parser)
    parser.add_argument("instances", nargs="+")
    a = parser.parse_args()
    if a.effort is not None:
        METHODS["place"] = f"- place: {{effort: {a.effort}}}\n"
    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, a.record, arenic=a.arenic) as record:
        table = record.table(COLUMNS)
        pipeline = os.path.join(folder, "p.yaml")
        for path in a.instances:
            cells, bound = {}, 0
            for method, yaml in METHODS.items():
                with open(pipeline, "w") as f:
                    f.write(yaml)
                command = [a.arenic, "place", path, "--json", "--pipeline", pipeline]
                found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                bound = found["lower_bound"]
                cells[f"{method}_over_bound"] = found["height"] / bound if bound else 1.0
                cells[f"{method}_seconds"] = found["seconds"]
            name = os.path.basename(path).removesuffix(".csv")
            table.add(instance=name, lower_bound_bytes=bound, **cells)


if __name__ == "__main__":
    main()
