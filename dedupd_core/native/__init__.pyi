"""Types of the Rust extension ``dedupd_core.native`` (source: ``native/``), one file per submodule.

Functions for bulk data take any C-contiguous bytes-like object without copying it, and release the
GIL while they work. They return packed little-endian arrays as ``bytes``;
``memoryview(x).cast("I")`` (or ``"Q"``) gives the typed view.

The extension is one file, ``dedupd_core/native.abi3.so``: this folder contains types only.
"""

from . import admission as admission
from . import chunker as chunker
from . import codec as codec
from . import commit as commit
from . import deletions as deletions
from . import hashing as hashing
from . import index as index
from . import ingest as ingest
from . import mount as mount
from . import rados as rados
from . import store as store
from . import stub as stub
from . import study as study
from . import system as system
from . import testing as testing
from . import tree as tree
from . import upkeep as upkeep
