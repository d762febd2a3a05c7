"""Starting this program again, in a process of its own."""

import os
import sys


def child_environment() -> dict[str, str]:
    """The environment of a child that is this program too, and works in another directory."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
