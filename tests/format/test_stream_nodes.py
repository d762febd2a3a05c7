"""Nodes of a stream name what a file system can have, or are refused when they come."""

import pytest

from dedupd_core.errors import Damaged
from dedupd_core.format.stream import NodeFlag, StreamNode, decode_nodes, encode_node


def node(
    path: bytes, target: bytes = b"", attributes: tuple[tuple[bytes, bytes], ...] = ()
) -> StreamNode:
    return StreamNode(path, NodeFlag(0), 0o100644, 0, 0, 0, 1, 0, 0, 0, 0, target, attributes)


@pytest.mark.parametrize(
    "path", [b"", b"a", b"a/b", b"\xff" * 255, b"/".join([b"d" * 255] * 100), b"...", b"a\nb", b"-"]
)
def test_every_path_below_the_tree_is_taken(path: bytes) -> None:
    one = node(path, b"../../anywhere", ((b"user.\xff", b"\0"),))
    assert list(decode_nodes(encode_node(one), "")) == [one]


@pytest.mark.parametrize(
    "one",
    [
        *map(node, [b"/etc/passwd", b"..", b"a/../../b", b"a//b", b"a/", b"./a", b"a\0b"]),
        node(b"x" * 256),
        node(b"a", b"tar\0get"),
        node(b"a", attributes=((b"", b""),)),
        node(b"a", attributes=((b"user.\0", b""),)),
        node(b"a", attributes=((b"user." + b"x" * 251, b""),)),
    ],
)
def test_a_node_that_names_nothing_is_damage(one: StreamNode) -> None:
    with pytest.raises(Damaged, match="not a valid node"):
        list(decode_nodes(encode_node(one), "the tree"))
