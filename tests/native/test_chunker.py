"""Where files are cut: the native chunker against the definition in ``reference_chunker``."""

import math
from array import array
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format.volume_parameters import PATTERN, POLYNOMIAL, PRESETS, Chunking
from tests.support import reference_chunker

PATHS = native.testing.simd_paths()
OTHER_POLYNOMIALS = (0x1002D, 0x1172D)


@cache
def chunker(chunking: Chunking, path: str | None = None) -> native.chunker.Chunker:
    return native.chunker.Chunker(
        polynomial=chunking.polynomial,
        bits=chunking.bits,
        pattern=chunking.pattern,
        regression=chunking.regression,
        min_bytes=chunking.min_bytes,
        max_bytes=chunking.max_bytes,
        path=path,
    )


def ends_of(packed: bytes) -> list[int]:
    return memoryview(packed).cast("I").tolist()


def cut(data: bytes, chunking: Chunking, final: bool = True, path: str | None = None) -> list[int]:
    return ends_of(native.testing.cut(chunker(chunking, path), data, final))


def chunks_of(data: bytes, chunking: Chunking) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *cut(data, chunking)])]


@st.composite
def chunkings(draw: st.DrawFn) -> Chunking:
    """Parameters far from the presets: few bits, small and odd sizes."""
    bits = draw(st.integers(1, 16))
    min_bytes = draw(st.integers(64, 700))
    return Chunking(
        polynomial=draw(st.sampled_from((POLYNOMIAL, *OTHER_POLYNOMIALS))),
        bits=bits,
        pattern=draw(st.integers(0, (1 << bits) - 1)),
        regression=draw(st.integers(0, bits - 1)),
        min_bytes=min_bytes,
        max_bytes=min_bytes + draw(st.integers(0, 9000)),
    )


def noise(seed: int, length: int) -> bytes:
    return Random(seed).randbytes(length)


