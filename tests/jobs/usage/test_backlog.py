"""What is still to be optimized, and what is left alone."""

import os
import time
from dataclasses import astuple
from pathlib import Path

from jobs.frame.run import JobRun
from jobs.usage.backlog import Backlog, backlog
from jobs.usage.volume_figures import volume_figures
from tests.support.lab import Lab, lab_in, noise, prose

KINDS = ("waiting", "young", "saves_little", "small", "excluded", "other")


def waiting(lab: Lab) -> Backlog:
    with lab.opened() as volume:
        return backlog(volume, JobRun("status"))


def test_every_plain_file_has_one_reason(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "1h"\nmin_size = "32k"\nexclude_types = ["iso"]\n')
        for number in range(3):
            lab.put(f"taken{number}", noise(50_000, number))
        lab.optimize()
        assert waiting(lab).files["young"] == 3, "change times are of now"
        lab.set_policy('min_age = "0s"\nmin_size = "32k"\nexclude_types = ["iso"]\n')
        lab.optimize()
        lab.put("one", noise(60_000, 7))
        lab.put("two", noise(70_000, 8))
        lab.put("small", noise(1_000, 9))
        lab.put("big.iso", noise(80_000, 10))
        os.link(lab.data / "one", tmp_path / "elsewhere")
        found = waiting(lab)
        assert found.files == {"waiting": 1, "small": 1, "excluded": 1, "other": 1}
        assert found.size_bytes == {
            "waiting": 70_000,
            "small": 1_000,
            "excluded": 80_000,
            "other": 60_000,
        }
        assert time.time() - 60 < found.oldest_waiting_s <= time.time()
        with lab.opened() as volume:
            figures = volume_figures(volume)
        row = figures.to_json()
        assert (row["waiting_files"], row["small_files"], row["files"]) == (1, 1, 7)
        plain = sum(row[f"{k}_files"] for k in KINDS)
        assert plain == row["files"] - row["files_optimized"]
        (tmp_path / "elsewhere").unlink()


def test_what_is_saved_is_told_by_cause(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content, text = noise(400_000, 3), prose(300_000, 4)
        for name in ("one", "two", "three"):
            lab.put(name, content)
        lab.put("text", text)
        lab.optimize()
        with lab.opened() as volume:
            figures = volume_figures(volume)
        causes = figures.causes
        assert causes is not None
        duplicates = causes.duplicates_bytes
        assert 2 * len(content) <= duplicates <= 2 * len(content) + 16384, "last blocks too"
        assert len(text) // 4 < causes.compression_bytes < len(text)
        assert causes.refined_bytes == figures.local_bytes == 0
        saved = sum(astuple(causes))
        assert 0.9 * saved <= figures.saved_bytes + figures.redundancy_bytes + 65536 <= 1.2 * saved
        with open(lab.let_write("one"), "r+b") as file:
            file.write(b"fresh" * 1000)
        with lab.opened() as volume:
            assert volume_figures(volume).local_bytes == 8192
