"""Chunk sizes other than the default: a volume returns each file, and shares chunks."""

from pathlib import Path

import pytest

from dedupd_core.format.container import Kind
from dedupd_core.format.volume_parameters import DEFAULT_PRESET, PRESETS
from dedupd_core.store.recipe.recipe_reader import Span
from dedupd_core.units import KIB, MIB
from tests.support.lab import Lab, fill, lab_in, noise


def _spans(lab: Lab, name: str) -> list[Span]:
    stub = lab.stub(name)
    assert stub is not None
    with lab.opened() as volume:
        return list(volume.content(stub, name).spans(0, stub.covered))


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {DEFAULT_PRESET}))
def test_a_volume_gives_back_what_it_took(tmp_path: Path, preset: str) -> None:
    with lab_in(tmp_path, preset) as lab:
        large = noise(3 * MIB, 9)
        contents = fill(lab) | {"large": large, "shifted": b"x" * 777 + large, "cut": large[:MIB]}
        for name in ("large", "shifted", "cut"):
            lab.put(name, contents[name])
        lab.optimize()
        assert {name: lab.read(name) for name in contents} == contents
        stored = lab.container(Kind.CHUNKS).stat().st_size
        assert stored < 4.5 * MIB  # of 7.9 MiB; each large one is there once
        (lab.data / "cut").unlink()
        lab.collect(full=True)
        del contents["cut"]
        assert {name: lab.read(name) for name in contents} == contents


def test_large_chunks_are_as_long_as_their_preset_says(tmp_path: Path) -> None:
    with lab_in(tmp_path, "128k") as lab:
        lab.put("large", noise(16 * MIB, 9))
        lab.optimize()
        *lengths, _last = (span.length for span in _spans(lab, "large"))
        assert min(lengths) >= 64 * KIB and max(lengths) <= 256 * KIB
        assert 110 * KIB < sum(lengths) / len(lengths) < 140 * KIB
