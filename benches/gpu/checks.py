#!/usr/bin/env python3
"""Checks arenic on a GPU, out of the folder that `make gpu-bundle` makes, and writes report.json.

Each check runs in turn, also after others have failed. Where there is no GPU, what can be checked on the
CPU is, and the rest counts as failed. The exit code is 0 only where every check has passed.
"""

import argparse
import contextlib
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

HERE = pathlib.Path(__file__).resolve().parent
ARENIC = str(HERE / "arenic")
# Where the bundle's artifacts are unpacked.
ARTIFACTS = HERE
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
SANITIZED = ["mlp_b4_adamw", "small_cnn_b4_sgdm", "tiny_resnet_b4_sgdm", "gpt_tiny_b4_adamw"]


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
    known = os.environ.get("LD_LIBRARY_PATH")
    folders = ([known] if known else []) + library_folders()
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
    process = command([ARENIC, *arguments, *trust], limit)
    need(process.returncode == 0, f"arenic {' '.join(map(str, arguments))}: {told(process)}")
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def unpack(name, folder):
    """Unpacks an archive of the bundle."""
    with tarfile.open(HERE / name) as packed:
        # Archives from elsewhere need a filter; Pythons before 3.12 may not know it.
        packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


# ---------------------------------------------------------------------------- models
def artifact(name, percent=100):
    return ARTIFACTS / f"{name}_{percent}.arenic"


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
class Checks:
    def __init__(self, options, folder):
        self.device, self.quick, self.folder = options.device, options.quick, folder
        global ARTIFACTS
        unpack("artifacts.tar.xz", folder)
        ARTIFACTS = folder / "artifacts"
        self.all = [
            ("gpu", self.gpu),
            ("reference runs on the CPU", self.runs_on_cpu),
            ("operators against the CPU backend", self.operators),
            ("whole steps against PyTorch", self.steps),
            ("ONNX node tests", self.node_tests),
            *((f"{name} at byte limits", lambda name=name: self.limits(name)) for name in RUNS),
            *((f"compute-sanitizer {tool}", lambda tool=tool: self.sanitized(tool)) for tool in SANITIZERS),
            ("digits demo", self.digits),
            ("link", self.link),
            *((f"{name}: predicted and measured", lambda name=name: self.prediction(name)) for name in PREDICTED),
            ("trace", self.trace),
            ("bad input", self.bad_input),
            ("Ctrl-C", self.interrupt),
            ("benchmarks", self.benchmarks),
        ]

    def gpu(self):
        """What the GPU says of itself."""
        process = command([ARENIC, "simulate", artifact(RUNS[0]), "--target", "cuda", "--device", self.device, "--json"], 120)
        need(process.returncode == 0, told(process))
        figures = {"device": json.loads(process.stdout)["device"]}
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free,clocks.sm", "--format=csv,noheader"]
        with contextlib.suppress(OSError):
            figures["nvidia_smi"] = command(query, 60).stdout.strip().splitlines()
        return figures

    def runs_on_cpu(self):
        """The binary and the artifacts work at all."""
        off = {name: furthest(train(name, "cpu")[0], reference(name)["loss"]) for name in RUNS}
        need(max(off.values()) <= CLOSE, f"losses are off PyTorch's by {off}")
        return {"loss_off_by": off}

    def test_program(self, name, *arguments, limit=580):
        """Runs one of the repository's test programs on the GPU."""
        unpacked = self.folder / "tests"
        if not unpacked.exists():
            unpack("tests.tar.xz", self.folder)
        root = {"ARENIC_TEST_DEVICE": self.device, "ARENIC_TEST_ROOT": str(HERE)}
        root["ARENIC_NODE_TESTS"], root["ARENIC_REQUIRE_NODE_TESTS"] = str(unpacked / "node-tests"), "1"
        process = command([unpacked / name, *arguments], limit, **root)
        counts = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", process.stdout)
        need(counts, f"{name} ended with {process.returncode}: {told(process)}")
        failed = re.findall(r"^test (.+?) +\.\.\. FAILED", process.stdout, re.MULTILINE)
        failed = failed or re.findall(r"^---- (.+?) ----", process.stdout, re.MULTILINE)
        said = " ".join((process.stdout + process.stderr).split())[-1500:]
        passed = process.returncode == 0 and counts[2] == "0" and counts[1] != "0"
        need(passed, f"{counts[2]} failed, {counts[1]} passed: {', '.join(failed[:20])}: {said}")
        return {"passed": int(counts[1])}

    def operators(self):
        """Random cases of every operator, guarded, shifted and in place."""
        return self.test_program("operators")

    def steps(self):
        """What is about a driver that fails is for a simulated one."""
        return self.test_program("steps", "--skip", "failures::", "--test-threads", "2")

    def node_tests(self):
        """ONNX's own tests of operators; with --quick one letter's."""
        quick = ["test_a"] if self.quick else []
        return self.test_program("node_tests", *quick, "--test-threads", "8")

    def limits(self, name):
        """Losses as PyTorch's, and the same bits however little memory there is."""
        figures, expected = {}, reference(name)["loss"]
        whole = None
        for percent in percents(name):
            found, summary = train(name, self.device, percent)
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

    def sanitized(self, tool):
        """Accesses out of bounds, races in shared memory and barriers that some threads miss; under
        the least limit, so that copies are among what is looked at."""
        program = sanitizer()
        if not program:
            raise Lacking("there is no compute-sanitizer; it comes with CUDA")
        wrapped = [program, "--tool", tool, "--error-exitcode", 99, ARENIC]
        runs = [(name, percents(name)[-1]) for name in SANITIZED]
        for name, percent in runs:
            steps = ["--device", self.device, "--steps", 3]
            process = command([*wrapped, *run_arguments(name, percent), *steps], 580)
            said = " ".join((process.stdout + process.stderr).split())[-1500:]
            need(process.returncode == 0, f"{name} at {percent} %: exit {process.returncode}: {said}")
        return {"runs": [f"{name} at {percent} %" for name, percent in runs]}

    def digits(self):
        """The demo: the CPU backend's curve, and digits it has not seen."""
        epochs = 2 if self.quick else 20
        weights = self.folder / "digits.safetensors"
        options = ["--data", HERE / "models/digits/train.npz", "--set", "lr=0.02", "--epochs", epochs, "--shuffle", 1]
        curves = []
        for device in ["cpu", self.device]:
            save = ["--save", weights, "--json", "--device", device]
            *lines, summary = arenic("run", artifact("digits"), *options, *save, limit=500)
            curves.append((losses(lines), summary["median_step_seconds"]))
        (cpu, _), (gpu, seconds) = curves
        early = furthest(gpu[:20], cpu[:20])
        need(early <= 1e-3, f"the first losses are off the CPU's by {early}")
        last = [sum(curve[-45:]) / 45 for curve in (cpu, gpu)]
        need(abs(last[0] - last[1]) <= 0.02 + 0.2 * last[0], f"mean losses of the last epoch: {last}")
        test = ["run", artifact("digits_test"), "--data", HERE / "models/digits/test.npz", "--skip", "m.*"]
        accuracy = arenic(*test, "--init", weights, "--device", self.device, "--json")[0]["accuracy"]
        need(self.quick or accuracy >= 0.95, f"accuracy {accuracy}")
        return {"accuracy": accuracy, "first_losses_off_by": early, "median_step_seconds": seconds}

    def profiled(self, name):
        """The table of a step's operators, measured once."""
        table = self.folder / f"{name}.jsonl"
        if not table.exists():
            arenic("profile", artifact(name), "--device", self.device, "-o", table)
        return table

    def link(self):
        """Copies between the device and pinned memory."""
        machine = json.loads(self.profiled(PREDICTED[0]).read_text().splitlines()[0])
        return {key: value for key, value in machine.items() if key.endswith("per_second")}

    def prediction(self, name):
        """Bytes and seconds of a step, as planned and as measured."""
        figures = {}
        for percent in percents(name):
            times = ["--device", self.device, "--profile", self.profiled(name), "--target", "cuda", "--json"]
            (planned,) = arenic("simulate", artifact(name, percent), *times)
            _, summary = train(name, self.device, percent, 200)
            need(summary["arena_bytes"] == planned["arena_bytes"], "the arena is not as large as planned")
            figures[f"{percent}"] = {
                "arena_bytes": planned["arena_bytes"],
                "predicted_step_seconds": planned["step_seconds"],
                "median_step_seconds": summary["median_step_seconds"],
            }
        return figures

    def trace(self):
        """Times of the commands of one step."""
        path = self.folder / "trace.json"
        arenic(*run_arguments(PREDICTED[1], 50), "--device", self.device, "--trace", path)
        trace = json.loads(path.read_text())
        spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        need(spans and all(e["dur"] >= 0 for e in spans), "commands without times")
        seconds = {kind: sum(e["dur"] for e in spans if e["cat"] == kind) * 1e-6 for kind in ("kernel", "copy")}
        return {"times": trace["otherData"]["times"], "commands": len(spans), "seconds": seconds}

    def bad_input(self):
        """Clear words and an exit code, whatever is wrong."""
        name, said = "mlp_b4_sgdm", {}
        for what, code, words, arguments in [
            ("a GPU that is not there", 1, "there is no cuda:99", [*run_arguments(name), "--device", "cuda:99"]),
            ("a loss that is not finite", 3, "not finite", [*run_arguments(name, lr=1e38), "--device", self.device]),
        ]:
            process = command([ARENIC, *arguments], 120)
            said[what] = told(process)
            need(process.returncode == code and words in said[what], f"{what}: exit {process.returncode}: {said[what]}")
        return said

    def interrupt(self):
        """Ctrl-C ends a run with its step; what was saved is whole."""
        name, weights = "gpt_tiny_b4_sgdm", self.folder / "stopped.safetensors"
        arguments = [*run_arguments(name), "--device", self.device]
        endless = [ARENIC, *arguments, "--steps", "1000000000", "--save", weights]
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
        arguments = [*run_arguments(name, init=weights), "--device", self.device]
        return {"goes_on": arenic(*arguments, "--steps", 1, "--json")[0]}

    def benchmarks(self):
        """Step times beside PyTorch's; a separate program, since it needs that."""
        packed = HERE / "benchmarks.tar.xz"
        need(packed.exists(), "this bundle has no benchmarks: `make gpu-bundle BENCHMARKS=1` adds them")
        path = self.folder / "benchmarks.json"
        quick = ["--quick"] if self.quick else []
        process = command([sys.executable, HERE / "benchmarks.py", "--device", self.device, "-o", path, *quick], 3600)
        need(process.returncode == 0, told(process))
        return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(prog="run-gpu-checks.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer node tests, epochs and benchmarks")
    parser.add_argument("--device", default="cuda:0", help="the GPU by its number [default: cuda:0]")
    parser.add_argument("--only", action="append", metavar="TEXT", help="checks whose name has this text")
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("report.json"), help="[default: report.json]")
    options = parser.parse_args()
    report = {"device": options.device, "quick": options.quick, "host": platform.platform(), "checks": []}
    with tempfile.TemporaryDirectory(prefix="arenic-") as folder:
        checks = Checks(options, pathlib.Path(folder)).all
        chosen = [c for c in checks if c[0] == "gpu" or not options.only or any(t in c[0] for t in options.only)]
        missing = None
        for name, check in chosen:
            start, row = time.monotonic(), {"name": name, "ok": False}
            try:
                if missing and check.__name__ != "runs_on_cpu":
                    row["not_run"] = True
                    raise Failed("there is no GPU")
                row["figures"] = check()
                row["ok"] = True
            except Lacking as lacking:
                row["not_run"], row["said"] = True, str(lacking)
            except Failed as failure:
                row["said"] = str(failure)
                if name == "gpu":
                    missing = str(failure)
            except Exception as error:  # a check's own defect must not keep others from running
                row["said"] = f"{type(error).__name__}: {error}"
            row["seconds"] = round(time.monotonic() - start, 3)
            report["checks"].append(row)
            state = "ok" if row["ok"] else "not run" if row.get("not_run") else "FAILED"
            print(f"{state:8} {row['seconds']:8.1f} s  {name}", flush=True)
            if state == "FAILED" or "said" in row and not missing:
                print(f"         {row['said']}", flush=True)
            # After each check, so that a report is there whatever ends this.
            options.report.write_text(json.dumps(report, indent=1) + "\n")
    passed = sum(row["ok"] for row in report["checks"])
    failed = sum(not row["ok"] and not row.get("not_run") for row in report["checks"])
    if missing:
        print(f"There is no GPU to run on, so nothing is shown about one: {missing}")
    print(f"{passed} of {len(report['checks'])} checks passed; figures are in {options.report}")
    return 1 if missing or failed else 0


if __name__ == "__main__":
    sys.exit(main())
