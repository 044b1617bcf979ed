"""Placement: every method on every instance, height over lower bound and seconds.

usage: place_tables.py [--arenic BIN] [--effort S] INSTANCE.csv ...
"""

import argparse
import json
import os
import subprocess
import tempfile

METHODS = {
    "smartpool, first fit": "- place_smartpool: {fit: first}\n",
    "smartpool, best fit": "- place_smartpool\n",
    "pyramid": "- place_pyramid\n",
    "heuristics": "- place: {effort: 0}\n",
    "place": "- place\n",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--effort", help="effort of `place`; its default otherwise")
    parser.add_argument("instances", nargs="+")
    a = parser.parse_args()
    if a.effort is not None:
        METHODS["place"] = f"- place: {{effort: {a.effort}}}\n"
    print("| instance | bytes | " + " | ".join(METHODS) + " |")
    print("|---|---|" + "---|" * len(METHODS))
    with tempfile.TemporaryDirectory() as folder:
        pipeline = os.path.join(folder, "p.yaml")
        for path in a.instances:
            cells, bound = [], 0
            for yaml in METHODS.values():
                with open(pipeline, "w") as f:
                    f.write(yaml)
                command = [a.arenic, "place", path, "--json", "--pipeline", pipeline]
                row = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                bound = row["lower_bound"]
                ratio = row["height"] / bound if bound else 1.0
                shown = "1" if row["height"] == bound else f"{ratio:.5f}"
                cells.append(f"{shown} ({row['seconds']:.2f} s)")
            name = os.path.basename(path).removesuffix(".csv")
            print(f"| {name} | {bound} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
