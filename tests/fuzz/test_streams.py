"""Streams that no sender has written, received into a volume (fuzzing, by hypothesis).

Each frame has the right number and the right checksum, so that what is in it counts. Whatever it
is: the receiver refuses it with an error of its own, or the volume has the tree that it states; and
the next stream that is sound is received.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from dedupd_core.errors import Damaged, DedupdError
from dedupd_core.format import stream
from dedupd_core.format.stream import Frame, FrameKind
from jobs.backup.frame_io import unpacked
from jobs.backup.receiver import ReplicaVolume, end
from tests.support import crash
from tests.support.fuzzing import SECONDS_SLOW, damaged, fuzz
from tests.support.lab import new_lab, noise, prose
from tests.support.streams import frames_of, received, stream_bytes, stream_of

pytestmark = pytest.mark.root

TREE_KINDS = {FrameKind.RECIPE, FrameKind.TREE}
FIELDS = ("format", "stream", "volume", "fingerprint", "since", "resumes", "chunks", "moment_ns")

values = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers())
KINDS = (
    *("payload", "payload", "field", "drop", "twice", "swap", "head", "known"),
    *("node", "node", "no root"),
)
changes = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "payload",
                "payload",
                "field",
                "drop",
                "twice",
                "swap",
                "head",
                "known",
                "node",
                "node",
            ]
        ),
        st.integers(0, 40),
        st.integers(0, 1 << 30),
    ),
    min_size=1,
    max_size=4,
)


paths = st.lists(
    st.sampled_from([b"dir", b"one", b"two", b"link", b"a" * 255, b"..", b".", b"", b".dedupd"]),
    max_size=4,
).map(b"/".join)
numbers = st.integers(0, 9) | st.integers(0, (1 << 32) - 1)
times = st.integers(-(1 << 63), (1 << 63) - 1)
modes = st.sampled_from([stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, 0])
nodes_values: dict[str, st.SearchStrategy[Any]] = {
    "path": paths | st.binary(max_size=20),
    "target": paths | st.binary(max_size=20),
    "flags": st.integers(0, 15),
    "mode": st.builds(lambda kind, mode: kind | mode, modes, st.integers(0, 0o7777)),
    "uid": numbers,
    "gid": numbers,
    "recipe": numbers,
    "inode": numbers,
    "size": st.integers(0, 1 << 16) | st.integers(0, (1 << 64) - 1),
    "atime_ns": times,
    "mtime_ns": times,
    "attributes": st.lists(
        st.tuples(
            st.sampled_from([b"user.x", b"trusted.dedupd", b"system.posix_acl_access", b"", b"y"]),
            st.binary(max_size=30),
        ),
        max_size=3,
    ).map(tuple),
}


class Streams:
    """A volume that is received into, and a stream of another one as frames."""

    def __init__(self, place: Path) -> None:
        self.place = place
        source = new_lab(place / "source", "16k")
        (source.data / "dir").mkdir()
        source.store({"dir/one": noise(3000), "two": noise(30_000, 2), "text": prose(9000)})
        source.put("plain", b"a plain file")
        os.link(source.data / "two", source.data / "dir/two")
        os.symlink("two", source.data / "link")
        os.setxattr(source.data / "two", "user.x", b"value")
        self.whole = stream_bytes(source)
        self.frames = list(frames_of(self.whole))
        self.lab = new_lab(place / "replica", "16k")
        (place / "beside").write_bytes(b"beside")
        self.outside = self._outside()

    def _outside(self) -> list[tuple[str, int]]:
        names = [path for path in self.place.iterdir() if path.name != "lost+found"]
        return sorted((path.name, path.stat().st_mode) for path in names)

    def receive(self, data: bytes) -> BaseException | None:
        """Receive a stream into the volume; the error if any. A volume that has taken it is empty
        again afterwards; what was received in part of another one is left."""
        failure = received(self.lab, data)
        assert self._outside() == self.outside
        if failure is not None:
            assert os.listdir(self.lab.data) == [], "a stream was taken in part"
            return failure
        with ReplicaVolume.open(str(self.lab.root)) as volume, volume.job_lock():
            end(volume)
        for path in list(self.lab.data.iterdir()):
            is_directory = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if is_directory else path.unlink()
        return None

    # --- inputs -------------------------------------------------------------------------------

    def inputs(self) -> st.SearchStrategy[bytes]:
        return st.builds(self._changed, changes, st.data()) | damaged([self.whole])

    def _changed(self, wanted: list[tuple[str, int, int]], data: st.DataObject) -> bytes:
        frames = [*self.frames]
        for kind, at, number in wanted:
            at %= len(frames)
            frame = frames[at]
            if kind == "drop" and len(frames) > 1:
                del frames[at]
            elif kind == "twice":
                frames.insert(at, frame)
            elif kind == "swap":
                other = number % len(frames)
                frames[at], frames[other] = frames[other], frames[at]
            elif kind == "head":
                kinds = list(FrameKind)
                changed = frame._replace(kind=kinds[number % len(kinds)])
                frames[at] = data.draw(
                    st.sampled_from(
                        [changed, frame._replace(raw_length=number % 99), frame._replace(codec=3)]
                    )
                )
            elif kind == "known":
                rows = [
                    (one.fingerprint, one.raw_length) for one in frames if len(one.payload) > 32
                ]
                payload = stream.encode_known([(name, n ^ (number % 2)) for name, n in rows])
                frames.insert(at, Frame(FrameKind.KNOWN, 0, len(payload), payload))
            elif kind == "node":
                trees = [n for n, one in enumerate(frames) if one.kind is FrameKind.TREE]
                for one in trees:
                    with suppress(Damaged):
                        frames[one] = _with_node(frames[one], data)
            elif kind == "no root":
                frames = [_without_root(one) for one in frames]
            elif kind == "field" and frame.kind in (FrameKind.BEGIN, FrameKind.END):
                frames[at] = _with_field(frame, data)
            else:
                payload = data.draw(damaged([_raw(frame)]))
                frames[at] = Frame(frame.kind, 0, len(payload), payload)
        return stream_of(frames)


def _with_field(frame: Frame, data: st.DataObject) -> Frame:
    fields: dict[str, Any] = json.loads(frame.payload)
    name = data.draw(st.sampled_from([*fields, *FIELDS]))
    if data.draw(st.booleans()):
        fields.pop(name, None)
    else:
        fields[name] = data.draw(values)
    return stream.told(frame.kind, fields)


def _with_node(frame: Frame, data: st.DataObject) -> Frame:
    """A tree in which a node says something else."""
    nodes = list(stream.decode_nodes(_raw(frame), ""))
    if not nodes:
        return frame
    at = data.draw(st.integers(0, len(nodes) - 1))
    name = data.draw(st.sampled_from(sorted(nodes_values)))
    nodes[at] = replace(nodes[at], **{name: data.draw(nodes_values[name])})
    payload = b"".join(map(stream.encode_node, nodes))
    return Frame(FrameKind.TREE, 0, len(payload), payload)


def _without_root(frame: Frame) -> Frame:
    if frame.kind is FrameKind.END:
        fields = json.loads(frame.payload)
        return stream.told(frame.kind, {**fields, "nodes": fields.get("nodes", 1) - 1})
    if frame.kind is not FrameKind.TREE:
        return frame
    with suppress(Damaged):
        nodes = [one for one in stream.decode_nodes(_raw(frame), "") if one.path]
        payload = b"".join(map(stream.encode_node, nodes))
        return Frame(FrameKind.TREE, 0, len(payload), payload)
    return frame


def _raw(frame: Frame) -> bytes:
    if frame.codec != 1 or frame.kind not in TREE_KINDS:
        return frame.payload
    return bytes(unpacked(frame))


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    directory = tmp_path_factory.mktemp("streams")
    with crash.tmpfs(directory) as memory, crash.ext4(memory) as point:
        yield Streams(point)


def try_for(streams: Streams, seconds: float) -> int:
    def check(data: bytes) -> None:
        failure = streams.receive(data)
        assert failure is None or (isinstance(failure, DedupdError) and str(failure)), failure
        if failure is not None and data[-1] % 4 == 0:
            assert streams.receive(streams.whole) is None, "a stream keeps the next one out"

    assert streams.receive(streams.whole) is None
    seeds = fuzz(seconds, streams.inputs(), check)
    assert streams.receive(streams.whole) is None
    streams.lab.collect(full=True)
    streams.lab.verify_clean()
    return seeds


def test_a_stream_that_is_none_is_refused(streams: Streams) -> None:
    assert try_for(streams, 0.3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_streams_that_are_none_are_refused_for_long(streams: Streams) -> None:
    print(f"\n{try_for(streams, SECONDS_SLOW)} times 50 streams in {SECONDS_SLOW} s")
