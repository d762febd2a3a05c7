"""Texts that people read are plain English: no construction to avoid, no long sentence.

To cover more, add files to a list below.
"""

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from itertools import chain

import pytest

from tests.support import texts
from tests.support.english import PATTERNS, WORDS_MAX, Fault, Pattern, faults
from tests.support.sources import PACKAGES, ROOT

PAGES = (
    *(
        "README.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "docs/*.md",
        "docs/guide/*.md",
        "docs/design/*.md",
    ),
    *("docs/decisions/*.md", "docs/figures/*.md", "changelog/unreleased/*.md"),
)
"""Documents: all of their prose."""

DOCSTRINGS = (
    *("tests/support/english.py", "tests/support/texts.py", "tests/rules/test_english.py"),
    *("dedupd/**/*.py", "analysis/**/*.py"),
    *("fuse_stub/*.py", "fuse_stub/[!f]*/**/*.py"),
    *("dedupd_core/config/**/*.py", "dedupd_core/system/**/*.py", "dedupd_core/format/**/*.py"),
    *("dedupd_core/deleted/**/*.py", "dedupd_core/stores/**/*.py", "dedupd_core/shared/**/*.py"),
    *("dedupd_core/index/**/*.py", "dedupd_core/rados/**/*.py"),
    *("dedupd_reader/**/*.py", "scripts/**/*.py"),
    *("jobs/backup/**/*.py", "jobs/cluster/**/*.py", "jobs/frame/**/*.py", "jobs/repair/**/*.py"),
    *("jobs/adopt/**/*.py", "jobs/compact/**/*.py", "jobs/*.py", "jobs/refine/**/*.py"),
    *("jobs/reconcile/**/*.py", "jobs/usage/**/*.py"),
    *("dedupd_core/*.py", "dedupd_core/native/*.pyi"),
)
"""Modules: all of their docstrings and comments."""

RUST = (
    "native/build.rs",
    "native/examples/*.rs",
    "native/fuzz/src/*.rs",
    "native/models/*/*.rs",
    "native/src/*.rs",
    "native/src/admission/**/*.rs",
    "native/src/chunker/**/*.rs",
    "native/src/codec/**/*.rs",
    "native/src/commit/**/*.rs",
    "native/src/format/**/*.rs",
    "native/src/index/**/*.rs",
    "native/src/ingest/**/*.rs",
    "native/src/mount/*.rs",
    "native/src/mount/inodes/*.rs",
    "native/src/mount/pages/*.rs",
    "native/src/mount/protocol/*.rs",
    "native/src/mount/session/**/*.rs",
    "native/src/python/**/*.rs",
    "native/src/rados/**/*.rs",
    "native/src/study/**/*.rs",
    "native/src/stub/**/*.rs",
    "native/src/system/**/*.rs",
    "native/src/threads/**/*.rs",
    "native/src/tree/**/*.rs",
)
"""Rust modules: all of their comments."""

COMMENTS = (
    "packaging/dedupd.toml",
    "packaging/systemd/*",
    "packaging/sysusers/*",
    "packaging/tmpfiles/*",
)
"""Configuration files: all of their comments."""

EXCEPTIONS = {
    ("analysis/partitions.py", "long sentence"): "queries in SQL",
}
"""Places (as for fnmatch) and names of faults that are left there, each with the reason."""


def matching(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield from (str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(pattern)))


def of_packages() -> texts.Texts:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from texts.literals(path)


def of_native_code() -> texts.Texts:
    for path in sorted((ROOT / "native/src").rglob("*.rs")):
        yield from texts.rust_literals(path)


def of_pages_in_a_browser() -> texts.Texts:
    for name in ("dedupd/service/web/page.html", "dedupd/service/web/drawing.js"):
        yield from texts.page_literals(ROOT / name)
    yield from texts.page_literals(ROOT / "packaging/cockpit/dedupd.js")
    yield from texts.template_texts(ROOT / "analysis/report/templates/report.html.j2")


def of_packaging() -> texts.Texts:
    for name in matching(COMMENTS):
        yield from texts.comments(ROOT / name)
    yield from texts.lines_with(ROOT / "debian/dedupd.prerm", r"^dedupd: (.*)$")
    yield from texts.lines_with(ROOT / "docs/guide/alert-rules.yml", r'summary: "(.*)"')
    yield from texts.lines_with(ROOT / "docs/guide/grafana-dashboard.json", r'"title": "(.*)"')
    control = (ROOT / "debian/control").read_text(encoding="utf-8")
    yield "debian/control", control.partition("\nDescription: ")[2].replace("\n .\n", "\n\n")
    yield from texts.literals(ROOT / "scripts/man_pages.py")


SOURCES: dict[str, Callable[[], texts.Texts]] = {
    "help": texts.help_texts,
    "packages": of_packages,
    "native code": of_native_code,
    "browser": of_pages_in_a_browser,
    "packaging": of_packaging,
    "documents": lambda: chain.from_iterable(texts.prose(ROOT / one) for one in matching(PAGES)),
    "docstrings": lambda: chain.from_iterable(
        texts.docstrings(ROOT / one) for one in matching(DOCSTRINGS)
    ),
    "Rust comments": lambda: chain.from_iterable(
        texts.rust_comments(ROOT / one) for one in matching(RUST)
    ),
    "comments": lambda: chain.from_iterable(
        texts.python_comments(ROOT / one) for one in matching(DOCSTRINGS)
    ),
}
"""The texts that are covered, by what they are part of."""


def exception_for(fault: Fault) -> tuple[str, str] | None:
    file = fault.where.partition(":")[0]
    return next((one for one in EXCEPTIONS if fnmatch(file, one[0]) and fault.name == one[1]), None)


@cache
def texts_of(source: str) -> tuple[tuple[str, str], ...]:
    return tuple(SOURCES[source]())


@cache
def found_in(source: str) -> tuple[Fault, ...]:
    return tuple(fault for where, text in texts_of(source) for fault in faults(text, where))


@pytest.mark.parametrize("source", SOURCES)
def test_texts_are_plain(source: str) -> None:
    bad = [str(fault) for fault in found_in(source) if exception_for(fault) is None]
    assert not bad, "\n" + "\n".join(bad)


def test_each_exception_is_needed() -> None:
    used = {exception_for(fault) for source in SOURCES for fault in found_in(source)}
    assert used - {None} == set(EXCEPTIONS)


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_has_texts(source: str) -> None:
    assert sum(1 for _, text in texts_of(source) if text.strip()) >= 5


# --- the rule itself --------------------------------------------------------------------------


def names_in(text: str) -> list[str]:
    return [fault.name for fault in faults(text, "here")]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_an_example_of_each_pattern_is_found(pattern: Pattern) -> None:
    assert pattern.name in names_in(pattern.example)
    assert pattern.name in names_in(pattern.example.replace(" ", "\n    ")), "in wrapped lines"
    assert str(next(faults(pattern.example, "here"))).startswith("here: ")


def test_a_long_sentence_is_found() -> None:
    words = " ".join(["word"] * WORDS_MAX)
    assert names_in(f"{words}.") == []
    assert names_in(f"More {words}.") == ["long sentence"]
    assert names_in(f"{words}. More {words[5:]}.") == [], "each sentence counts for itself"
    assert names_in(f"{words}\n\n- {words}\n- {words}") == [], "and so does each item of a list"
    assert names_in(f"{words[5:]} `a command of several words`.") == [], "code is one word"


def test_plain_sentences_have_no_faults() -> None:
    for text in (
        "Restore deleted or overwritten files.",
        "/srv/share: in use by a job; wait, or stop it with `dedupd cancel` or Ctrl-C",
        "Where to?",
        "What is missing?",
        "If the service manages the volume, the service runs the job.",
        "Use a size, for example 20 GiB.",
    ):
        assert names_in(text) == [], text


def test_code_is_exempt() -> None:
    assert names_in("Run `let go`, then `it is there`.") == []
