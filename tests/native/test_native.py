"""The rest of the native module: fingerprints, codecs, the fingerprint map, system calls."""

import array
import errno
import hashlib
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from dedupd_core import native
from dedupd_core.format import container, table
from dedupd_core.format.volume_parameters import PRESETS, Chunking

KIB, MIB = 1024, 1024 * 1024

BLAKE3_VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    2048: "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
    2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
    4096: "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969",
    5121: "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff",
    8193: "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b",
    16384: "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4",
    31744: "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}
"""From the authors of BLAKE3 (test_vectors.json); the input is 0, 1, … 250, 0, 1, …"""


def u32(*numbers: int) -> bytes:
    return array.array("I", numbers).tobytes()


def u64(*numbers: int) -> bytes:
    return array.array("Q", numbers).tobytes()


def u32s(packed: bytes) -> list[int]:
    return memoryview(packed).cast("I").tolist()


def noise(seed: int, length: int) -> bytes:
    return Random(seed).randbytes(length)


def text(seed: int, length: int) -> bytes:
    """Compresses to about half: words in random order."""
    words = [noise(n, 3 + n % 7) for n in range(500)]
    out = b" ".join(Random(seed).choices(words, k=length // 4))
    return out[:length]


class TestFingerprints:
    @pytest.mark.parametrize(("length", "digest"), BLAKE3_VECTORS.items())
    def test_blake3_is_that_of_its_authors(self, length: int, digest: str) -> None:
        data = (bytes(range(251)) * (length // 251 + 1))[:length]
        assert native.hashing.fingerprint(data).hex() == digest

    @given(st.binary(max_size=5000))
    def test_sha256_is_that_of_hashlib(self, data: bytes) -> None:
        assert native.hashing.fingerprint(data, "sha256") == hashlib.sha256(data).digest()

    @given(
        lengths=st.lists(st.integers(0, 3000), max_size=80),
        algorithm=st.sampled_from(["blake3", "sha256"]),
        threads=st.integers(1, 4),
    )
    def test_a_batch_gives_what_single_calls_give(
        self, lengths: list[int], algorithm: str, threads: int
    ) -> None:
        data, ends, expected = noise(1, sum(lengths)), [], b""
        at = 0
        for length in lengths:
            expected += native.hashing.fingerprint(data[at : at + length], algorithm)
            at += length
            ends.append(at)
        assert native.hashing.fingerprints(data, u32(*ends), algorithm, threads) == expected

    @pytest.mark.parametrize("ends", [u32(5, 4), u32(101), b"123"])
    def test_impossible_ends_are_refused(self, ends: bytes) -> None:
        with pytest.raises(ValueError, match="ends"):
            native.hashing.fingerprints(bytes(100), ends)

    def test_an_unknown_algorithm_is_refused(self) -> None:
        with pytest.raises(ValueError, match="blake3 or sha256"):
            native.hashing.fingerprint(b"", "md5")

    @given(st.binary(max_size=2000), st.integers(0, 2**64 - 1))
    def test_xxh3_is_that_of_the_xxhash_package(self, data: bytes, seed: int) -> None:
        assert native.hashing.xxh3_64(data) == xxhash.xxh3_64_intdigest(data)
        assert native.hashing.xxh3_64(data, seed) == xxhash.xxh3_64_intdigest(data, seed)


class TestZeros:
    @given(length=st.integers(0, 3000), offset=st.integers(0, 70))
    def test_zeros_at_any_offset_and_length_are_zeros(self, length: int, offset: int) -> None:
        data = b"\xff" * offset + bytes(length) + b"\xff"
        assert native.hashing.is_zero(memoryview(data)[offset : offset + length])

    @given(length=st.integers(1, 3000), place=st.floats(0, 1), bit=st.integers(0, 7))
    def test_a_single_bit_anywhere_is_seen(self, length: int, place: float, bit: int) -> None:
        data = bytearray(length)
        data[min(length - 1, int(place * length))] = 1 << bit
        assert not native.hashing.is_zero(data)


class TestIncompressible:
    @pytest.mark.parametrize("seed", range(20))
    def test_noise_is(self, seed: int) -> None:
        assert native.testing.incompressible(noise(seed, 80 * KIB))

    def test_what_was_compressed_already_is(self) -> None:
        packed = zstandard.compress(text(1, 400 * KIB), 19)
        assert native.testing.incompressible(packed)

    @pytest.mark.parametrize(
        "data",
        [
            bytes(80 * KIB),
            text(3, 80 * KIB),
            noise(4, 40 * KIB) * 2,
            noise(5, 60 * KIB) + bytes(20 * KIB),
            bytes(b & 0x7F for b in noise(6, 80 * KIB)),
            b"".join(noise(n, 1000) + noise(7, 200) for n in range(66)),
        ],
        ids=["zeros", "text", "repeated", "partly zeros", "7 bits", "short repeats"],
    )
    def test_what_zstd_shrinks_is_not(self, data: bytes) -> None:
        assert len(zstandard.compress(data)) < 0.95 * len(data)
        assert not native.testing.incompressible(data)

    def test_short_data_is_left_to_the_compressor(self) -> None:
        assert not native.testing.incompressible(noise(1, 4 * KIB))


def encode(
    data: Buffer, starts: bytes, lengths: bytes, level: int = 3, saving_min: float = 0.05
) -> native.codec.Encoded:
    return native.codec.encode(
        data, starts, lengths, level=level, saving_min=saving_min, header_bytes=80, align_bytes=8
    )


class TestEncode:
    @given(
        kinds=st.lists(
            st.tuples(st.sampled_from([noise, text, lambda _, n: bytes(n)]), st.integers(0, 20000)),
            max_size=12,
        ),
        level=st.sampled_from([0, 1, 3, 9]),
        saving_min=st.sampled_from([0.0, 0.05, 0.4, 0.99]),
    )
    def test_every_record_decodes_to_its_range(
        self,
        kinds: list[tuple[Callable[[int, int], bytes], int]],
        level: int,
        saving_min: float,
    ) -> None:
        parts = [make(seed, length) for seed, (make, length) in enumerate(kinds)]
        starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
        lengths = [len(part) for part in parts]
        encoded = encode(b"".join(parts), u32(*starts), u32(*lengths), level, saving_min)
        buffer = memoryview(encoded)
        checksums = memoryview(encoded.checksums).cast("Q").tolist()
        at = 0
        for part, start, stored, codec, checksum in zip(
            parts,
            u32s(encoded.starts),
            u32s(encoded.stored_lengths),
            encoded.codecs,
            checksums,
            strict=True,
        ):
            payload = buffer[start + 80 : start + 80 + stored]
            assert start == at
            assert xxhash.xxh3_64_intdigest(payload) == checksum
            assert native.codec.decode(payload, codec, len(part), checksum) == part
            if codec == 0:
                assert payload == part
            else:
                assert zstandard.decompress(payload) == part
                assert stored <= (1 - saving_min) * len(part)
            at = -(-(start + 80 + stored) // 8) * 8
            assert not any(buffer[start : start + 80])
            assert not any(buffer[start + 80 + stored : at])
        assert len(encoded) == len(buffer) == at

    def test_what_compresses_is_compressed_and_noise_is_stored_as_it_is(self) -> None:
        data = text(1, 50_000) + noise(2, 50_000)
        encoded = encode(data, u32(0, 50_000), u32(50_000, 50_000))
        assert list(encoded.codecs) == [1, 0]
        zipped, raw = u32s(encoded.stored_lengths)
        assert zipped == pytest.approx(len(zstandard.compress(data[:50_000], 3)), rel=0.02)
        assert raw == 50_000

    def test_level_zero_stores_everything_as_it_is(self) -> None:
        assert list(encode(text(1, 5000), u32(0), u32(5000), level=0).codecs) == [0]

    def test_a_saving_below_the_threshold_is_not_taken(self) -> None:
        data = text(1, 50_000)
        saving = 1 - len(zstandard.compress(data, 3)) / len(data)
        for threshold, codec in [(saving - 0.02, 1), (saving + 0.02, 0)]:
            assert list(encode(data, u32(0), u32(50_000), 3, threshold).codecs) == [codec]

    def test_header_gaps_can_be_filled_in_place(self) -> None:
        encoded = encode(noise(1, 100), u32(0), u32(100))
        memoryview(encoded)[:80] = b"h" * 80
        assert bytes(encoded) == b"h" * 80 + noise(1, 100) + bytes(4)

    def test_ranges_may_overlap_and_come_in_any_order(self) -> None:
        data = noise(1, 1000)
        encoded = encode(data, u32(500, 0, 0), u32(500, 1000, 10))
        buffer = bytes(encoded)
        for start, length, (a, b) in zip(
            u32s(encoded.starts),
            u32s(encoded.stored_lengths),
            [(500, 1000), (0, 1000), (0, 10)],
            strict=True,
        ):
            assert buffer[start + 80 : start + 80 + length] == data[a:b]

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("starts", u32(1)),
            ("starts", b"abc"),
            ("lengths", u32(100, 1)),
            ("level", -1),
            ("level", 23),
            ("saving_min", 1.0),
            ("saving_min", -0.1),
            ("align_bytes", 3),
            ("header_bytes", 1 << 20),
        ],
    )
    def test_impossible_arguments_are_refused_by_name(self, argument: str, value: object) -> None:
        good = {
            "starts": u32(0),
            "lengths": u32(100),
            "level": 3,
            "saving_min": 0.0,
            "header_bytes": 80,
            "align_bytes": 8,
        }
        with pytest.raises(ValueError, match=argument if argument != "starts" else "starts|length"):
            native.codec.encode(bytes(100), **{**good, argument: value})  # type: ignore[arg-type]


class TestSeal:
    @given(
        lengths=st.lists(st.integers(0, 3000), max_size=10),
        ordinal=st.integers(0, 2**31),
        offset=st.integers(0, 2**30),
        seed=st.integers(0, 2**64 - 1),
        level=st.sampled_from([0, 3]),
    )
    def test_headers_and_entries_are_those_of_the_format(
        self, lengths: list[int], ordinal: int, offset: int, seed: int, level: int
    ) -> None:
        data = text(1, 3000)
        encoded = encode(data, u32(*[0] * len(lengths)), u32(*lengths), level)
        fingerprints = [native.hashing.fingerprint(data[:length]) for length in lengths]
        hints = [*lengths[1:], 0][: len(lengths)]
        expected, entries = bytearray(memoryview(encoded)), b""
        for at, (start, stored, codec, checksum) in enumerate(
            zip(
                u32s(encoded.starts),
                u32s(encoded.stored_lengths),
                encoded.codecs,
                memoryview(encoded.checksums).cast("Q"),
                strict=True,
            )
        ):
            facts = (fingerprints[at], lengths[at], hints[at])
            record = container.Record(
                ordinal=ordinal + at,
                kind=container.RecordKind.DATA,
                codec=codec,
                raw_length=facts[1],
                stored_length=stored,
                hint=facts[2],
                fingerprint=facts[0],
                target=0,
                checksum=checksum,
            )
            container.pack_record_into(memoryview(expected), start, record, seed)
            entry = table.TableEntry(
                facts[0], offset + start, 0, stored, *facts[1:], table.State.LIVE, codec
            )
            entries += table.encode_entry(entry, seed)
        sealed = native.store.seal(
            encoded,
            b"".join(fingerprints),
            u32(*lengths),
            u32(*hints),
            seed=seed,
            ordinal=ordinal,
            offset=offset,
        )
        assert sealed == entries
        assert bytes(encoded) == expected

    def test_columns_of_different_length_are_refused(self) -> None:
        encoded = encode(b"abc", u32(0), u32(3))
        with pytest.raises(ValueError, match="columns"):
            native.store.seal(encoded, bytes(32), u32(3, 4), u32(0), seed=0, ordinal=0, offset=0)


class TestDecode:
    @given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7), level=st.sampled_from([0, 3]))
    def test_any_flipped_bit_is_reported(self, at: int, bit: int, level: int) -> None:
        data = text(1, 3000)
        encoded = encode(data, u32(0), u32(len(data)), level)
        (stored,), (checksum,) = (
            u32s(encoded.stored_lengths),
            memoryview(encoded.checksums).cast("Q"),
        )
        payload = bytearray(memoryview(encoded)[80 : 80 + stored])
        payload[at % stored] ^= 1 << bit
        with pytest.raises(native.codec.CorruptPayload):
            native.codec.decode(payload, encoded.codecs[0], len(data), checksum)

    @given(st.binary(max_size=300), st.integers(0, 400))
    def test_garbage_with_a_right_checksum_never_becomes_data(
        self, stored: bytes, raw_length: int
    ) -> None:
        checksum = xxhash.xxh3_64_intdigest(stored)
        with pytest.raises(native.codec.CorruptPayload):
            native.codec.decode(b"\x28" + stored, 1, raw_length, checksum)
        try:
            decoded = native.codec.decode(stored, 1, raw_length, checksum)
        except native.codec.CorruptPayload:
            return
        assert decoded == zstandard.decompress(stored)

    @pytest.mark.parametrize("claimed", [0, 2999, 3001, 1 << 40])
    @pytest.mark.parametrize("codec", [0, 1])
    def test_a_wrong_length_is_reported_before_memory_is_taken(
        self, codec: int, claimed: int
    ) -> None:
        data = text(1, 3000)
        stored = zstandard.compress(data) if codec else data
        with pytest.raises(native.codec.CorruptPayload, match="3000"):
            native.codec.decode(stored, codec, claimed, xxhash.xxh3_64_intdigest(stored))

    def test_a_frame_that_claims_too_little_is_reported(self) -> None:
        """The content size in a frame's header is checked against what it decodes to."""
        frame = bytearray(zstandard.compress(noise(1, 1000)))
        honest = zstandard.get_frame_parameters(bytes(frame)).content_size
        at = frame.index((honest - 256).to_bytes(2, "little"))
        frame[at : at + 2] = (honest - 256 - 1).to_bytes(2, "little")
        with pytest.raises(native.codec.CorruptPayload):
            native.codec.decode(frame, 1, honest - 1, xxhash.xxh3_64_intdigest(frame))

    def test_an_unknown_codec_is_refused(self) -> None:
        for codec in (-1, 2, 256):
            with pytest.raises(ValueError, match="codec"):
                native.codec.decode(b"", codec, 0, 0)


def buffers(data: bytes) -> Iterator[tuple[str, Buffer]]:
    anonymous = mmap.mmap(-1, len(data))
    anonymous[:] = data
    yield "mmap", anonymous
    yield "bytes", data
    yield "bytearray", bytearray(data)
    yield "memoryview", memoryview(b"x" + data + b"y")[1:-1]
    yield "array", array.array("H", data)
    yield "cast memoryview", memoryview(data).cast("B", (2, len(data) // 2))
    yield "read-only memoryview", memoryview(bytearray(data)).toreadonly()


class TestBuffers:
    data = text(1, 30_000)

    @pytest.mark.parametrize(
        "buffer", [b for _, b in buffers(data)], ids=[n for n, _ in buffers(data)]
    )
    def test_any_contiguous_buffer_is_taken(self, buffer: Buffer) -> None:
        worker = _chunker("4k")
        assert native.hashing.fingerprint(buffer) == native.hashing.fingerprint(self.data)
        assert native.testing.cut(worker, buffer) == native.testing.cut(worker, self.data)
        segments = [(0, len(self.data), True)]
        found, expected = worker.process(buffer, segments), worker.process(self.data, segments)
        assert (found.ends, found.fingerprints) == (expected.ends, expected.fingerprints)
        assert native.hashing.xxh3_64(buffer) == native.hashing.xxh3_64(self.data)
        encoded = encode(buffer, u32(0), u32(len(self.data)))
        assert bytes(encoded) == bytes(encode(self.data, u32(0), u32(len(self.data))))

    def test_large_buffers_are_not_copied(self) -> None:
        """A copy of a GiB of untouched zero pages would show as resident memory."""
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, 1024 * MIB, flags=private, prot=mmap.PROT_READ) as zeros:
            before = _resident_peak_bytes()
            assert native.hashing.is_zero(zeros)
            native.hashing.xxh3_64(zeros)
            assert _resident_peak_bytes() - before < 300 * MIB

    @pytest.mark.parametrize(
        "call",
        [
            native.hashing.fingerprint,
            native.hashing.is_zero,
            lambda data: native.testing.cut(_chunker("4k"), data),
            lambda data: _chunker("4k").process(data, []),
            lambda data: native.codec.decode(data, 0, 10, 0),
            lambda data: encode(data, b"", b""),
        ],
    )
    def test_what_is_no_contiguous_buffer_is_refused(
        self, call: Callable[[object], object]
    ) -> None:
        with pytest.raises(BufferError, match="contiguous"):
            call(memoryview(bytes(100))[::2])
        with pytest.raises(TypeError, match="bytes-like"):
            call("text")

    def test_a_buffer_in_use_cannot_be_resized(self) -> None:
        encoded = encode(b"abc", u32(0), u32(3))
        view = memoryview(encoded)
        del encoded
        assert bytes(view[80:83]) == b"abc"

    def test_a_buffer_is_let_go_after_the_call(self) -> None:
        data = bytearray(self.data)
        native.hashing.fingerprint(data)
        data += b"more"
        with mmap.mmap(-1, 4096) as mapped:
            native.hashing.fingerprint(mapped)


def _resident_peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no RssAnon in /proc/self/status")


def _chunker(preset: str) -> native.chunker.Chunker:
    c: Chunking = PRESETS[preset]
    return native.chunker.Chunker(
        polynomial=c.polynomial,
        bits=c.bits,
        pattern=c.pattern,
        regression=c.regression,
        min_bytes=c.min_bytes,
        max_bytes=c.max_bytes,
    )


@pytest.fixture(scope="module")
def zeros() -> Iterator[memoryview]:
    """Half a GiB that takes no memory: it is never written."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with (
        mmap.mmap(-1, 512 * MIB, flags=private, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


def _decoding() -> Callable[[], object]:
    """A call that decodes for long: digits are neither copied nor repeated, each is looked up."""
    data = random.Random(0).randbytes(32 * MIB).hex().encode()
    stored = zstandard.compress(data)
    checksum = xxhash.xxh3_64_intdigest(stored)
    return lambda: native.codec.decode(stored, 1, len(data), checksum)


class TestTheGilIsReleased:
    @pytest.mark.parametrize(
        "prepare",
        [
            lambda data: lambda: native.hashing.fingerprint(data[: 64 * MIB], "sha256"),
            lambda data: (
                lambda: native.hashing.fingerprints(data[: 64 * MIB], u32(64 * MIB), "sha256")
            ),
            lambda data: lambda: native.testing.cut(_chunker("64k"), data),
            lambda data: lambda: native.testing.candidates(_chunker("64k"), data),
            lambda data: lambda: _chunker("64k").process(data, [(0, len(data), True)]),
            lambda data: lambda: native.hashing.is_zero(data),
            lambda data: lambda: native.hashing.xxh3_64(data),
            lambda data: lambda: encode(data, u32(0), u32(128 * MIB), 9),
            lambda data: _decoding(),
        ],
        ids=[
            "fingerprint",
            "fingerprints",
            "cut",
            "candidates",
            "process",
            "is_zero",
            "xxh3_64",
            "encode",
            "decode",
        ],
    )
    def test_other_threads_run_in_the_middle_of_a_call(
        self, prepare: Callable[[memoryview], Callable[[], object]], zeros: memoryview
    ) -> None:
        """With the GIL held it would show in no attempt; a busy machine may spoil some."""
        call = prepare(zeros)
        assert any(_seen_in_the_middle_of(call) for _ in range(40))


def _seen_in_the_middle_of(call: Callable[[], object]) -> bool:
    """Whether this thread ran early and late in the middle half of ``call`` in another.

    Waiting for the GIL before the call may pass for a part of it, but not for both.
    """
    times: list[float] = []

    def timed() -> None:
        times.append(time.perf_counter())
        call()
        times.append(time.perf_counter())

    worker = threading.Thread(target=timed)
    seen: list[float] = []
    worker.start()
    while worker.is_alive():
        seen.append(time.perf_counter())
    begin, end = times
    quarter = (end - begin) / 4
    middle = [moment for moment in seen if begin + quarter < moment < end - quarter]
    return len(middle) > 1 and middle[-1] - middle[0] > quarter


@pytest.fixture(autouse=True, scope="module")
def short_turns() -> Iterator[None]:
    """Threads take turns every half millisecond: far less than the calls that are observed."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def file_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


class TestSystemCalls:
    def test_a_punched_hole_reads_as_zeros_and_frees_its_blocks(self, file_fd: int) -> None:
        os.write(file_fd, b"x" * 64 * KIB)
        os.fsync(file_fd)
        before = os.fstat(file_fd)
        native.system.punch_hole(file_fd, 8 * KIB, 16 * KIB)
        after = os.fstat(file_fd)
        assert os.pread(file_fd, 64 * KIB, 0) == b"x" * 8 * KIB + bytes(16 * KIB) + b"x" * 40 * KIB
        assert after.st_size == before.st_size
        assert before.st_blocks - after.st_blocks == 16 * KIB // 512

    def test_preallocated_blocks_leave_the_size_alone(self, file_fd: int) -> None:
        native.system.fallocate_keep_size(file_fd, 0, 64 * KIB)
        status = os.fstat(file_fd)
        assert status.st_size == 0
        assert status.st_blocks * 512 >= 64 * KIB

    def test_a_file_system_is_synced(self, file_fd: int) -> None:
        native.system.syncfs(file_fd)

    def test_rename_without_replacing(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("a")
        (tmp_path / "b").write_text("b")
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(FileExistsError):
                native.system.renameat2(fd, b"a", fd, b"b", 1)
            native.system.renameat2(fd, b"a", fd, b"c\xff", 1)
        finally:
            os.close(fd)
        assert sorted(os.listdir(os.fsencode(tmp_path))) == [b"b", b"c\xff"]

    def test_two_names_are_exchanged_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("1")
        (tmp_path / "b").write_text("2")
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            native.system.renameat2(fd, b"a", fd, b"b", 2)
        finally:
            os.close(fd)
        assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("2", "1")

    @pytest.mark.root
    def test_a_handle_opens_the_file_under_any_name(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("content")
        fd, mount_fd = os.open(path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
        handle = native.system.name_to_handle(fd)
        os.close(fd)
        path.rename(tmp_path / "elsewhere")
        again = native.system.open_by_handle(mount_fd, handle, os.O_RDONLY)
        try:
            assert os.read(again, 100) == b"content"
            assert not os.get_inheritable(again)
        finally:
            os.close(again)
        (tmp_path / "elsewhere").unlink()
        with pytest.raises(OSError) as stale:
            native.system.open_by_handle(mount_fd, handle, os.O_RDONLY)
        assert stale.value.errno == errno.ESTALE
        for nonsense in (b"", b"abc", handle[:4], bytes(200)):
            with pytest.raises(OSError):
                native.system.open_by_handle(mount_fd, nonsense, os.O_RDONLY)
        os.close(mount_fd)

    @pytest.mark.parametrize("size", [0, 1, 3000])
    def test_an_attribute_is_read_from_an_open_file(self, file_fd: int, size: int) -> None:
        assert native.system.fgetxattr(file_fd, b"user.dedupd-test") is None
        os.setxattr(file_fd, b"user.dedupd-test", noise(1, size))
        assert native.system.fgetxattr(file_fd, b"user.dedupd-test") == noise(1, size)

    def test_errors_carry_their_number(self, tmp_path: Path) -> None:
        calls: list[Callable[[], object]] = [
            lambda: native.system.punch_hole(-1, 0, 1),
            lambda: native.system.fallocate_keep_size(-1, 0, 1),
            lambda: native.system.syncfs(-1),
            lambda: native.system.name_to_handle(-1),
            lambda: native.system.fgetxattr(-1, b"user.x"),
        ]
        for call in calls:
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EBADF
            assert caught.value.strerror == os.strerror(errno.EBADF)

    def test_a_name_with_a_nul_byte_is_refused(self) -> None:
        with pytest.raises(ValueError, match="NUL"):
            native.system.fgetxattr(0, b"user.\0")
