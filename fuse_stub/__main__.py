"""``python -m fuse_stub``: the process of a mount, started by ``mount_again_in_background``."""

import sys

from fuse_stub.process import serve_for_parent

if __name__ == "__main__":
    path, base_fd, mountpoint, cache_bytes, answer_fd = sys.argv[1:]
    serve_for_parent(path, int(base_fd), mountpoint, int(cache_bytes), int(answer_fd))
