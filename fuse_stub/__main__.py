"""``python -m fuse_stub``: the process of a mount, started by ``served_in_background``."""

import sys

from dedupd_core.system.inherited import open_standard_streams
from dedupd_core.system.processes import register, show_as
from fuse_stub.mounts.mount_options import parse_options
from fuse_stub.process import serve, serve_for_parent
from fuse_stub.snapshot import serve_snapshot

if __name__ == "__main__":
    open_standard_streams()
    path, base_fd, mountpoint, cache_bytes, options, answer_fd, *kind = sys.argv[1:]
    register()
    show_as("dedupd-mount", mountpoint)
    serve_for_parent(
        path,
        int(base_fd),
        mountpoint,
        int(cache_bytes),
        int(answer_fd),
        serve_snapshot if kind else serve,
        parse_options(options),
    )
