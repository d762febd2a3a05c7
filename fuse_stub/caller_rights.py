"""What the kernel does not tell of the program that makes a call."""

from pyfuse3 import RequestContext

_CAP_FSETID = 1 << 4
_EFFECTIVE = b"\nCapEff:\t"


def keeps_set_ids(ctx: RequestContext) -> bool:
    """Whether set-user-id and set-group-id outlive what the caller changes (``CAP_FSETID``).

    The superuser's do, unless he is one without that right, as in a container. Others who have it
    are taken for those who have not.
    """
    if ctx.uid != 0:
        return False
    try:
        with open(f"/proc/{ctx.pid}/status", "rb") as file:
            status = file.read()
        start = status.index(_EFFECTIVE) + len(_EFFECTIVE)
        return bool(int(status[start : start + 16], 16) & _CAP_FSETID)
    except (OSError, ValueError):
        return False  # the call was somebody's who has been killed, or is out of our sight
