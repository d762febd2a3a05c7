"""What a host keeps of a store in a cluster: segments of frames (docs/design/format.md, "Kept
frames")."""

ROW_BYTES = 48
"""Of a frame, in the list beside its segment. Native code knows what it says."""


def frames_name(number: int) -> bytes:
    """The file of a segment's frames, one after the other."""
    return b"%08x.frames" % number


def rows_name(number: int) -> bytes:
    """The file of its list."""
    return b"%08x.rows" % number
