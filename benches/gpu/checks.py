#!/usr/bin/env python3
"""Checks arenic on a GPU, out of the folder that `make gpu-bundle` makes.

Each check and each measurement is a command of its own, with a file of its own that is written when it ends:
what stops the rest takes nothing away, and the next run goes on with what has no file yet. The first ones are
worth most. None takes longer than eight minutes, and none is about anything that needs no GPU. The exit code
is 0 only where every check has passed.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import glob
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import time
import typing

HERE = pathlib.Path(__file__).resolve().parent
PERCENTS = [100, 70, 50, 40]
# How far a loss may be from eager PyTorch's, in each of five steps.
CLOSE = 2e-5
RUNS = [
    "mlp_b4_sgdm",
    "mlp_b4_adamw",
    "small_cnn_b4_sgdm",
    "tiny_resnet_b4_sgdm",
    "tiny_resnet_b4_adamw",
    "gpt_tiny_b4_sgdm",
    "gpt_tiny_b4_adamw",
]  # fmt: skip
# Those whose step is long enough to be worth a prediction.
PREDICTED = ["tiny_resnet_b4_sgdm", "gpt_tiny_b4_adamw"]

# What compute-sanitizer looks for, and in which steps.
SANITIZERS = ["memcheck", "racecheck", "synccheck"]
SANITIZED = ["mlp_b4_adamw", "gpt_tiny_b4_adamw"]

# Seconds that a check may take: those who lend a GPU may end a command after ten minutes.
LIMIT = 470

# The test programs' tests that are about a GPU: families of operators, and whole steps.
FAMILIES = [
    "product", "attention", "convolution", "elementwise", "norm", "batch_norm", "batch_norm_of_many", "fused_norm", "softmax", "reduce", "update",
    "movement", "indexing", "windows", "in_place", "random_operators", "recurrence",
]  # fmt: skip
STEPS = [
    "five_steps_equal_pytorch",
    "steps_in_bf16_are_near_those_in_f32",
    "steps_after_the_first_are_one_graph",
    "neither_limits_nor_the_order_of_streams_nor_replay_change_bits",
    "five_steps_with_channels_last_equal_pytorch",
    "lent::lent_inputs_give_what_fed_ones_give",
    "rounds::rounds_on_a_device_are_those_of_the_cpu",
    "variants::variants_on_a_device_are_those_of_the_cpu",
    "times::a_trace_has_every_command_of_the_last_step_in_an_order_that_events_allow",
    "times::every_operator_is_measured_once_by_itself",
]
# Parts that ONNX's node tests are run in.
SHARDS = 8
# What is measured beside PyTorch, the most telling first; `benchmarks.py` knows them.
BENCHMARKS = ["gpt2_124m_b8", "resnet50_b256", "vit_b_16_b64", "unet_b8", "resnet50_b64"]
PRECISIONS = ["bf16", "tf32", "f32"]


class Failed(Exception):
    """A check that did not pass, and why."""


class Lacking(Exception):
    """A check that cannot be made here, and what it lacks."""


def need(holds, why):
    if not holds:
        raise Failed(why)


# ------------------------------------------------------------------------- commands
def package_folders():
    return [*site.getsitepackages(), site.getusersitepackages()]


def library_folders():
    """Where NVRTC, cuBLAS and cuDNN may be: CUDA's folder and those of Python packages."""
    packages = package_folders()
    folders = [f for p in packages for f in glob.glob(f"{p}/nvidia/*/lib")]
    folders += glob.glob("/usr/local/cuda/lib64") + glob.glob("/usr/local/cuda-*/lib64")
    return [f for f in folders if glob.glob(f"{f}/lib*.so*")]


def sanitizer():
    """NVIDIA's compute-sanitizer, which comes with CUDA."""
    places = [f"{p}/nvidia/*/bin" for p in package_folders()] + ["/usr/local/cuda*/bin"]
    found = [f for place in places for f in glob.glob(f"{place}/compute-sanitizer")]
    return shutil.which("compute-sanitizer") or next(iter(found), None)


