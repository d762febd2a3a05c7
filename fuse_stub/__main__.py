"""``python -m fuse_stub``: the process of a mount, started by ``mount_in_background``."""

import sys

from fuse_stub.mount import serve_for_parent

if __name__ == "__main__":
    answer_fd, path, mountpoint, cache_bytes, *base_fd = sys.argv[1:]
    serve_for_parent(path, mountpoint, int(cache_bytes), int(answer_fd), *map(int, base_fd))
