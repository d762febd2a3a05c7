"""Pressure stall information, as the kernel writes it, and where it writes none."""

from pathlib import Path

import pytest

from jobs.frame.backoff import Pressure, busy_with, pressure_of

TEXT = (
    "some avg10=12.34 avg60=1.00 avg300=0.00 total=5000000\n"
    "full avg10=3.00 avg60=0.50 avg300=0.00 total=7\n"
)


def test_pressure_is_for_how_long_some_process_waited(tmp_path: Path) -> None:
    (tmp_path / "io").write_text(TEXT)
    assert list(pressure_of("io", str(tmp_path))) == pytest.approx([0.1234, 5.0])


@pytest.mark.parametrize("text", [None, "", "nothing like that\n"])
def test_a_kernel_that_does_not_say_has_no_pressure(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "cpu").write_text(text)
    assert pressure_of("cpu", str(tmp_path)) == Pressure(0.0, 0.0)
    assert busy_with(str(tmp_path)) == ""


def test_a_machine_is_busy_with_what_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(TEXT.replace("12.34", "9.99"))
    assert busy_with(str(tmp_path)) == ""
    (tmp_path / "io").write_text(TEXT)
    assert busy_with(str(tmp_path)) == "io (12% of the time)"


def test_this_kernel_says_it_like_that() -> None:
    try:
        said = Path("/proc/pressure/cpu").read_text()
    except OSError:
        pytest.skip("a kernel without PSI")
    total_us = int(said.splitlines()[0].split("total=")[1])
    assert pressure_of("cpu").total_s >= total_us / 1e6
