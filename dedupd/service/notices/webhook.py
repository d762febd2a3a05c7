"""A process that posts its standard input, JSON, to the URL in its argument."""

import sys
import urllib.request

from dedupd_core.system.inherited import open_standard_streams

ANSWER_S_MAX = 30.0


def main() -> int:
    """Return 0 if the server accepted it; else print the reason on standard error."""
    open_standard_streams()
    request = urllib.request.Request(
        sys.argv[1],
        data=sys.stdin.buffer.read(),
        headers={"Content-Type": "application/json", "User-Agent": "dedupd"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S_MAX):
            return 0
    except (OSError, ValueError) as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
