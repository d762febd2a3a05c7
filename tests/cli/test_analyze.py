"""``dedupd analyze``, as people run it."""

import html.parser
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from dedupd.cli.main import main
from dedupd_core.units import MIB
from tests.conftest import MakeFileSystem
from tests.support.browser import brightness, browser, is_there
from tests.support.dataset import generate

PROGRAM = [
    sys.executable,
    "-c",
    "from dedupd_core.system import processes; processes.give_way = lambda: None;"
    "from dedupd.cli.main import main; main()",
]
"""At the priority of the tests: at its own it would wait for all else on the machine."""


def dedupd(*arguments: object, status: int = 0) -> str:
    """Output of the program, which must leave with that status."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def in_process(*arguments: object, status: int = 0) -> str:
    """The same without a process of its own, at the priority of the tests."""
    with patch("dedupd_core.system.processes.give_way"):
        done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "tree"
    generate(str(root), 2 * MIB, seed=8)
    return root


@pytest.fixture(scope="module")
def report(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one run, over two trees with names that could go wrong."""
    base = tmp_path_factory.mktemp("report")
    other = base / "other"
    other.mkdir()
    for number in range(3):
        name = f"<script>alert({number})</script>.<b>&"
        (other / name.replace("/", "")).write_bytes(random.Random(1).randbytes(50_000))
    out = base / "out"
    label = "</style><img onerror>$\x07é"
    text = in_process("analyze", tree, "--label", f"{label}={other}", "--out", out)
    assert "saved with these settings" in text and "dedupd run optimize" in text
    return out


class Page(html.parser.HTMLParser):
    """What a page refers to, and the elements in it."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [
            value
            for name, value in attrs
            if value is not None and name in ("src", "href", "xlink:href", "action", "data")
        ]


def test_the_page_needs_nothing_else(report: Path) -> None:
    text = (report / "report.html").read_text("utf-8")
    page = Page()
    page.feed(text)
    assert all(ref.startswith(("#", "data:,")) for ref in page.references), page.references
    assert not {"script", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert "@import" not in text and "@font-face" not in text
    assert not re.search(r"url\((?!#)", text)


def test_the_decision_comes_first_and_ends_with_what_to_type(report: Path) -> None:
    text = (report / "report.html").read_text("utf-8")
    places = [text.index(f'id="{name}"') for name in ("advice", "next", "types", "research")]
    assert places == sorted(places)
    assert text.index("<svg") > places[-1], "figures are for researchers"
    assert "dedupd enable" in text[places[1] : places[2]]
    assert "prefers-color-scheme: dark" in text and "#010203" not in text


@pytest.mark.slow
@pytest.mark.skipif(not is_there(), reason="chromium is not installed")
def test_a_telephone_shows_it_by_day_and_by_night(report: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.size(380, 800)
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            page.open(f"file://{report / 'report.html'}")
            page.run("document.querySelector('#research').open = true")
            assert page.run("document.documentElement.scrollWidth") <= 380
            ink, paper = page.run(
                "[getComputedStyle(document.querySelector('svg text')).fill,"
                " getComputedStyle(document.body).backgroundColor]"
            )
            assert (brightness(ink) > brightness(paper)) == (scheme == "dark")
        assert page.complaints == []
        assert all(url.startswith(("file:", "data:")) for url in page.requests)


def test_figures_are_well_formed_vectors(report: Path) -> None:
    text = (report / "report.html").read_text("utf-8")
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(figures) == 6
    for figure in figures:
        root = ElementTree.fromstring(figure)
        assert root.findall(".//{http://www.w3.org/2000/svg}path")
        assert not root.findall(".//{http://www.w3.org/2000/svg}image")
        assert "mathdefault" not in figure


def test_names_are_shown_as_they_are_and_do_no_harm(report: Path) -> None:
    text = (report / "report.html").read_text("utf-8")
    assert "<script" not in text and "<img" not in text
    assert "&lt;/style&gt;&lt;img onerror&gt;$\\x07é" in text


def test_json_and_csv_have_the_numbers_of_the_page(report: Path) -> None:
    numbers = json.loads((report / "report.json").read_text())
    rows = [row for row in numbers["figure2_chunk_size"] if row["chunking"] == "64k"]
    whole = next(row for row in rows if row["dataset"] == "all datasets")
    saved = 1 - whole["unique_bytes"] / whole["data_bytes"]
    assert f"{100 * saved:.1f}%" in (report / "report.html").read_text()
    csv = (report / "csv/figure2_chunk_size.csv").read_text().splitlines()
    assert csv[0].startswith("chunking,dataset,data_bytes")
    assert any(str(whole["unique_bytes"]) in line for line in csv)
    for name in numbers["findings"]:
        assert numbers[name], name


@pytest.mark.slow
def test_running_again_only_writes_the_report_again(tree: Path, tmp_path: Path) -> None:
    options = ("--out", tmp_path / "out", "--chunking", "64k", "--no-compression")
    first = json.loads(in_process("analyze", tree, *options, "--json"))
    second = json.loads(in_process("analyze", tree, *options, "--json"))
    assert first == second
    refused = in_process("analyze", tree, "--out", tmp_path / "out", status=2)
    assert "other paths or settings" in refused


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--sample", "0%", "."),
        ("--sample", "101%", "."),
        ("--sample", "some", "."),
        ("--chunking", "5k", "."),
        ("--label", "nothing"),
        ("/does/not/exist",),
    ],
)
def test_wrong_usage_is_said_in_a_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    text = in_process("analyze", *arguments, "--out", tmp_path / "out", status=2)
    assert text.startswith("dedupd: ")
    assert len(text.splitlines()) == 1


def test_nothing_to_analyse_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    text = in_process("analyze", tmp_path / "empty", "--out", tmp_path / "out")
    assert "nothing to analyze" in text
    assert "nothing to analyze" in (tmp_path / "out/report.html").read_text()


INTERRUPTED_ONCE = """
import os, signal
from analysis.collection import collector
collector.CHECKPOINT_S = 0.0
save = collector._Collection._save
def save_and_interrupt(self, *arguments, **options):
    save(self, *arguments, **options)
    if self._log.checkpoint.parts == 1:
        os.kill(os.getpid(), signal.SIGINT)
