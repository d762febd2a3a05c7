"""Write the generated tables of docs/, each between its two markers.

    python scripts/doc_tables.py [--check]

writes the tables into the pages. With ``--check`` no page is changed, and the exit status is 1 if a
table is not up to date. dedupd has to be importable.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import tomlkit

import dedupd_core.errors
from dedupd.cli.main import main as program
from dedupd.service.web.metrics import _ServiceCollector
from dedupd_core import native
from dedupd_core.config.policy import KEYS, Policy
from dedupd_core.errors import DedupdError
from dedupd_core.format.store_kinds import CLUSTER, OWN
from jobs.specs import SPECS, TASKS, JobSpec

ROOT = Path(__file__).resolve().parent.parent
OPCODES = ROOT / "native/src/mount/protocol/opcode.rs"

_MARKED = re.compile(
    r"^(?P<start><!-- table: (?P<name>[a-z-]+), by `make docs-tables` -->\n)"
    r"(?P<table>.*?)(?P<end><!-- end of table -->)$",
    re.M | re.S,
)


def exit_codes() -> str:
    """The exit codes of the program, and the errors for each."""
    text = " ".join((program.help or "").split("Exit status:")[1].split())
    meanings = dict(re.findall(r"(\d) (.*?)(?:, (?=\d )|\.$|$)", text))
    errors: dict[str, list[str]] = {code: [] for code in meanings}
    for name, one in vars(dedupd_core.errors).items():
        if isinstance(one, type) and issubclass(one, DedupdError) and one is not DedupdError:
            errors[str(one.exit_status)].append(f"`{name}`")
    rows = [(code, meaning, ", ".join(errors[code])) for code, meaning in meanings.items()]
    return table(("code", "meaning", "`kind` in JSON"), rows)


def job_specs() -> str:
    """The jobs, with their options and tasks."""
    stores = {(True, True): "all", (True, False): "on disks", (False, True): "in a cluster"}

    def row(spec: JobSpec) -> tuple[str, ...]:
        options = sorted(f"`--{name.replace('_', '-')}`" for name in spec.known)
        tasks = [f"`schedule_{task.name}`" for task in TASKS.values() if task.job == spec.name]
        mounted = "yes" if spec.by_service else "no"
        name = f"`dedupd run {spec.name}`"
        works = spec.has_work_in(OWN), spec.has_work_in(CLUSTER)
        return name, stores[works], mounted, ", ".join(options), ", ".join(tasks)

    head = ("job", "stores", "on a mounted volume", "options", "keys of the policy")
    return table(head, map(row, SPECS))


def policy_keys() -> str:
    """The keys of a policy, with their defaults."""

    def row(name: str) -> tuple[str, ...]:
        key = KEYS[name]
        default = tomlkit.item(key.form.show(getattr(Policy(), key.attribute))).as_string()
        return f"[`{name}`](policy.md#{name})", f"`{default}`", cell(key.help)

    return table(("key", "default", "for"), map(row, KEYS))


def metrics() -> str:
    """The metrics of the service."""
    nothing = SimpleNamespace(
        listen_problem="",
        volumes={},
        running={},
        counts={},
        freed_bytes={},
        failures=SimpleNamespace(counts={}),
    )
    rows = []
    for one in _ServiceCollector(cast(Any, nothing), {}).collect():
        name = f"{one.name}_total" if one.type == "counter" else one.name
        labels = ", ".join(f"`{label}`" for label in getattr(one, "_labelnames", ()))
        rows.append((f"`{name}`", one.type, labels, cell(one.documentation)))
    return table(("metric", "type", "labels", "meaning"), rows)


def file_systems() -> str:
    """The file systems that can contain a volume, or that are known below one."""
    rows = [
        (
            one.title,
            "yes" if one.is_supported else "no",
            "yes" if one.punching_frees else "no",
            "yes" if one.has_random_generations else "no",
        )
        for one in native.system.file_systems()
    ]
    return table(("file system", "supported", "punching frees blocks", "random generations"), rows)


def requests() -> str:
    """The kinds of requests of the kernel, and how the mount routes each."""
    marks = {
        "looking": "looks",
        "in_background": "background",
        "by_rights": "by rights",
        "taking_blocks": "takes blocks",
        "telling_attributes": "tells attributes",
        "touching": "touches",
    }
    routes = re.findall(
        r"^    ([A-Z_0-9]+) = \d+, .*, (LIBFUSE|SERVE)((?:\.[a-z_]+\(\))*);",
        OPCODES.read_text(encoding="utf-8"),
        re.M,
    )
    rest = {"LIBFUSE": "libfuse", "SERVE": "`serve`"}
    rows = [
        (name, rest[to], *("yes" if f".{mark}()" in calls else "" for mark in marks))
        for name, to, calls in routes
    ]
    return table(("request", "the rest goes to", *marks.values()), rows)


TABLES: dict[str, Callable[[], str]] = {
    "exit-codes": exit_codes,
    "file-systems": file_systems,
    "jobs": job_specs,
    "metrics": metrics,
    "policy-keys": policy_keys,
    "requests": requests,
}


def cell(text: str) -> str:
    """Format a text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").removesuffix(".")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield each page with a marked table, its current text, and its new text."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        wanted = _MARKED.sub(
            lambda found: f"{found['start']}\n{TABLES[found['name']]()}\n{found['end']}", text
        )
        if _MARKED.search(text):
            yield page, text, wanted


def names() -> list[str]:
    """Return the tables of the pages, repeated if they are on several pages."""
    return [found["name"] for _, text, _ in pages() for found in _MARKED.finditer(text)]


def main() -> int:
    old = [(page, wanted) for page, text, wanted in pages() if text != wanted]
    for page, wanted in old:
        if "--check" in sys.argv:
            print(f"{page.relative_to(ROOT)}: a table is not up to date; run `make docs-tables`")
        else:
            page.write_text(wanted, encoding="utf-8")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
