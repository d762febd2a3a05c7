"""How Python runs a job of many objects and threads."""

import gc
import sys

GARBAGE_THRESHOLD = 100_000
"""Objects between two searches for cycles; 700 is Python's own choice."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread keeps the interpreter from others that wait for it: the reader and the commit
give it up at every system call. Python's own 5 ms made a run of small files 6 % longer."""


def let_objects_stream() -> None:
    """Few of the objects that stream through an optimize run are in cycles; looking for them all
    the time took 3 % of a run."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