collector._Collection._save = save_and_interrupt
"""
"""As by somebody who sees the first checkpoint, and is quick."""


@pytest.mark.slow
def test_an_interrupt_leaves_a_state_to_go_on_from(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with open(tree / "large", "wb") as file:
        for number in range(512):
            file.write(random.Random(number % 16).randbytes(MIB))
    interrupted = f"{INTERRUPTED_ONCE}{PROGRAM[-1]}"
    command = [*PROGRAM[:-1], interrupted, "analyze", str(tree), "--out", str(tmp_path / "out")]
    command += ["--chunking=4k"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "to continue it, run the command again" in done.stderr
    state = json.loads((tmp_path / "out/log/checkpoint.json").read_text())
    assert state["parts"] > 0 and not state["complete"]
    again = json.loads(in_process(*command[3:], "--json"))
    assert again["table1_datasets"][0]["data_bytes"] == 512 * MIB


def test_it_runs_at_the_lowest_priority() -> None:
    program = (
        "import os, psutil\n"
        "from dedupd_core.system.processes import give_way\n"
        "give_way()\n"
        "print(os.nice(0), psutil.Process().ionice().ioclass == psutil.IOPRIO_CLASS_IDLE)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"19 True\n"


@pytest.mark.root
def test_what_is_predicted_is_what_optimize_stores(loop_fs: MakeFileSystem, tmp_path: Path) -> None:
    volume = loop_fs("ext4", "400M")
    generate(str(volume / "data"), 15 * MIB, seed=21)
    (volume / "data/empty").touch()
    with open(volume / "data/sparse.img", "wb") as file:
        file.write(random.Random(5).randbytes(300_000))
        file.truncate(20 * MIB)
    predicted = json.loads(
        in_process("analyze", volume, "--chunking", "64k", "--out", tmp_path / "out", "--json")
    )
    forecast = predicted["recommended"]["forecast"]["later"]
    (enable, *policy, optimize) = map(shlex.split, predicted["advice"]["commands"][0])
    in_process(*enable[1:], "--force", "--no-mount")
    for line in policy:
        in_process(*line[1:])
    report = json.loads(in_process(*optimize[1:], "--json"))
    assert report["files_optimized"] == forecast["files"]
    stored = report["sums"]["stored_bytes"]
    assert forecast["record_bytes"] == pytest.approx(stored, rel=0.0001)
    everything = stored + report["recipe_bytes"]
    expected = forecast["record_bytes"] + forecast["recipe_bytes"]
    assert expected == pytest.approx(everything, rel=0.01)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_and_prints_it_without_errors(report: Path, tmp_path: Path) -> None:
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    browser += [f"--user-data-dir={tmp_path / 'profile'}", "--no-pdf-header-footer"]
    done = subprocess.run(
        [
            *browser,
            *("--enable-logging=stderr", f"--print-to-pdf={tmp_path / 'report.pdf'}"),
            f"file://{report / 'report.html'}",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
