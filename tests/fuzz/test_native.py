"""The native decoders under libFuzzer, guided by coverage: a minute each, or what one has time for.

The corpora are in native/fuzz/corpus. They are replayed by the crate's own tests, which need no
fuzzer. ``DEDUPD_FUZZ_SECONDS`` sets the time of each target.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fuzzing import SECONDS_SLOW
from tests.support.sources import ROOT

CRATE = ROOT / "native/fuzz"
COVERAGE = (
    *("-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4"),
    *("-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",),
    *("-Cllvm-args=-sanitizer-coverage-pc-table", "-Cllvm-args=-sanitizer-coverage-trace-compares"),
    *("--cfg=fuzzing", "-Ccodegen-units=1"),
)
"""What cargo-fuzz has the compiler do; none of it needs a nightly one."""

ADDRESSES = "-Zsanitizer=address"
"""Finds what unsafe code reads and writes where it may not. A toolchain that comes with the runtime
of AddressSanitizer takes this option with RUSTC_BOOTSTRAP=1."""

TARGETS = re.findall(r'^    \("(\w+)", [\w:]+\),$', (CRATE / "src/targets.rs").read_text(), re.M)
LIMITS = ("-rss_limit_mb=2048", "-malloc_limit_mb=512", "-timeout=20", "-max_len=16384")


@pytest.fixture(scope="session")
def program() -> Path:
    """The fuzzer, built."""
    path = os.environ["PATH"] + f":{os.environ.get('CARGO_HOME', Path.home() / '.cargo')}/bin"
    if shutil.which("cargo", path=path) is None or shutil.which("c++") is None:
        pytest.skip("building the fuzzer needs cargo and a compiler for C++")
    environment = {**os.environ, "PATH": path}

    def told(*arguments: str) -> str:
        command = ["rustc", *arguments]
        return subprocess.run(
            command, cwd=CRATE, env=environment, capture_output=True, text=True, check=True
        ).stdout

    host = told("-vV").partition("host: ")[2].partition("\n")[0]
    libraries = Path(told("--print", "sysroot").strip(), "lib/rustlib", host, "lib")
    flags: tuple[str, ...] = COVERAGE
    if any(libraries.glob("librustc*rt.asan.a")):
        flags = (*COVERAGE, ADDRESSES)
        environment["RUSTC_BOOTSTRAP"] = "1"
    print(f"\nAddressSanitizer: {'yes' if ADDRESSES in flags else 'no, its runtime is missing'}")
    subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--locked", "--target", host],
        cwd=CRATE,
        env={**environment, "RUSTFLAGS": " ".join(flags)},
        check=True,
    )
    return CRATE / "target" / host / "release/dedupd-fuzz"


def test_every_target_has_a_corpus() -> None:
    assert len(TARGETS) == 12
    assert {path.name for path in (CRATE / "corpus").iterdir()} == set(TARGETS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TARGETS)
def test_a_fuzzer_finds_nothing(program: Path, tmp_path: Path, name: str) -> None:
    own = tmp_path / "corpus"
    own.mkdir()
    found = subprocess.run(
        [program, f"-max_total_time={SECONDS_SLOW}", *LIMITS, own, CRATE / "corpus" / name],
        cwd=tmp_path,
        env={
            **os.environ,
            "DEDUPD_FUZZ": name,
            "ASAN_OPTIONS": "detect_leaks=0",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    print(f"\n{name}: {found.stderr.strip().splitlines()[-1]}")
