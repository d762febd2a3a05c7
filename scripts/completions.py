"""Shell completion: for dedupd from the library of the CLI, for dedupd-reader from word lists.

    python scripts/completions.py DIRECTORY

writes it for bash, zsh and fish to their places below DIRECTORY, for example /usr/share.
"""

import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from dedupd.cli.main import main
from dedupd_reader.reader import command_parsers

PLACES = {
    "bash": "bash-completion/completions/dedupd",
    "zsh": "zsh/vendor-completions/_dedupd",
    "fish": "fish/vendor_completions.d/dedupd.fish",
}


def completions() -> dict[str, str]:
    """Return the place of each shell's file, and its text."""
    found = {}
    for shell, place in PLACES.items():
        kind = get_completion_class(shell)
        assert kind is not None
        found[place] = kind(main, {}, "dedupd", "_DEDUPD_COMPLETE").source()
    words = {
        name: " ".join(option for action in one._actions for option in action.option_strings)
        for name, one in command_parsers().items()
    }
    cases = "".join(f"        {name}) words='{options}' ;;\n" for name, options in words.items())
    found["bash-completion/completions/dedupd-reader"] = READER_BASH.format(
        commands=" ".join(words), cases=cases
    )
    cases = "".join(f"    {name}) compadd -- {options} ;;\n" for name, options in words.items())
    found["zsh/vendor-completions/_dedupd-reader"] = READER_ZSH.format(
        commands=" ".join(words), cases=cases
    )
    found["fish/vendor_completions.d/dedupd-reader.fish"] = "".join(
        [
            READER_FISH.format(commands=" ".join(words)),
            *(
                f"complete -c dedupd-reader -n '__fish_seen_subcommand_from {name}'"
                f" -l {option.removeprefix('--')}\n"
                for name, options in words.items()
                for option in options.split()
                if option.startswith("--")
            ),
        ]
    )
    return found


READER_BASH = """\
_dedupd_reader() {{
    local words
    case ${{COMP_WORDS[1]}} in
{cases}        *) words='{commands} --help --version' ;;
    esac
    if [ "$COMP_CWORD" -gt 1 ] && [[ $2 != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$2")
    else
        [ "$COMP_CWORD" -gt 1 ] || words='{commands} --help --version'
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
    fi
}}
complete -o filenames -F _dedupd_reader dedupd-reader
"""

READER_ZSH = """\
#compdef dedupd-reader
if (( CURRENT == 2 )); then
    compadd -- {commands} --help --version
elif [[ $words[CURRENT] != -* ]]; then
    _files
else
    case $words[2] in
{cases}    esac
fi
"""

READER_FISH = """\
complete -c dedupd-reader -n __fish_use_subcommand -f -a '{commands}'
"""


if __name__ == "__main__":
    for place, text in completions().items():
        file = Path(sys.argv[1]) / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"))
