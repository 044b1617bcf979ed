"""Tables, figures and paragraphs of BENCHMARKS.md."""

import re
import textwrap

from records import brand, head, line, slug, widest

WIDTH = 118
# Characters of a command that are shown: some name dozens of files.
LONGEST = 120


def paragraph(text):
    """Words on lines that are not too long; code may go on in the next one."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def table(titles, rows):
    """A table whose columns without letters are aligned right."""
    is_number = [not any(re.search("[A-Za-z]", str(row[i])) for row in rows) for i in range(len(titles))]
    return "\n".join([head(titles, is_number), *map(line, rows)]) if rows else ""


def figure(value):
    """Three digits, or all before the point; nothing for what is not known."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def percent(part):
    """A part of 1 in per cent, or the word for why there is none."""
    return part if isinstance(part, str) else f"{100 * part:.1f}"


def percents(parts, absent="✗"):
    return "/".join(percent(absent if part is None else part) for part in parts)


def slashes(values):
    """Figures of one kind in one cell, which is empty where there is none."""
    cells = [value if isinstance(value, str) else figure(value) for value in values]
    return "/".join(cell or "–" for cell in cells) if any(cells) else ""


def label(machine):
    """A machine's name, where it is known."""
    if machine["gpu"] or not machine["cpu"]:
        return machine["gpu"] or ""
    vectors = {"avx512": "AVX-512", "avx2": "AVX2"}.get(widest(machine))
    held = machine["held_to"] and f"held to {machine['held_to']}"
    cores = machine["cores"] and f"{machine['cores']} cores"
    return ", ".join(word for word in (brand(machine["cpu"]), vectors, held, cores) if word)


def source(groups, is_measured=True):
    """Dates and commits of the records of groups, machines, the newest command and its versions, and notes.

    Nothing is said of the machine where it decides nothing.
    """
    used = {record["path"]: record for record, _ in groups.values()}
    used = sorted(used.values(), key=lambda record: record["date"], reverse=True)
    if not used:
        return ""
    days = {}
    for record in used:
        days.setdefault(record["date"][:10], []).append(f"`{record['commit']}`")
    about = [", ".join(f"{day} {' '.join(commits)}" for day, commits in days.items())]
    if is_measured:
        about += dict.fromkeys(label(record["machine"]) for record in used)
    typed = re.sub(r" --arenic [^ ]+", "", used[0]["command"])
    about.append(f"`{typed if len(typed) <= LONGEST else typed[:LONGEST].rpartition(' ')[0] + ' …'}`")
    if is_measured:
        about += [f"{name} {version}" for name, version in used[0]["versions"].items() if version and name != "arenic"]
    notes = dict.fromkeys(record["note"] for record in used if record["note"])
    return paragraph(" ".join(["; ".join(filter(None, about)) + ".", *notes]))


def by_machine(records):
    """Records by their machine, that of the newest record first."""
    machines = {}
    for record in reversed(records):
        machines.setdefault(slug(record["machine"]), []).insert(0, record)
    return machines.values()


def by_threads(groups):
    """Groups by what their keys are before the number of threads, which is last, and then by that."""
    found = {}
    for key, group in sorted(groups.items()):
        found.setdefault(key[:-1], {})[key[-1]] = group
    return found
