"""Builds the received tree next to the volume's own, and replaces the old tree by it.

Until the switch the volume is unchanged, during it the volume cannot be opened, after it the volume
has the received state. After a crash it is in one of the three, and the next `receive` continues.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict

import lmdb

from dedupd_core.errors import Damaged
from dedupd_core.failpoint import define, reach
from dedupd_core.format.stream import NodeFlag, StreamNode, decode_nodes, encode_node
from dedupd_core.format.stub import NO_FLAGS, Flag, StubAttribute
from dedupd_core.replica.replica import RECEIVE_DIR, Replica, note_replica
from dedupd_core.system.files import names_in, opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.system.tree.takeover import Rights
from dedupd_core.volume.volume import Volume
from jobs.backup.received import Received, ReceivedRecipe, remove_tree
from jobs.backup.tree.nodes import Node
from jobs.backup.tree.tree_writer import TreeWriter
from jobs.frame.run import Findings, JobRun

_TREE, _OLD, _SWITCHING, _PATHS, _ROOT = b"tree", b"old", b"switching", b"paths", b"root"
PATHS_FILE = b"replica.paths"
"""Next to ``replica.json``: path of each file in this volume by its inode in the sent volume."""
PATHS_BYTES_MAX = 64 << 30
"""Address space for these paths, not memory or disk."""

_BUILT = define("receive.built", "the received tree is durable, next to the volume's own")
_BEGUN = define("receive.begun", "the switch is recorded: the volume cannot be opened")
_MOVED_OUT = define("receive.moved-out", "one more entry of the old tree was moved away")
_CLEARED = define("receive.cleared", "all of them were moved away, and that is recorded")
_MOVED_IN = define("receive.moved-in", "one more entry of the new tree is in its place")
_NOTED = define("receive.noted", "the volume has the new state, and it cannot be opened yet")
_SWITCHED = define("receive.switched", "the volume can be opened again")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def _paths(path: bytes, *, write: bool) -> Iterator[lmdb.Environment]:
    """Open the table from an inode of the sender (8 bytes) to a path in this volume."""
    found = lmdb.open(
        os.fsdecode(path),
        subdir=False,
        map_size=PATHS_BYTES_MAX,
        readonly=not write,
        lock=False,
        sync=False,
        writemap=False,
    )
    try:
        yield found
    finally:
        found.sync(True) if write else None
        found.close()


class TreeBuilder:
    """Builds the tree of a completely received stream."""

    def __init__(self, volume: Volume, run: JobRun, received: Received) -> None:
        self._volume = volume
        self._run = run
        self._received = received

    def build(self) -> None:
        """Make everything that ``finish`` needs. Raises Damaged, NoSpace, Cancelled."""
        volume, disk, receive_fd = self._volume, self._volume.disk, self._received.fd
        remove_tree(disk, receive_fd, _TREE)
        with suppress(FileNotFoundError):
            disk.unlink(receive_fd, _PATHS)
        disk.make_dir(receive_fd, _TREE)
        at = b"/proc/self/fd/%d/" % receive_fd
        old = b"/proc/self/fd/%d/%s" % (volume.base_fd, PATHS_FILE)
        self._run.update(phase="creating the tree", done=0, total=0)
        with (
            opened(os.open(_TREE, _DIRECTORY, dir_fd=receive_fd)) as tree_fd,
            _paths(at + _PATHS, write=True) as new_paths,
            closing(_writer(tree_fd, volume, self._run.findings)) as writer,
        ):
            if os.path.exists(old):
                with _paths(old, write=False) as env, env.begin() as known:
                    self._make_all(writer, new_paths, known)
            else:
                self._make_all(writer, new_paths, None)
        disk.sync_file_system(receive_fd)
        reach(_BUILT)

    def _make_all(
        self, writer: TreeWriter, new_paths: lmdb.Environment, known: lmdb.Transaction | None
    ) -> None:
        run, directories = self._run, []
        with new_paths.begin(write=True) as notes:
            for count, node in enumerate(self._received.nodes()):
                run.safe_point()
                run.update(files=count)
                found = _node(node)
                if found.is_directory:
                    if node.path:
                        try:
                            writer.make_directory(node.path, found)
                        except _UNPLACED as error:
                            raise _unplaced(node.path) from error
                        directories.append((node.path, found))
                    else:
                        self._volume.disk.replace_file(self._received.fd, _ROOT, encode_node(node))
                    continue
                try:
                    is_made = self._make(writer, node, found, known)
                except _UNPLACED as error:
                    raise _unplaced(node.path) from error
                if is_made and found.is_file:
                    notes.put(node.inode.to_bytes(8, "little"), node.path, overwrite=False)
        self.flush()
        for path, found in reversed(directories):
            writer.finish_directory(path, found)

    def _make(
        self, writer: TreeWriter, node: StreamNode, found: Node, known: lmdb.Transaction | None
    ) -> bool:
        """Make a node that is no directory; return whether it exists."""
        if writer.make_link(node.path, found):
            return True
        if node.flags & (NodeFlag.SAME | NodeFlag.KEPT):
            return self._keep(writer, node, found, known)
        if not found.is_file:
            writer.make_other(node.path, found)
        elif node.flags & NodeFlag.RECIPE:
            recipe = self._received.recipe(node.recipe)
            if recipe.length != node.size:
                raise Damaged(
                    f"{show_path(node.path)}: has {node.size} bytes, but its recipe has"
                    f" {recipe.length}"
                )
            writer.make_file(node.path, found, attach=lambda fd: self.attach(fd, recipe))
        elif node.size:
            raise Damaged(f"{show_path(node.path)}: has {node.size} bytes, but no recipe")
        else:
            writer.make_file(node.path, found)
        return True

    def attach(self, fd: int, recipe: ReceivedRecipe) -> None:
        """Make an open file of holes a stub, at the latest in :meth:`flush`. It has the length of
        its recipe."""
        flags = Flag.DIRECT if recipe.ref.direct else NO_FLAGS
        stub = StubAttribute(recipe.ref.recipe, recipe.ref.digest, recipe.length, 0, flags)
        self._volume.stub_files.write(fd, stub)

    def flush(self) -> None:
        """Do nothing here: every file is complete."""

    def _keep(
        self, writer: TreeWriter, node: StreamNode, found: Node, known: lmdb.Transaction | None
    ) -> bool:
        """Link a file that this volume already has; return whether it exists."""
        where, is_same = show_path(node.path), NodeFlag.SAME in node.flags
        old = known.get(node.inode.to_bytes(8, "little")) if known is not None else None
        # If a replaced file cannot be read, its old version is better than none.
        for path in (old, None if is_same else node.path):
            size = None if path is None else _size(self._volume.data_fd, bytes(path))
            if path is not None and size is not None and (not is_same or size == node.size):
                writer.link_from(self._volume.data_fd, bytes(path), node.path, found)
                return True
        if is_same:
            raise Damaged(
                f"{where}: is missing from the previous state: the replica was changed; send"
                " without --since"
            )
        self._run.findings.add(f"{where}: was not sent, and the previous state does not contain it")
        return False


_UNPLACED = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def _unplaced(path: bytes) -> Damaged:
    return Damaged(
        f"{show_path(path)}: its directory is missing from the stream, or the path occurs twice;"
        " send the volume again"
    )


def _size(data_fd: int, path: bytes) -> int | None:
    """Return the length of a regular file; None if there is none."""
    try:
        with opened(open_beneath(data_fd, path, os.O_PATH)) as fd:
            status = os.stat(fd)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _node(node: StreamNode) -> Node:
    return Node(
        mode=node.mode,
        uid=node.uid,
        gid=node.gid,
        device=node.device,
        inode=node.inode,
        links=2 if NodeFlag.LINKED in node.flags else 1,
        size=node.size,
        atime_ns=node.atime_ns,
        mtime_ns=node.mtime_ns,
        ctime_ns=0,
        target=node.target,
        attributes=node.attributes,
    )


def switch(volume: Volume, received: Received, replica: Replica) -> None:
    """Replace the old tree by the built tree. Needs both locks."""
    state = json.dumps(asdict(replica) | {"is_cleared": False}).encode()
    remove_tree(volume.disk, received.fd, _OLD)
    volume.disk.replace_file(received.fd, _SWITCHING, state)
    reach(_BEGUN)
    finish_switch(volume, received.fd)


def is_switching(base_fd: int) -> bool:
    """Return whether a switch was started and is incomplete."""
    return os.path.exists(b"/proc/self/fd/%d/%s/%s" % (base_fd, RECEIVE_DIR, _SWITCHING))


def finish_switch(volume: Volume, receive_fd: int) -> None:
    """Complete the switch from the point of its interruption. Needs both locks."""
    disk, base_fd, data_fd = volume.disk, volume.base_fd, volume.data_fd
    with opened(os.open(_SWITCHING, os.O_RDONLY | os.O_CLOEXEC, dir_fd=receive_fd)) as fd:
        state = json.loads(os.read(fd, 1 << 16))
    is_cleared = state.pop("is_cleared")
    with suppress(FileExistsError):
        disk.make_dir(receive_fd, _OLD)
    if not is_cleared:
        with opened(os.open(_OLD, _DIRECTORY, dir_fd=receive_fd)) as old_fd:
            for name in names_in(data_fd):
                disk.rename_new(data_fd, name, old_fd, name)
                reach(_MOVED_OUT)
        disk.sync_file_system(receive_fd)
        marker = json.dumps({**state, "is_cleared": True}).encode()
        disk.replace_file(receive_fd, _SWITCHING, marker)
        reach(_CLEARED)
    with opened(os.open(_TREE, _DIRECTORY, dir_fd=receive_fd)) as tree_fd:
        for name in map(os.fsencode, os.listdir(tree_fd)):
            disk.rename_new(tree_fd, name, data_fd, name)
            reach(_MOVED_IN)
    _dress_root(volume, receive_fd)
    with suppress(FileNotFoundError):
        disk.rename(receive_fd, _PATHS, base_fd, PATHS_FILE)
    disk.sync_file_system(receive_fd)
    note_replica(base_fd, Replica(**state), disk)
    reach(_NOTED)
    disk.unlink(receive_fd, _SWITCHING)
    disk.sync_dir(receive_fd)
    reach(_SWITCHED)
    remove_tree(disk, base_fd, RECEIVE_DIR)


def _dress_root(volume: Volume, receive_fd: int) -> None:
    with opened(open_beneath(receive_fd, _ROOT, os.O_RDONLY)) as fd:
        (root,) = decode_nodes(os.read(fd, 1 << 20), "the received root")
    with closing(_writer(volume.data_fd, volume, Findings())) as writer:
        writer.finish_target(_node(root))


def _writer(tree_fd: int, volume: Volume, findings: Findings) -> TreeWriter:
    """Return a writer for a tree that root has sent, with all rights that its files give. No user
    reaches the tree while it is made."""
    rights = Rights.PRIVILEGED if os.geteuid() == 0 else Rights.USER
    reserved = volume.space.name
    return TreeWriter(tree_fd, volume.disk, findings, rights, reserved=reserved, owns_target=True)