def periodic(seed: int, period: int, length: int) -> bytes:
    """The same fingerprints over and over: every kind of match comes many times, so ties do."""
    return (noise(seed, period) * (length // period + 1))[:length]


def few_values(seed: int, values: int, length: int) -> bytes:
    return bytes(Random(seed).choices(range(values), k=length))


def pieces(longest: int) -> st.SearchStrategy[bytes]:
    seeds, lengths = st.integers(0, 2**32), st.integers(0, longest)
    return st.one_of(
        st.builds(noise, seeds, lengths),
        st.builds(bytes, lengths),
        st.builds(lambda byte, length: bytes([byte]) * length, st.integers(1, 255), lengths),
        st.builds(periodic, seeds, st.integers(1, 300), lengths),
        st.builds(few_values, seeds, st.integers(1, 4), lengths),
        st.binary(max_size=200),
    )


def contents(longest: int) -> st.SearchStrategy[bytes]:
    return st.lists(pieces(longest), max_size=5).map(b"".join)


@pytest.fixture(scope="module", params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_reference_rolls_to_the_defined_remainder() -> None:
    data = noise(1, 300)
    for polynomial in (POLYNOMIAL, *OTHER_POLYNOMIALS):
        rolled = list(reference_chunker.window_fingerprints(data, polynomial))
        plain = [reference_chunker.remainder(data[i : i + 64], polynomial) for i in range(300 - 63)]
        assert rolled == plain


@given(data=contents(6000), chunking=chunkings(), final=st.booleans())
@settings(max_examples=120)
@example(bytes(9000), Chunking(POLYNOMIAL, 16, 0, 4, 64, 4097), True)
@example(bytes(9000), Chunking(POLYNOMIAL, 5, 1, 4, 64, 64), False)
def test_every_path_cuts_where_the_definition_says(
    data: bytes, chunking: Chunking, final: bool
) -> None:
    expected = reference_chunker.cut(data, chunking, final)
    for path in PATHS:
        assert cut(data, chunking, final, path) == expected, path


@given(data=contents(6000), chunking=chunkings())
@settings(max_examples=60)
def test_every_path_finds_the_matches_of_the_definition(data: bytes, chunking: Chunking) -> None:
    expected = [
        number
        for match in reference_chunker.matches(data, chunking)
        for number in (match.end, match.bits)
    ]
    for path in PATHS:
        assert ends_of(native.testing.candidates(chunker(chunking, path), data)) == expected, path


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_cut_where_the_definition_says(preset: str, path: str) -> None:
    chunking = PRESETS[preset]
    size = 3 * chunking.max_bytes
    parts = [noise(7, size), bytes(chunking.max_bytes + 5), periodic(8, 5000, size // 2)]
    data = b"".join(parts)
    assert cut(data, chunking, path=path) == _reference_cut(preset, data)


@cache
def _reference_cut(preset: str, data: bytes) -> list[int]:
    return reference_chunker.cut(data, PRESETS[preset])


def test_equal_partial_matches_are_cut_at_the_last_of_them(path: str) -> None:
    """A period without a full match repeats its best partial match: the latest one wins."""
    chunking = Chunking(POLYNOMIAL, 16, PATTERN, 8, 256, 4096)
    period = 500
    for seed in range(20):
        data = periodic(seed, period, 3 * chunking.max_bytes)
        reachable = [
            match
            for match in reference_chunker.matches(data[: chunking.max_bytes], chunking)
            if match.end >= chunking.min_bytes
        ]
        best = max((match.bits for match in reachable), default=chunking.bits)
        ties = [match.end for match in reachable if match.bits == best]
        if best < chunking.bits and len(ties) > 1:
            assert cut(data, chunking, path=path)[0] == ties[-1]
            return
    raise AssertionError("no tie in twenty tries: the test has lost its subject")


@pytest.mark.parametrize("preset", PRESETS)
def test_zeros_are_cut_at_the_maximum(preset: str) -> None:
    chunking = PRESETS[preset]
    longest = chunking.max_bytes
    assert cut(bytes(2 * longest + 1), chunking) == [longest, 2 * longest, 2 * longest + 1]


@pytest.mark.parametrize("preset", PRESETS)
def test_no_run_of_one_byte_has_a_match(preset: str) -> None:
    worker = chunker(PRESETS[preset])
    for byte in range(256):
        assert native.testing.candidates(worker, bytes([byte]) * 200) == b""


@given(
    data=contents(40_000),
    chunking=chunkings(),
    cuts=st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
    path=st.sampled_from(PATHS),
)
@settings(max_examples=80)
def test_cuts_do_not_depend_on_how_a_file_is_read(
    data: bytes, chunking: Chunking, cuts: list[int], path: str
) -> None:
    streamed = list(_stream(data, chunker(chunking, path), cuts))
    whole = chunker(chunking).process(data, [(0, len(data), True)])
    assert [end for end, _ in streamed] == ends_of(whole.ends)
    assert b"".join(fingerprint for _, fingerprint in streamed) == whole.fingerprints


def _stream(
    data: bytes, worker: native.chunker.Chunker, sizes: list[int]
) -> Iterator[tuple[int, bytes]]:
    """The file in reads of ``sizes`` bytes in turn, the unfinished chunk carried to the next."""
    done = read = turn = 0
    while read < len(data):
        size = sizes[turn % len(sizes)]
        turn += 1
        read = min(len(data), read + size)
        buffer = b"?" * 13 + data[done:read] + b"?" * 7
        found = worker.process(buffer, [(13, len(buffer) - 7, read == len(data))])
        start = done
        for index, end in enumerate(ends_of(found.ends)):
            done = start + end - 13
            yield done, found.fingerprints[32 * index : 32 * index + 32]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_cuts_and_fingerprints_do_not_depend_on_threads(threads: int) -> None:
    worker = chunker(PRESETS["4k"])
    data = noise(3, 900_000) + bytes(50_000) + few_values(4, 2, 300_000)
    bounds = [0, 0, 10, 5000, 5000, 450_000, 450_123, len(data)]
    segments = [(a, b, i % 3 != 1) for i, (a, b) in enumerate(pairwise(bounds))]
    found, expected = worker.process(data, segments, threads), _one_by_one(worker, data, segments)
    assert (found.ends, found.fingerprints, found.zero, found.counts) == expected


def _one_by_one(
    worker: native.chunker.Chunker, data: bytes, segments: list[tuple[int, int, bool]]
) -> tuple[bytes, bytes, bytes, bytes]:
    ends: list[int] = []
    fingerprints, zero, counts = [], [], []
    for start, end, final in segments:
        here = [start + e for e in ends_of(native.testing.cut(worker, data[start:end], final))]
        for a, b in pairwise([start, *here]):
            fingerprints.append(native.hashing.fingerprint(data[a:b]))
            zero.append(not any(data[a:b]))
        ends += here
        counts.append(len(here))
    return (
        array("I", ends).tobytes(),
        b"".join(fingerprints),
        bytes(zero),
        array("I", counts).tobytes(),
    )


@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=60),
    threads=st.integers(1, 4),
)
@settings(max_examples=30)
def test_many_small_files_in_one_buffer_are_kept_apart(
    seed: int, lengths: list[int], threads: int
) -> None:
    worker = chunker(Chunking(POLYNOMIAL, 8, PATTERN & 0xFF, 4, 128, 512))
    data = noise(seed, sum(lengths))
    at, segments = 0, []
    for length in lengths:
        segments.append((at, at + length, True))
        at += length
    found = worker.process(data, segments, threads)
    assert (found.ends, found.fingerprints, found.zero, found.counts) == _one_by_one(
        worker, data, segments
    )


@given(data=contents(3000), chunking=chunkings())
@settings(max_examples=60)
def test_chunks_cover_the_data_within_their_limits(data: bytes, chunking: Chunking) -> None:
    lengths = [b - a for a, b in pairwise([0, *cut(data, chunking)])]
    assert sum(lengths) == len(data)
    assert all(chunking.min_bytes <= length <= chunking.max_bytes for length in lengths[:-1])
    assert all(0 < length <= chunking.max_bytes for length in lengths[-1:])


def test_an_inserted_byte_changes_a_few_chunks() -> None:
    chunking = PRESETS["8k"]
    data = noise(11, 2 << 20)
    before = set(chunks_of(data, chunking))
    changed = []
    random = Random(12)
    for at in [0, 1, len(data), *(random.randrange(len(data)) for _ in range(150))]:
        after = chunks_of(data[:at] + b"\x5a" + data[at:], chunking)
        changed.append(sum(chunk not in before for chunk in after))
    assert sum(changed) / len(changed) < 3
    assert max(changed) < 16


def test_without_regression_the_forced_share_is_that_of_chance() -> None:
    """96 Ki positions at 2^-16 each: none matches with probability exp(-1.5) = 0.2231."""
    forced, total = _forced_cuts(Chunking(POLYNOMIAL, 10, PATTERN & 0x3FF, 0, 512, 2048))
    expected = (1 - 2**-10) ** (2048 - 512 + 1)
    assert math.isclose(expected, math.exp(-1.5), rel_tol=0.01)
    # Three standard deviations of a share among so many chunks.
    assert abs(forced / total - expected) < 3 * math.sqrt(expected * (1 - expected) / total)


def test_with_regression_no_cut_of_noise_is_forced() -> None:
    """Four bits less leave no match with probability exp(-24)."""
    forced, total = _forced_cuts(Chunking(POLYNOMIAL, 10, PATTERN & 0x3FF, 4, 512, 2048))
    assert total > 10_000
    assert forced == 0


def _forced_cuts(chunking: Chunking) -> tuple[int, int]:
    """Chunks that end without a match, and all chunks, of 16 MiB of noise."""
    data = noise(21, 16 << 20)
    candidates = set(ends_of(native.testing.candidates(chunker(chunking), data))[::2])
    ends = cut(data, chunking)[:-1]
    return sum(end not in candidates for end in ends), len(ends)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("polynomial", 0x16D41),
        ("polynomial", 0x6D43),
        ("polynomial", -1),
        ("bits", 0),
        ("bits", 17),
        ("pattern", 1 << 16),
        ("regression", 16),
        ("regression", -1),
        ("min_bytes", 63),
        ("max_bytes", (32 << 10) - 1),
        ("max_bytes", 1 << 30),
        ("fingerprint", "md5"),
        ("path", "mmx"),
    ],
)
def test_parameters_outside_the_format_are_refused_by_name(name: str, value: object) -> None:
    good = {
        "polynomial": POLYNOMIAL,
        "bits": 16,
        "pattern": PATTERN,
        "regression": 4,
        "min_bytes": 32 << 10,
        "max_bytes": 128 << 10,
    }
    with pytest.raises(ValueError, match=name):
        native.chunker.Chunker(**{**good, name: value})  # type: ignore[arg-type]


def test_segments_outside_the_data_are_refused() -> None:
    worker = chunker(PRESETS["64k"])
    for segment in [(0, 101, True), (60, 50, True), (101, 101, False)]:
        with pytest.raises(ValueError, match="segments"):
            worker.process(bytes(100), [segment])
    for threads in (0, 100_000):
        with pytest.raises(ValueError, match="threads"):
            worker.process(bytes(100), [(0, 100, True)], threads)


def test_the_fastest_path_is_the_default() -> None:
    assert chunker(PRESETS["64k"]).path == PATHS[-1]
    assert PATHS[0] == "scalar"
