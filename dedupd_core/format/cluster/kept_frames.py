"""A host's cache of a cluster store: segments of frames (docs/design/format.md, "Kept frames")."""

ROW_BYTES = 48
"""The size of a row for a frame, in the list of its segment. Native code knows the fields."""


def frames_name(number: int) -> bytes:
    """Return the name of the file with a segment's frames in sequence."""
    return b"%08x.frames" % number


def rows_name(number: int) -> bytes:
    """Return the name of the file with its list."""
    return b"%08x.rows" % number