def environment(**more):
    # PyTorch's own come first, so that both run the same libraries.
    known = os.environ.get("LD_LIBRARY_PATH")
    folders = library_folders() + ([known] if known else [])
    return {**os.environ, "NO_COLOR": "1", "LD_LIBRARY_PATH": ":".join(folders), **more}


def told(process):
    """What a program said, on one line."""
    words = [w for w in (process.stderr or process.stdout).split() if w not in "│×"]
    return " ".join(words)[-600:]


def command(arguments, limit, **more):
    try:
        return subprocess.run(
            [str(a) for a in arguments], capture_output=True, text=True, timeout=limit, env=environment(**more)
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"it ran past {limit} s: {' '.join(map(str, arguments))}") from None


def arenic(*arguments, limit=300):
    """Runs arenic, and gives the JSON lines that it prints. The bundle's own code is trusted."""
    trust = ["--trust-gpu-code"] if arguments[0] in ("run", "eval", "profile") else []
    process = command([unpacked("arenic") / "arenic", *arguments, *trust], limit)
    need(process.returncode == 0, f"arenic {' '.join(map(str, arguments))}: {told(process)}")
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


@functools.lru_cache(maxsize=None)
def unpacked(name):
    """The folder with what an archive of the bundle holds, which is unpacked once."""
    archive = HERE / f"{name}.tar.xz"
    if not archive.exists():
        raise Lacking(f"this bundle has no {archive.name}")
    beside = os.access(HERE, os.W_OK)
    parent = HERE / "unpacked" if beside else pathlib.Path(tempfile.gettempdir()) / f"arenic-bundle-{os.getuid()}"
    folder = parent / f"{name}-{archive.stat().st_size}-{archive.stat().st_mtime_ns}"
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        fresh = pathlib.Path(tempfile.mkdtemp(dir=parent))
        with tarfile.open(archive) as packed:
            # Archives from elsewhere need a filter; Pythons before 3.12 may not know it.
            packed.extractall(fresh, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        # Another check may have done it meanwhile: that is the same.
        with contextlib.suppress(OSError):
            fresh.rename(folder)
    return folder / name


# ---------------------------------------------------------------------------- models
def artifact(name, percent=100):
    return unpacked("artifacts") / f"{name}_{percent}.arenic"


def percents(name):
    """The limits that there are plans for; 40 % is too little for one operator of some steps."""
    there = [percent for percent in PERCENTS if artifact(name, percent).exists()]
    need(there[:2] == PERCENTS[:2], f"the bundle lacks artifacts of {name}")
    return there


def reference(name):
    return json.loads((HERE / "tests/runs" / f"{name}.json").read_text())


def run_arguments(name, percent=100, init=None, **other_values):
    """What `arenic run` takes for a reference run, its device and length left out."""
    base = HERE / "tests/runs" / name
    values = {**reference(name)["set"], **other_values}
    values = [x for n, v in values.items() for x in ("--set", f"{n}={v}")]
    return ["run", artifact(name, percent), "--deterministic", "--data", f"{base}.data.npz", "--init", init or f"{base}.init.npz", *values]


def losses(lines):
    return [line["loss"] for line in lines if "step" in line]


def furthest(ours, theirs):
    need(len(ours) == len(theirs) and None not in ours, f"losses {ours}, not {theirs}")
    return max(abs(a - b) for a, b in zip(ours, theirs))


def train(name, device, percent=100, steps=5):
    *steps_done, summary = arenic(*run_arguments(name, percent), "--device", device, "--steps", steps, "--json")
    return losses(steps_done), summary


# ---------------------------------------------------------------------------- checks
class Context(typing.NamedTuple):
    """What a check is run with: the GPU, where files go that are no results, and where results are."""

    device: str
    folder: pathlib.Path
    out: pathlib.Path


def gpu(c):
    """What the GPU says of itself."""
    binary = unpacked("arenic") / "arenic"
    process = command([binary, "simulate", artifact(RUNS[0]), "--target", "cuda", "--device", c.device, "--json"], 120)
    need(process.returncode == 0, told(process))
    figures = {"device": json.loads(process.stdout)["device"]}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free,clocks.sm", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        figures["nvidia_smi"] = command(query, 60).stdout.strip().splitlines()
    return figures


def ways(c, name):
    """Five steps near PyTorch's, and which way each product, convolution and attention went."""
    first, *steps, summary = arenic(*run_arguments(name), "--device", c.device, "--steps", 5, "--json")
    off = furthest(losses(steps), reference(name)["loss"])
    need(off <= CLOSE, f"losses are off PyTorch's by {off}")
    need("ways" in first, f"nothing is said of ways: {first}")
    missing = sorted({r["why"] for w in first["ways"] for r in w["refused"] if r["way"] in ("cuBLASLt", "cuDNN")})
    return {"loss_off_by": off, "library_bytes": summary["library_bytes"], "refused": missing, **first}


def test_program(c, program, arguments, environ=None):
    """Runs tests of one of the repository's test programs on the GPU, in a process of its own, since a fault
    takes the context with it."""
    root = {"ARENIC_TEST_DEVICE": c.device, "ARENIC_TEST_ROOT": str(HERE), **(environ or {})}
    root["ARENIC_NODE_TESTS"], root["ARENIC_REQUIRE_NODE_TESTS"] = str(unpacked("tests") / "node-tests"), "1"
    process = command([unpacked("tests") / program, *arguments], LIMIT, **root)
    counts = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", process.stdout)
    said = " ".join((process.stdout + process.stderr).split())[-1500:]
    need(counts, f"{program} ended with {process.returncode}: {said}")
    failed = re.findall(r"^test (.+?) +\.\.\. FAILED", process.stdout, re.MULTILINE)
    failed = failed or re.findall(r"^---- (.+?) ----", process.stdout, re.MULTILINE)
    passed = process.returncode == 0 and counts[2] == "0" and counts[1] != "0"
    need(passed, f"{counts[2]} failed, {counts[1]} passed: {', '.join(failed[:20])}: {said}")
    return {"passed": int(counts[1])}


def limits(c, name):
    """Losses as PyTorch's, and the same bits however little memory there is."""
    figures, expected = {}, reference(name)["loss"]
    whole = None
    for percent in percents(name):
        found, summary = train(name, c.device, percent)
        off = furthest(found, expected)
        need(off <= CLOSE, f"at {percent} % losses are off PyTorch's by {off}: {found}")
        whole = whole or found
        need(found == whole, f"at {percent} % losses are {found}, without a limit {whole}")
        figures[f"{percent}"] = {
            "loss_off_by": off,
            "arena_bytes": summary["arena_bytes"],
            "median_step_seconds": summary["median_step_seconds"],
        }
    return figures


def sanitized(c, tool, name):
    """Accesses out of bounds, races in shared memory and barriers that some threads miss; under the least
    limit, so that copies are among what is looked at. Calls of the driver that libraries make in vain, to
    find out what there is, are no errors."""
    program = sanitizer()
    if not program:
        raise Lacking("there is no compute-sanitizer; it comes with CUDA")
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    wrapped = [program, "--tool", tool, *quiet, "--error-exitcode", 99, unpacked("arenic") / "arenic"]
    percent = percents(name)[-1]
    process = command([*wrapped, *run_arguments(name, percent), "--device", c.device, "--steps", 3], LIMIT)
    said = " ".join((process.stdout + process.stderr).split())[-1500:]
    need(process.returncode == 0, f"{name} at {percent} %: exit {process.returncode}: {said}")
    return {"run": f"{name} at {percent} %"}


def digits(c):
    """The demo: losses near the CPU's, and digits it has not seen."""
    weights = c.folder / "digits.safetensors"
    options = ["--data", HERE / "models/digits/train.npz", "--set", "lr=0.02", "--shuffle", 1]

    def curve(device, epochs):
        save = ["--save", weights, "--json", "--device", device, "--epochs", epochs]
        *lines, summary = arenic("run", artifact("digits"), *options, *save, limit=LIMIT)
        return losses(lines), summary["median_step_seconds"]

    cpu, _ = curve("cpu", 1)
    gpu, seconds = curve(c.device, 20)
    early = furthest(gpu[:20], cpu[:20])
    need(early <= 1e-3, f"the first losses are off the CPU's by {early}")
    test = ["run", artifact("digits_test"), "--data", HERE / "models/digits/test.npz", "--skip", "m.*"]
    lines = arenic(*test, "--init", weights, "--device", c.device, "--json")
    accuracy = next(line["accuracy"] for line in lines if "accuracy" in line)
    need(accuracy >= 0.95, f"accuracy {accuracy}")
    return {"accuracy": accuracy, "first_losses_off_by": early, "median_step_seconds": seconds}


def prediction(c, name):
    """Every operator measured once, the link, and bytes and seconds of a step as planned and as measured."""
    table = c.out / f"profile-{name}.jsonl"
    arenic("profile", artifact(name), "--device", c.device, "-o", table)
    machine = json.loads(table.read_text().splitlines()[0])
    figures = {"link": {key: value for key, value in machine.items() if key.endswith("per_second")}}
    for percent in percents(name):
        times = ["--device", c.device, "--profile", table, "--target", "cuda", "--json"]
        (planned,) = arenic("simulate", artifact(name, percent), *times)
        _, summary = train(name, c.device, percent, 200)
        need(summary["arena_bytes"] == planned["arena_bytes"], "the arena is not as large as planned")
        figures[f"{percent}"] = {
            "arena_bytes": planned["arena_bytes"],
            "predicted_step_seconds": planned["step_seconds"],
            "median_step_seconds": summary["median_step_seconds"],
        }
    return figures


def trace(c):
    """Times of the commands of one step."""
    path = c.out / "trace.json"
    arenic(*run_arguments(PREDICTED[1], 50), "--device", c.device, "--trace", path)
    trace = json.loads(path.read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    need(spans and all(e["dur"] >= 0 for e in spans), "commands without times")
    seconds = {kind: sum(e["dur"] for e in spans if e["cat"] == kind) * 1e-6 for kind in ("kernel", "copy")}
    return {"times": trace["otherData"]["times"], "commands": len(spans), "seconds": seconds}


def bad_input(c):
    """Clear words and an exit code, whatever is wrong."""
    name, said = "mlp_b4_sgdm", {}
    for what, code, words, arguments in [
        ("a GPU that is not there", 1, "there is no cuda:99", [*run_arguments(name), "--device", "cuda:99"]),
        ("a loss that is not finite", 3, "not finite", [*run_arguments(name, lr=1e38), "--device", c.device]),
    ]:
        process = command([unpacked("arenic") / "arenic", *arguments], 120)
        said[what] = told(process)
        need(process.returncode == code and words in said[what], f"{what}: exit {process.returncode}: {said[what]}")
    return said


def interrupt(c):
    """Ctrl-C ends a run with its step; what was saved is whole."""
    name, weights = "gpt_tiny_b4_sgdm", c.folder / "stopped.safetensors"
    arguments = [*run_arguments(name), "--device", c.device]
    endless = [unpacked("arenic") / "arenic", *arguments, "--steps", "1000000000", "--save", weights]
    process = subprocess.Popen([str(a) for a in endless], stderr=subprocess.PIPE, text=True, env=environment())
    try:
        time.sleep(10)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failed("it runs on a minute after Ctrl-C") from None
    need(process.returncode == 130, f"exit code {process.returncode}: {said}")
    arguments = [*run_arguments(name, init=weights), "--device", c.device]
    return {"goes_on": losses(arenic(*arguments, "--steps", 1, "--json"))}


def python(c):
    """The package's tests of a GPU: batches that lie in its memory. They want PyTorch and pytest."""
    wheels = sorted(HERE.glob("*.whl"))
    if not wheels or subprocess.run([sys.executable, "-c", "import torch, pytest"], capture_output=True).returncode:
        raise Lacking("these tests want PyTorch, pytest and a bundle with the package's wheel")
    package = c.folder / "package"
    install = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", package, wheels[0]]
    process = command([sys.executable, *install], 120)
    need(process.returncode == 0, told(process))
    there = {"ARENIC_TEST_DEVICE": c.device, "PYTHONPATH": str(package)}
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "python/tests/test_gpu.py"]
    process = command([sys.executable, *tests], LIMIT, **there)
    need(process.returncode == 0, " ".join(process.stdout.split())[-3000:] or told(process))
    return {"said": process.stdout.strip().splitlines()[-1]}


def benchmark(c, step, precision, how):
    """A step's time and bytes, by a program of its own, since PyTorch's need that."""
    path = c.folder / "measured.json"
    where = ["--device", c.device, "-o", path]
    process = command([sys.executable, HERE / "benchmarks.py", "measure", step, precision, how, *where], LIMIT)
    need(process.returncode == 0, told(process))
    return json.loads(path.read_text())


def benchmark_trace(c, step, precision):
    """When each command of a large step ran, for a look at what takes its time."""
    path = c.out / f"trace-{step}-{precision}.json"
    process = command([sys.executable, HERE / "benchmarks.py", "trace", step, precision, "--device", c.device, "-o", path], LIMIT)
    need(process.returncode == 0, told(process))
    return {"file": path.name}


class Check(typing.NamedTuple):
    """A check, by its name; and whether it measures time, so that it wants the GPU for itself."""

    name: str
    run: typing.Callable
    times: bool = False


def all_checks():
    """Every check, the most telling first: whether anything runs, then whether it is right, then how fast."""

    def of(called, run, /, times=False, **arguments):
        return Check(called, functools.partial(run, **arguments), times)

    def measured(step, precision):
        return [
            of(f"benchmark-{step}-{precision}-{how}", benchmark, times=True, step=step, precision=precision, how=how)
            for how in ("arenic", "compile", "eager")
        ]

    def a_trace(step):
        return of(f"trace-{step}", benchmark_trace, times=True, step=step, precision="bf16")

    checks = [of("gpu", gpu)]
    checks += [of(f"ways-{name}", ways, name=name) for name in ("mlp_b4_sgdm", "gpt_tiny_b4_adamw", "tiny_resnet_b4_sgdm")]
    checks += [of(f"operators-{family}", test_program, program="operators", arguments=[family, "--exact"]) for family in FAMILIES]
    checks += [of(f"limits-{name}", limits, name=name) for name in RUNS]
    # What decides whether arenic is worth its while.
    for step in BENCHMARKS[:2]:
        checks += [*measured(step, "bf16"), a_trace(step)]
    checks.append(of("trace", trace, times=True))
    checks += [of(f"prediction-{name}", prediction, times=True, name=name) for name in PREDICTED]
    for tool in SANITIZERS:
        checks += [of(f"{tool}-{name}", sanitized, tool=tool, name=name) for name in SANITIZED]
    for test in STEPS:
        checks.append(of(f"steps-{test.split('::')[-1].replace('_', '-')}", test_program, program="steps", arguments=[test, "--exact"]))
    for shard in range(SHARDS):
        there = {"ARENIC_NODE_TEST_SHARD": f"{shard}/{SHARDS}"}
        checks.append(of(f"node-tests-{shard}", test_program, program="node_tests", arguments=["--test-threads", "4"], environ=there))
    checks += [of("digits", digits), of("python", python), of("bad-input", bad_input), of("ctrl-c", interrupt)]
    known = {check.name for check in checks}
    rest = [check for step in BENCHMARKS for precision in PRECISIONS for check in measured(step, precision)]
    return checks + [check for check in [*rest, *map(a_trace, BENCHMARKS)] if check.name not in known]


# ------------------------------------------------------------------------------ main
def result_of(out, name):
    """The file of a check's result."""
    return out / f"{name}.json"


def run_one(check, device, out):
    """Runs a check, a failed one once more by itself, and writes its result."""
    row = {"name": check.name, "device": device, "host": platform.platform(), "ok": False}
    start = time.monotonic()
    for attempt in range(2):
        with tempfile.TemporaryDirectory(prefix="arenic-") as folder:
            try:
                row["figures"] = check.run(Context(device, pathlib.Path(folder), out))
                row["ok"] = True
            except Lacking as lacking:
                row["not_run"], row["said"] = True, str(lacking)
            except Failed as failure:
                row.setdefault("failures", []).append(str(failure))
            except Exception as error:  # a check's own defect must not keep others from running
                row.setdefault("failures", []).append(f"{type(error).__name__}: {error}")
        again = not row["ok"] and "not_run" not in row and time.monotonic() - start < LIMIT / 4
        if not again:
            break
    row["seconds"] = round(time.monotonic() - start, 3)
    # Whole, or not at all.
    part = out / f".{check.name}.part"
    part.write_text(json.dumps(row, indent=1) + "\n")
    part.replace(result_of(out, check.name))
    state = "ok" if row["ok"] else "not run" if "not_run" in row else "FAILED"
    if row["ok"] and "failures" in row:
        state = "FLAKY"
    print(f"{state:8} {row['seconds']:8.1f} s  {check.name}", flush=True)
    for said in [*row.get("failures", []), *([row["said"]] if "said" in row else [])]:
        print(f"         {said}", flush=True)
    return row


def summary(checks, out):
    """How many checks have passed; 0 where all have."""
    rows = [json.loads(result_of(out, c.name).read_text()) for c in checks if result_of(out, c.name).exists()]
    passed = sum(row["ok"] and "failures" not in row for row in rows)
    lacking = sum("not_run" in row for row in rows)
    print(f"{passed} of {len(checks)} checks passed, {len(checks) - len(rows)} are still to be run; results are in {out}")
    return 0 if passed + lacking == len(checks) else 1


def main():
    parser = argparse.ArgumentParser(prog="run-gpu-checks.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="CHECK", help="these alone, also where there is a result; by the beginning of their names")
    parser.add_argument("--device", default="cuda:0", help="the GPU by its number [default: cuda:0]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="where results go [default: results]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N checks at once where they measure no times; those that do come after [default: 1]")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N", help="begin nothing after so long")
    parser.add_argument("--list", action="store_true", help="list the checks, and whether they have a result")
    options = parser.parse_args()
    out, began = options.out.resolve(), time.monotonic()
    checks = all_checks()
    if options.list:
        for check in checks:
            print(f"{'done' if result_of(out, check.name).exists() else '':6}{check.name}")
        return 0
    unknown = [name for name in options.names if not any(c.name.startswith(name) for c in checks)]
    if unknown:
        parser.error(f"no check is called {', '.join(unknown)}; --list names them")
    out.mkdir(parents=True, exist_ok=True)
    if options.names:
        chosen = [c for c in checks if any(c.name.startswith(name) for name in options.names)]
    else:
        chosen = [c for c in checks if not result_of(out, c.name).exists()]
    def begin(check):
        """Its row, or none where it is too late."""
        late = time.monotonic() - began > options.seconds
        return None if late else run_one(check, options.device, out)

    if chosen and chosen[0].name == "gpu" and not begin(chosen.pop(0))["ok"]:
        # The next run asks again.
        result_of(out, "gpu").unlink()
        print("There is no GPU to run on, so nothing is shown about one.")
        return 1
    if options.jobs > 1:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(begin, [c for c in chosen if not c.times]))
        chosen = [c for c in chosen if c.times]
    else:
        rows = []
    if None in rows or any(begin(check) is None for check in chosen):
        print(f"{options.seconds:.0f} s are over: the next run goes on with what has no result")
    return summary(checks, out)


if __name__ == "__main__":
    sys.exit(main())
