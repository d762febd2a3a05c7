"""The module of Cockpit: what is installed, and its use, in the real Cockpit and a real browser."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd.service.history import History, Savings
from dedupd_core.units import GIB, MIB
from tests.support.browser import Tab, browser, is_there
from tests.support.lab import REPOSITORY, noise
from tests.support.service import ServiceLab, answers, eventually, reserved_port, service_lab

MODULE = REPOSITORY / "packaging/cockpit"
DRAWING = REPOSITORY / "dedupd/service/web/drawing.js"
WEB_SERVER = next(
    (p for p in ("/usr/lib/cockpit/cockpit-ws", "/usr/libexec/cockpit-ws") if os.path.exists(p)), ""
)


def test_the_module_names_files_that_are_installed_and_none_from_outside() -> None:
    manifest = json.loads((MODULE / "manifest.json").read_text())
    assert set(manifest["menu"]) == {"index"}
    page = (MODULE / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="([^"]+)"', page))
    own = {path.name for path in MODULE.iterdir()} - {"manifest.json", "index.html"}
    assert named == own | {DRAWING.name, "../base1/cockpit.js"}
    assert not re.search(r"<script>|<style>|\sstyle=|\son\w+=", page), "Cockpit's policy forbids it"
    for path in (*MODULE.iterdir(), DRAWING):
        assert not re.search(r"https?://(?!www\.w3\.org/)", path.read_text()), path
    rules = (REPOSITORY / "debian/rules").read_text()
    assert "packaging/cockpit/*" in rules and "dedupd/service/web/drawing.js" in rules


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    with service_lab(tmp_path_factory.mktemp("machine")) as machine:
        lab = machine.add_volume("share <b>&", "min_file_saving = 0.05\n")
        for number in range(3):
            lab.put(f"f{number}", noise(1 * MIB, number // 2))
        lab.put("alone <i>", noise(1 * MIB, 9))
        with lab.opened() as volume:
            for day in range(20, 0, -1):
                History(volume.base).note_savings(earlier(day))
        machine.start()
        machine.ended(machine.submit("optimize", lab))
        eventually(lambda: machine.view(lab)["savings"], "what was saved is measured")
        yield machine


def earlier(day: int) -> Savings:
    """A measurement of so many days ago."""
    free_bytes = (60 + 3 * day) * GIB
    saved_bytes = (20 - day) * MIB // 10
    return Savings(
        time.time() - day * 86400,
        files=4,
        files_optimized=2,
        logical_bytes=4 * MIB,
        optimized_bytes=2 * MIB,
        plain_bytes=4 * MIB,
        occupied_bytes=4 * MIB - saved_bytes,
        free_bytes=free_bytes,
        size_bytes=250 * GIB,
        waiting_bytes=day * GIB,
    )


@contextmanager
def cockpit(machine: ServiceLab, base: Path) -> Iterator[str]:
    """The address of the module in a Cockpit that runs as this user, without a log-in."""
    share = base / "share/cockpit/dedupd"
    share.mkdir(parents=True)
    for path in (*MODULE.iterdir(), DRAWING):
        text = path.read_text().replace("/etc/dedupd/dedupd.toml", str(machine.config))
        (share / path.name).write_text(text)
    (base / "bin").mkdir()
    program = base / "bin/dedupd"
    program.write_text(
        f"#!/bin/sh\nexport DEDUPD_CONFIG='{machine.config}' PYTHONPATH='{REPOSITORY}'\n"
        f'exec {sys.executable} -m dedupd.cli.main "$@"\n'
    )
    program.chmod(0o755)
    environment = {
        **os.environ,
        "XDG_DATA_DIRS": f"{base}/share:/usr/share",
        "PATH": f"{base}/bin:{os.environ['PATH']}",
        "HOME": str(base),
    }
    with reserved_port() as port, (base / "log").open("w") as log:
        session = f"--local-session={shutil.which('cockpit-bridge')}"
        server = subprocess.Popen(
            [WEB_SERVER, "--no-tls", "--address=127.0.0.1", f"--port={port}", session],
            env=environment,
            stderr=log,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            ping = ["curl", "-sf", "-o", "/dev/null", f"{address}/ping"]
            eventually(lambda: answers(lambda: _must(ping)), "Cockpit answers")
            yield f"{address}/cockpit/@localhost/dedupd/index.html"
        finally:
            server.kill()
            server.wait()


def _must(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:
        raise OSError(command[0])


def press_until(page: Tab, key: str) -> None:
    """Go with the keyboard alone to what has that key."""
    for _ in range(200):
        page.press("Tab", 9)
        if page.run("(document.activeElement.dataset || {}).key") == key:
            return
    raise AssertionError(f"no way to {key} by keyboard")


def unfold(page: Tab, number: int) -> str:
    """Open one of the parts that are folded; what an expression finds it by."""
    part = f"document.querySelectorAll('details')[{number}]"
    page.run(f"{part}.open = true")
    return part


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(not (is_there() and WEB_SERVER), reason="chromium or cockpit is not installed")
def test_an_administrator_works_with_it(machine: ServiceLab, tmp_path: Path) -> None:
    lab = machine.volumes[0]
    root = str(lab.root)
    with cockpit(machine, tmp_path) as address, browser(tmp_path) as page:
        page.size(380, 800)
        page.open(address)
        page.wait_for("document.body.dataset.state === 'ready'")
        assert page.run("document.querySelector('main h2').textContent") == root, "a name is text"
        assert page.run("document.documentElement.scrollWidth") <= 380

        lines = page.run("document.querySelectorAll('svg .line').length")
        assert lines == 3, "what was saved, what was free, and how that goes on"
        assert page.run("document.querySelector('svg .coming').points.length") == 2

        press_until(page, f"pause {root}")
        page.press("Enter", 13)
        eventually(lambda: machine.view(lab)["paused"], "it is paused")
        page.wait_for("document.activeElement.textContent === 'Resume jobs'", "the focus stays")
        page.press("Enter", 13)
        eventually(lambda: not machine.view(lab)["paused"], "it goes on")

        press_until(page, f"run {root} gc")
        page.press("Enter", 13)
        page.wait_for("document.getElementById('said').textContent.includes('gc is queued')")
        eventually(
            lambda: any(run["job"] == "gc" for run in machine.client.jobs(5)["history"]), "gc ran"
        )
        page.wait_for(
            "[...document.querySelectorAll('#jobs td')].some(c => c.textContent === 'gc')"
        )

        policy = unfold(page, 0)
        field = f"document.getElementById('policy {root} min_age')"
        page.wait_for(f"{field} && {field}.value === '0s'")
        page.run(f"{field}.value = '1s'; {field}.focus()")
        page.press("Enter", 13)
        page.wait_for("document.getElementById('said').textContent.startsWith('min_age: 0s → 1s')")
        assert machine.json("policy", lab.root)["min_age"] == "1s"
        page.run(f"{field}.value = 'soon'; {field}.focus()")
        page.press("Enter", 13)
        page.wait_for("document.getElementById('said').className === 'bad'")
        assert "is not a duration" in page.run("document.getElementById('said').textContent")
        assert page.run(f"{policy}.querySelectorAll('input').length") > 30

        left = unfold(page, 1)
        page.wait_for(f"{left}.textContent.includes('would save too little')")
        assert page.run(f"{left}.querySelector('td').textContent") == "alone <i>"
        checked = unfold(page, 2)
        page.wait_for(f"{checked}.querySelector('td') !== null")
        assert page.run("document.documentElement.scrollWidth") <= 380
        assert page.complaints == []
        host = address.partition("/cockpit")[0].partition("//")[2]
        assert all(re.match(rf"(?:http|ws)://{host}/|data:", url) for url in page.requests)

        machine.stop()
        page.wait_for("document.body.dataset.state === 'failed'")
        page.wait_for(
            "document.querySelector('button.first') !== null", "there is a way to start it"
        )
        machine.start()
        page.wait_for("document.body.dataset.state === 'ready'")
