"""Records of benchmarks: the rows that a script measures, with the machine, date, commit, versions and command.

A script declares the columns of its table, and adds rows, which are printed and kept:

    COLUMNS = {"network": "network", "ms_per_step": ("ms a step", ".1f")}

    with Record(__file__, arguments.record, arenic=arguments.arenic, packages=["torch"]) as record:
        table = record.table(COLUMNS)
        table.add(network="resnet50", ms_per_step=812.34)

A record is `FOLDER/SCRIPT/MACHINE-DATE-COMMIT.json`. Its rows are flat objects, one a line, whose fields have their
unit in their name; what is not known is null. `page.py` makes BENCHMARKS.md of the records in `benches/results`. This
file needs nothing but Python 3.9, since it goes to machines with a GPU as well.
"""

import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
# What /proc/cpuinfo calls them, and what one looks for.
INSTRUCTIONS = {"avx2": "avx2", "avx512f": "avx512", "avx512_bf16": "avx512_bf16", "amx_bf16": "amx_bf16"}
# What differs from a commit without changing what is measured.
NOT_MEASURED = ["*.md", "benches/results", "docs"]


def add_options(parser):
    """The options of every script that writes a record."""
    shown = RESULTS.relative_to(ROOT)
    text = f"where the record goes, in a folder by the script's name [default: {shown}]"
    parser.add_argument("--record", type=pathlib.Path, default=RESULTS, metavar="FOLDER", help=text)
    parser.add_argument("--no-record", dest="record", action="store_const", const=None, help="write no record")


# ------------------------------------------------------------------------------ tables
def line(cells):
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(titles, is_number):
    """The head of a Markdown table, whose numbers are aligned right."""
    return f"{line(titles)}\n|{''.join('-:|' if right else '-|' for right in is_number)}"


class Table:
    """Prints rows as a Markdown table, each when it is added, and adds them to `rows`.

    Columns are field: title, or field: (title, format). A format is one of `format`, or a function of the row. What a
    row has beside its columns is kept and not printed. `same` are fields that every row has.
    """

    def __init__(self, columns, rows, same):
        self.columns = {field: (c, "") if isinstance(c, str) else c for field, c in columns.items()}
        self.rows, self.same = rows, same
        print(head([title for title, _ in self.columns.values()], [how != "" for _, how in self.columns.values()]))

    def add(self, **row):
        self.rows.append({**self.same, **row})
        print(line(self.cell(row, field, how) for field, (_, how) in self.columns.items()), flush=True)

    def cell(self, row, field, how):
        if callable(how):
            return how(row)
        return "" if row.get(field) is None else format(row[field], how)


# ------------------------------------------------------------------------- what is known
def machine(gpu=None):
    """The processor, which of its instructions kernels may use, cores and memory; and a GPU, by its name."""
    text = ""
    for path in ("/proc/cpuinfo", "/proc/meminfo"):
        with contextlib.suppress(OSError):
            text += pathlib.Path(path).read_text()
    cpu, flags, kib = (re.search(rf"(?m)^{name}\s*:\s*(.*)$", text) for name in ("model name", "flags", "MemTotal"))
    flags = set(flags[1].split()) if flags else set()
    return {
        "cpu": cpu[1] if cpu else None,
        "instructions": [name for flag, name in INSTRUCTIONS.items() if flag in flags],
        # What arenic's kernels are held to, where that is less.
        "held_to": os.environ.get("ARENIC_CPU"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(kib[1].split()[0]) / 2**20) if kib else None,
        "gpu": gpu,
    }


def brand(cpu):
    """The maker's and the processor's name without what all of them have."""
    return " ".join(re.sub(r"\([^)]*\)|@.*|\bCPU\b|\bProcessor\b|\d+-Core", " ", cpu).split())


def widest(machine):
    """The widest vector instructions."""
    return next((name for name in ("avx512", "avx2") if name in machine["instructions"]), None)


def slug(machine):
    """What tells machines apart, in a file's name: rows of the same one replace older ones."""
    if machine["gpu"]:
        words = [machine["gpu"]]
    else:
        cores = f"{machine['cores']}-cores" if machine["cores"] else None
        held = f"held-to-{machine['held_to']}" if machine["held_to"] else None
        words = [brand(machine["cpu"]) if machine["cpu"] else "unknown-cpu", widest(machine), held, cores]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(word for word in words if word).lower()).strip("-")


