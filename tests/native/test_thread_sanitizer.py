"""The tests of the native code under ThreadSanitizer, which finds accesses of threads that race.

The standard library must be compiled with the sanitizer too, so this needs a nightly toolchain with
the component ``rust-src``.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.sources import ROOT

TARGET = "x86_64-unknown-linux-gnu"


def nightly_sources(path: str) -> Path | None:
    """The sources of the standard library of the nightly toolchain; None if there are none."""
    if shutil.which("rustc", path=path) is None:
        return None
    asked = subprocess.run(
        ["rustc", "+nightly", "--print", "sysroot"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    sources = Path(asked.stdout.strip(), "lib/rustlib/src/rust/library/std")
    return sources if asked.returncode == 0 and sources.is_dir() else None


@pytest.mark.slow
def test_threads_of_native_code_do_not_race(tmp_path: Path) -> None:
    path = os.environ["PATH"] + f":{os.environ.get('CARGO_HOME', Path.home() / '.cargo')}/bin"
    if nightly_sources(path) is None:
        pytest.skip("needs `rustup toolchain install nightly --component rust-src`")
    done = subprocess.run(
        [
            *("cargo", "+nightly", "test", "-Zbuild-std", "--target", TARGET, "--locked"),
            *("--no-default-features", "--lib", "--manifest-path", "native/Cargo.toml"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": path,
            "CARGO_TARGET_DIR": os.environ.get("DEDUPD_TSAN_TARGET", str(tmp_path)),
            "CARGO_PROFILE_TEST_OPT_LEVEL": "1",
            "RUSTFLAGS": "-Zsanitizer=thread",
            "TSAN_OPTIONS": "halt_on_error=1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert "WARNING: ThreadSanitizer" not in done.stdout, done.stdout
    assert done.returncode == 0, done.stdout[-4000:]
    assert "test result: ok. 0 passed" not in done.stdout
