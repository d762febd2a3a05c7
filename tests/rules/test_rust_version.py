"""The native crate is built by Debian 12's compiler (``rust-version`` in native/Cargo.toml)."""

import re
from pathlib import Path

import pytest

CRATE = Path(__file__).parents[2] / "native"

LATER = {
    "1.86": re.compile(
        r"#\[target_feature\([^]]*\)\]\s*(?:#\[[^]]*\]\s*)*(?:pub(?:\([^)]*\))? )?fn "
    ),
    "1.88": re.compile(r"&& let |\b(?:if|while) let [^{;]*?\n\s*&& "),
}
"""By the version that brings it: what a later compiler takes without a word. Functions for some
processors that are not ``unsafe``; conditions that go on after a ``let``."""


def later(source: str) -> list[str]:
    return [version for version, form in LATER.items() if form.search(source)]


def test_the_sources_need_no_later_compiler() -> None:
    assert 'rust-version = "1.85"' in (CRATE / "Cargo.toml").read_text()
    sources = [*CRATE.glob("src/**/*.rs"), *CRATE.glob("examples/*.rs"), CRATE / "build.rs"]
    found = {str(path.relative_to(CRATE)): later(path.read_text()) for path in sources}
    assert {path: versions for path, versions in found.items() if versions} == {}


@pytest.mark.parametrize(
    "source",
    [
        "if a\n    && let Some(b) = c\n{",
        "if let Some(a) = b\n    && a > 1\n{",
        '#[target_feature(enable = "avx2")]\npub fn sum() {',
    ],
)
def test_what_a_later_compiler_takes_is_found(source: str) -> None:
    assert later(source)


@pytest.mark.parametrize(
    "source",
    [
        "if let Some(a) = b {\n    x = y\n        && z;",
        '#[target_feature(enable = "avx2")]\nunsafe fn sum() {',
    ],
)
def test_what_it_takes_is_not(source: str) -> None:
    assert not later(source)
