"""Completion of commands, options and paths in the shell, as the library of the CLI makes it.

    python scripts/completions.py DIRECTORY

writes it for bash, zsh and fish to their places below DIRECTORY, which is /usr/share or its like.
"""

import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from dedupd.cli.main import main

PLACES = {
    "bash": "bash-completion/completions/dedupd",
    "zsh": "zsh/vendor-completions/_dedupd",
    "fish": "fish/vendor_completions.d/dedupd.fish",
}


def completions() -> dict[str, str]:
    """The place of each shell's file, and its text."""
    found = {}
    for shell, place in PLACES.items():
        kind = get_completion_class(shell)
        assert kind is not None
        found[place] = kind(main, {}, "dedupd", "_DEDUPD_COMPLETE").source()
    return found


if __name__ == "__main__":
    for place, text in completions().items():
        file = Path(sys.argv[1]) / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"))
