"""What the service shows: metrics, and the page in a real browser."""

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dedupd_core.units import MIB
from tests.support.browser import browser, is_there
from tests.support.lab import noise
from tests.support.service import ServiceLab, eventually, reserved_port, service_lab

pytestmark = pytest.mark.root

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ListeningLab"]:
    with reserved_port() as port, service_lab(tmp_path_factory.mktemp("machine")) as machine:
        listening = ListeningLab(machine, port)
        lab = machine.add_volume("share <b>&")
        for number in range(3):
            lab.put(f"f{number}", noise(1 * MIB, number // 2))
        machine.start()
        for job in ("optimize", "gc"):
            machine.ended(machine.submit(job, lab))
        eventually(lambda: machine.view(lab)["savings"], "what was saved is measured")
        yield listening


class ListeningLab:
    """A service that is also on the loopback address."""

    def __init__(self, machine: ServiceLab, port: int) -> None:
        self.machine = machine
        self.address = f"http://127.0.0.1:{port}"
        machine.configure(f'listen = "127.0.0.1:{port}"\n')

    def get(self, path: str, **headers: str) -> str:
        request = urllib.request.Request(self.address + path, headers=headers)
        with urllib.request.urlopen(request) as response:
            return str(response.read().decode())


def metrics_of(machine: ListeningLab) -> dict[str, list[float]]:
    """Every sample, by its name."""
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(machine.get("/metrics")):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


def test_metrics_say_what_is_so(machine: ListeningLab) -> None:
    (machine.machine.volumes[0].root / "f0").read_bytes()
    found = metrics_of(machine)
    assert found["dedupd_volume_mounted"] == [1]
    assert found["dedupd_volume_files_optimized"] == [3]
    assert found["dedupd_volume_quarantined_records"] == [0]
    assert found["dedupd_volume_saved_bytes"][0] > 0.9 * MIB
    assert found["dedupd_mount_requests_total"][0] > 0
    assert found["dedupd_volume_in_policy_files"] == [3]
    assert found["dedupd_volume_size_bytes"][0] > found["dedupd_volume_free_bytes"][0] > 0
    assert found["dedupd_volume_plain_files"] == [0, 0, 0, 0, 0, 0]
    names = re.findall(r"^# TYPE (\w+)", machine.get("/metrics"), re.MULTILINE)
    assert {"dedupd_job_to_go_seconds", "dedupd_volume_incoming_bytes_per_day"} <= set(names)


def test_a_task_that_never_ran_has_begun_to_be_late_when_the_volume_was_made(
    machine: ListeningLab,
) -> None:
    root = machine.machine.volumes[0].root
    later = time.strftime("%H:00", time.localtime(time.time() + 12 * 3600))
    done = machine.machine.run("policy", root, "schedule_scrub", f"daily {later} for 1h")
    assert done.returncode == 0, done
    text = machine.get("/metrics")
    started = dict(re.findall(r'task_started_timestamp_seconds{.*task="(\w+)"} (.*)', text))
    with machine.machine.volumes[0].opened() as volume:
        made = os.stat("volume.json", dir_fd=volume.base_fd).st_mtime
    assert abs(float(started["scrub"]) - made) < 1
    assert float(started["gc"]) > made, "it was run by hand, which counts"


def test_mount_and_jobs_are_counted(machine: ListeningLab) -> None:
    found = metrics_of(machine)
    assert found["dedupd_jobs_total"] == [1, 1]
    assert found["dedupd_problems"] == [0]
    assert max(found["dedupd_jobs_freed_bytes_total"]) > 2 * MIB, "of three files of a megabyte"
    assert found["dedupd_service_process_open_fds"][0] > 5


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are(
    machine: ListeningLab,
) -> None:
    names = set(metrics_of(machine)) | {"up"}
    # Those that have a sample only while something runs, or has gone wrong.
    names |= set(re.findall(r"^# TYPE (\w+)", machine.get("/metrics"), re.MULTILINE))
    dashboard = json.loads((DOCS / "guide/grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = (DOCS / "guide/alert-rules.yml").read_text()
    asked += re.findall(r"expr: (.*)", alerts)
    assert len(asked) > 10
    used = set(re.findall(r"\bdedupd_\w+", " ".join(asked)))
    assert used and used <= names


def test_on_the_loopback_address_nothing_can_be_done(machine: ListeningLab) -> None:
    request = urllib.request.Request(f"{machine.address}/v1/reload", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)


def test_a_name_that_only_leads_to_the_loopback_address_is_refused(machine: ListeningLab) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        machine.get("/v1/volumes", Host="evil.example")


@pytest.mark.slow
@pytest.mark.skipif(not is_there(), reason="chromium is not installed")
def test_a_browser_shows_the_page_without_errors(machine: ListeningLab, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.size(380, 800)
        page.open(machine.address)
        page.wait_for("document.body.dataset.state === 'ready'")
        assert page.run("document.documentElement.scrollWidth") <= 380
        title = page.run("document.querySelector('h2').textContent")
        assert title.endswith("share <b>&"), "a name is text"
        text = page.run("document.body.innerText")
        assert "3 of 3" in text and "would be" not in text
        jobs = page.run("[...document.querySelectorAll('#jobs td')].map(cell => cell.textContent)")
        assert jobs.count("optimize") == 1 and "gc" in jobs
        assert page.complaints == []
        assert all(url.startswith((machine.address, "data:")) for url in page.requests)
