"""Streams with the right numbers and checksums that no sender has written."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.errors import Damaged, UnknownFormat
from dedupd_core.format import stream
from dedupd_core.format.stream import Frame, FrameKind, StreamNode
from jobs.backup.frame_io import packed, unpacked
from tests.support.lab import Lab, new_lab, noise
from tests.support.streams import frames_of, received, stream_bytes, stream_of

pytestmark = pytest.mark.root


@pytest.fixture
def labs(tmp_path: Path) -> tuple[Lab, Lab]:
    """A volume that is sent, and an empty one that receives."""
    source = new_lab(tmp_path / "source", "16k")
    source.store({"one": noise(3000), "two": noise(30_000, 2)})
    return source, new_lab(tmp_path / "replica", "16k")


def expect_refused(labs: tuple[Lab, Lab], change: Callable[[list[Frame]], list[Frame]]) -> None:
    """The stream is damage, the volume is what it was, and the next stream is received."""
    source, replica = labs
    whole = stream_bytes(source)
    failure = received(replica, stream_of(change(list(frames_of(whole)))))
    assert isinstance(failure, Damaged | UnknownFormat), repr(failure)
    assert "Traceback" not in str(failure)
    assert os.listdir(replica.data) == []
    assert received(replica, whole) is None
    assert replica.read("two") == noise(30_000, 2)
    replica.verify_clean()


NO_VALUES: dict[str, list[object]] = {
    "chunks": [None, True, -1, "1", 1 << 70],
    "stream": [None, "none", 7, []],
    "volume": [None, [1]],
    "since": [None, 0],
    "moment_ns": [None, "now"],
}
VALUES = [(name, value) for name, values in NO_VALUES.items() for value in values]


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_field_that_is_none_is_damage(labs: tuple[Lab, Lab], name: str, value: object) -> None:
    def change(frames: list[Frame]) -> list[Frame]:
        fields: dict[str, Any] = json.loads(frames[0].payload)
        if value is None:
            del fields[name]
        else:
            fields[name] = value
        return [stream.told(FrameKind.BEGIN, fields), *frames[1:]]

    expect_refused(labs, change)


def test_a_text_of_another_kind_is_damage(labs: tuple[Lab, Lab]) -> None:
    expect_refused(labs, lambda frames: [frames[-1], *frames[1:]])


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.KNOWN, 0, 35, bytes(35)),
        Frame(FrameKind.CHUNK, 3, 8, bytes(40)),
        Frame(FrameKind.TREE, 2, 8, bytes(40)),
        Frame(FrameKind.OFFER, 0, 31, bytes(31)),
    ],
)
def test_a_frame_that_is_none_is_damage(labs: tuple[Lab, Lab], frame: Frame) -> None:
    expect_refused(labs, lambda frames: [frames[0], frame, *frames[1:]])


def with_nodes(
    frames: list[Frame], change: Callable[[list[StreamNode]], list[StreamNode]]
) -> list[Frame]:
    """A stream with another tree, and an end that says how many nodes there are."""
    nodes, others = list[StreamNode](), list[Frame]()
    for frame in frames[:-1]:
        if frame.kind is FrameKind.TREE:
            nodes += stream.decode_nodes(unpacked(frame), "")
        else:
            others.append(frame)
    nodes = change(nodes)
    tree = packed(FrameKind.TREE, b"".join(map(stream.encode_node, nodes)))
    end = {**json.loads(frames[-1].payload), "nodes": len(nodes)}
    return [*others, tree, stream.told(FrameKind.END, end)]


def node(path: bytes, mode: int) -> StreamNode:
    return StreamNode(path, stream.NodeFlag(0), mode, 0, 0, 0, 99, 0, 0, 0)


TREES: dict[str, Callable[[list[StreamNode]], list[StreamNode]]] = {
    "without the tree itself": lambda nodes: [one for one in nodes if one.path],
    "with the tree twice": lambda nodes: [*nodes, nodes[0]],
    "the tree is a file": lambda nodes: [node(b"", stat.S_IFREG | 0o644), *nodes[1:]],
    "a path twice": lambda nodes: [*nodes, nodes[-1]],
    "a file without its directory": lambda nodes: [*nodes, node(b"no/file", stat.S_IFREG)],
    "a directory below a file": lambda nodes: [*nodes, node(b"one/dir", stat.S_IFDIR)],
    "a directory twice, once a file": lambda nodes: [*nodes, node(b"one", stat.S_IFDIR)],
    "a file of another length": lambda nodes: [
        *nodes[:-1],
        nodes[-1].__class__(
            *(
                nodes[-1].path,
                nodes[-1].flags,
                nodes[-1].mode,
                0,
                0,
                0,
                98,
                7,
                0,
                0,
                nodes[-1].recipe,
            )
        ),
    ],
}


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_that_is_none_is_damage(labs: tuple[Lab, Lab], tree: str) -> None:
    expect_refused(labs, lambda frames: with_nodes(frames, TREES[tree]))
