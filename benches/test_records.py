"""Tests of records and of the page: `python3 benches/test_records.py`."""

import json
import tempfile

import page
import records
import sections
from markdown_text import by_machine, figure, slashes, source

CPU = "AMD EPYC 7763 64-Core Processor"
MACHINE = {"cpu": CPU, "instructions": ["avx2"], "held_to": None, "cores": 2, "memory_gib": 8, "gpu": None}
ABOUT = {"commit": "abc", "versions": {}, "command": "c", "note": None}


def record(date, rows, **other):
    return {"script": "real_steps", "machine": MACHINE, "date": date, **ABOUT, **other, "rows": rows}


def step(trained_by, ms, **other):
    row = {"table": "steps", "network": "lstm", "batch": 8, "threads": 2, "trained_by": trained_by, "ms_per_step": ms}
    return {**row, **other}


def written(*all_records):
    """Records as they are read back, in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        for each in all_records:
            records.write(each, folder)
        return records.load(folder)


def test_a_record_is_read_as_it_was_written():
    rows = [step("arenic", 1.23456789), step("eager", None)]
    (read,) = written(record("2026-11-29T10:00:00+00:00", rows))["real_steps"]
    assert read["rows"] == [step("arenic", 1.234568), step("eager", None)]
    assert read["path"].name == "amd-epyc-7763-avx2-2-cores-2026-11-29-abc.json"
    text = records.text_of(record("2026-11-29", rows))
    assert len(text.splitlines()) == 8 + len(rows) + 3, text
    assert json.loads(text)["rows"][0]["trained_by"] == "arenic"


def test_a_second_record_of_a_day_is_written_beside_the_first():
    both = [record(f"2026-11-29T1{hour}:00:00", [step("arenic", hour)]) for hour in (2, 1)]
    assert [read["rows"][0]["ms_per_step"] for read in written(*both)["real_steps"]] == [1, 2]


def test_the_newest_rows_of_a_key_stay_together():
    old = record("2026-11-28", [step("arenic", 3), step("eager", 4), step("arenic", 5, batch=16)])
    new = record("2026-11-29", [step("arenic", 2), {"table": "operators", "network": "lstm", "batch": 16}])
    groups = records.newest(written(new, old)["real_steps"], "network", "batch", table="steps")
    # The eager row is of another day than arenic's newest; batch 16 has no newer one.
    assert [(row["trained_by"], row["ms_per_step"]) for row in groups["lstm", 8][1]] == [("arenic", 2)]
    assert groups["lstm", 16][0]["date"] == "2026-11-28"


def test_machines_are_told_apart_by_processor_instructions_and_cores():
    cpus = ["Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel Xeon", "AMD EPYC (Zen 3)", None]
    slugs = [records.slug({**MACHINE, "cpu": cpu, "instructions": ["avx2", "avx512"]}) for cpu in cpus]
    assert slugs == ["intel-xeon-avx512-2-cores"] * 2 + ["amd-epyc-avx512-2-cores", "unknown-cpu-avx512-2-cores"], slugs
    assert records.slug({**MACHINE, "held_to": "avx2"}).endswith("avx2-held-to-avx2-2-cores")
    assert records.slug({**MACHINE, "gpu": "NVIDIA H200"}) == "nvidia-h200"
    other = {**MACHINE, "cores": 4}
    machines = by_machine([record("2026-11-28", []), record("2026-11-29", [], machine=other), record("2026-11-30", [])])
    assert [[each["date"] for each in of] for of in machines] == [["2026-11-28", "2026-11-30"], ["2026-11-29"]]


def test_a_command_names_no_folder_of_a_machine():
    words = ["--arenic", "/home/someone/arenic", f"--out={records.ROOT}/models/a.onnx", "batch=4", "b c"]
    said = records.command([str(records.HERE / "x.py"), *words], {"ARENIC_CPU": "avx2"})
    assert said == "ARENIC_CPU=avx2 benches/x.py --arenic arenic --out=models/a.onnx batch=4 'b c'", said


def test_figures_have_three_digits():
    assert [figure(value) for value in (None, 7, 1234.6, 99.96, 0.0153, 7.1)] == ["", "7", "1235", "100", "0.0153", "7.1"]
    assert slashes([1.5, None]) == "1.5/–" and slashes([None, None]) == ""


def test_a_source_says_the_newest_command_and_every_commit():
    old = {**record("2026-11-28", [], commit="a1", command="old"), "path": 1}
    new = {**record("2026-11-29", [], commit="b2", command="x --arenic target/arenic --turns 5"), "path": 2}
    said = source({1: (old, []), 2: (new, [])})
    assert said == "2026-11-29 `b2`, 2026-11-28 `a1`; AMD EPYC 7763, AVX2, 2 cores; `x --turns 5`.", said


def test_sections_without_records_are_left_out():
    assert list(sections.texts({})) == []


def test_every_record_of_this_repository_is_whole():
    found = records.load(records.RESULTS)
    for each in (each for of_script in found.values() for each in of_script):
        path = each.pop("path")
        assert list(each) == ["script", "machine", "date", *ABOUT, "rows"] and each["rows"], path
        assert path.parent.name == each["script"], path
        assert path.name.startswith(f"{records.slug(each['machine'])}-{each['date'][:10]}-{each['commit']}"), path
        assert path.read_text() == records.text_of(each), path
    found = records.load(records.RESULTS)
    assert len(page.page(found).encode()) <= page.MOST


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
    print("ok")