def commit():
    """The commit that is checked out, with `-dirty` where files that are measured differ from it.

    In the folder of `make gpu-bundle` a file says it; out of a git tree it is None.
    """
    file = HERE / "commit"
    if file.exists():
        return file.read_text().strip() or None

    def git(*words):
        words = ["git", "-C", str(ROOT), *words]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    others = [f":(exclude){path}" for path in NOT_MEASURED]
    try:
        found = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
        return found + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(arenic, packages):
    """The versions of a program of arenic, and of Python packages: null where there is none."""
    found = {}
    if arenic:
        said = subprocess.run([str(arenic), "--version"], capture_output=True, text=True, check=True).stdout
        found["arenic"] = said.split()[-1]
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def command(words, environment):
    """What was typed, without the folders of this machine: paths within the repository are from its root."""

    def short(word):
        option, equals, value = word.rpartition("=")
        path = pathlib.Path(value)
        if not path.is_absolute():
            return word
        inside = ROOT in path.parents
        return option + equals + (str(path.relative_to(ROOT)) if inside else path.name)

    script, *rest = words
    held = [f"ARENIC_CPU={environment['ARENIC_CPU']}"] if "ARENIC_CPU" in environment else []
    return shlex.join([*held, short(str(pathlib.Path(script).resolve())), *map(short, rest)])


# ------------------------------------------------------------------------------ records
def rounded(value):
    """Seven digits of a float are more than any clock gives."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def text_of(record):
    """A record as JSON, with a line for each row, so that differences can be read."""
    *about, (_, rows) = record.items()
    lines = [f" {json.dumps(field)}: {json.dumps(value, ensure_ascii=False)}" for field, value in about]
    rows = [json.dumps({field: rounded(value) for field, value in row.items()}, ensure_ascii=False) for row in rows]
    lines.append(' "rows": [\n  ' + ",\n  ".join(rows) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(record, folder):
    """Writes a record beside those of its script, and gives its path. None is written over."""
    folder = pathlib.Path(folder) / record["script"]
    name = f"{slug(record['machine'])}-{record['date'][:10]}-{record['commit'] or 'no-commit'}"
    names = (name if count == 1 else f"{name}-{count}" for count in range(1, 1000))
    path = next(path for path in (folder / f"{name}.json" for name in names) if not path.exists())
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(record))
    return path


def load(folder):
    """All records by their script, each script's oldest first."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*/*.json")):
        record = json.loads(path.read_text())
        found.setdefault(record["script"], []).append({**record, "path": path})
    for of_script in found.values():
        of_script.sort(key=lambda record: record["date"])
    return found


def newest(of_script, *key, **where):
    """By the values of some fields, the newest record that has rows with them, and these rows.

    Rows of one record were measured side by side, so they stay together: ratios between records would say nothing. Only
    rows whose fields are as in `where` count. A script's oldest record decides the order.
    """
    groups = {}
    for record in of_script:
        rows = [row for row in record["rows"] if all(row.get(field) == value for field, value in where.items())]
        fresh = {}
        for row in rows:
            fresh.setdefault(tuple(row.get(field) for field in key), []).append(row)
        groups.update((values, (record, rows)) for values, rows in fresh.items())
    return groups


class Record:
    """Rows of a script, written where its block ends, however it does: what was measured until then is worth keeping.

    `script` is a script's file, or a name; `folder` is None where no record is wanted. `arenic` is the program whose
    version counts, `packages` are the Python packages beside which it is measured, `note` is what a reader must know.
    """

    def __init__(self, script, folder, arenic=None, packages=(), gpu=None, note=None):
        self.folder, self.rows = folder, []
        now = datetime.datetime.now(datetime.timezone.utc)
        self.about = {
            "script": pathlib.Path(script).stem,
            "machine": machine(gpu),
            "date": now.isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(arenic, packages),
            "command": command(sys.argv, os.environ),
            "note": note,
        }

    def table(self, columns, **same):
        """Prints the head of a table, whose rows become rows of this record."""
        return Table(columns, self.rows, same)

    def __enter__(self):
        print(", ".join(f"{name} {version}" for name, version in self.about["versions"].items()) + "\n")
        return self

    def __exit__(self, *_):
        if self.folder is not None and self.rows:
            path = write({**self.about, "rows": self.rows}, self.folder)
            print(f"record: {path}; benches/page.py takes it into BENCHMARKS.md", file=sys.stderr)
