"""Rights of a calling program that the kernel does not pass with a request."""

from pyfuse3 import RequestContext

_CAP_FSETID = 1 << 4
_EFFECTIVE = b"\nCapEff:\t"


def keeps_set_ids(ctx: RequestContext) -> bool:
    """Whether a change by the caller leaves set-user-id and set-group-id alone (``CAP_FSETID``).

    True of root with that right, which root in a container may lack. Other users count as without
    it, even where they have it.
    """
    if ctx.uid != 0:
        return False
    try:
        with open(f"/proc/{ctx.pid}/status", "rb") as file:
            status = file.read()
        start = status.index(_EFFECTIVE) + len(_EFFECTIVE)
        return bool(int(status[start : start + 16], 16) & _CAP_FSETID)
    except (OSError, ValueError):
        return False  # the caller was killed, or is in a namespace that is not visible here
