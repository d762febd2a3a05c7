"""Starting this program in another process."""

import os
import sys


def child_environment() -> dict[str, str]:
    """The environment of a child process that runs this program in another directory."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
