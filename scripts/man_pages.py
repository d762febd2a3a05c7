"""Make man pages from the help of the commands and from docs/.

    python scripts/man_pages.py DIRECTORY

writes dedupd.1, a page for each command, dedupd-reader.1, mount.dedupd.8, dedupd.toml.5 and
dedupd-policy.5. It needs dedupd to be importable.
"""

import argparse
import re
import sys
from pathlib import Path

import click
import roff

from dedupd.cli.main import COMMANDS, main
from dedupd_core import __version__
from dedupd_reader import reader

DOCS = Path(__file__).resolve().parent.parent / "docs"


def pages() -> dict[str, str]:
    """Return the name of each page's file, and its text."""
    context = click.Context(main, info_name="dedupd", **main.context_settings)
    found = {"dedupd.1": _main_page(context)}
    for name, summary in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        inside = click.Context(command, parent=context, info_name=name)
        found[f"dedupd-{name}.1"] = _command_page(name, summary, command, inside)
    found["dedupd-reader.1"] = _reader_page()
    mount = (DOCS / "guide/mount.md").read_text()
    found["mount.dedupd.8"] = _document_page(
        "mount.dedupd",
        "mount a volume, for mount(8)",
        _section(mount, "Options"),
        ["dedupd-mount(1)", "dedupd-umount(1)", "dedupd.toml(5)"],
        section=8,
    )
    found["dedupd.toml.5"] = _document_page(
        "dedupd.toml",
        "configuration of the service",
        _section((DOCS / "guide/service.md").read_text(), "Configuration"),
        ["dedupd-serve(1)", "dedupd-policy(5)", "dedupd(1)"],
    )
    policy = (DOCS / "guide/policy.md").read_text().partition("\n")[2]
    found["dedupd-policy.5"] = _document_page(
        "dedupd-policy",
        "which files of a volume are optimized, and when",
        policy,
        ["dedupd-policy(1)", "dedupd.toml(5)", "dedupd(1)"],
    )
    return found


def _page(name: str, section: int, summary: str, body: list[str], see: list[str]) -> str:
    lines = [
        roff.title(name, section, __version__),
        roff.heading("Name"),
        rf"{roff.escaped(name)} \- {roff.escaped(summary)}",
        *body,
        roff.heading("See also"),
        ", ".join(rf"\fB{roff.escaped(page[:-3])}\fR{page[-3:]}" for page in see),
        ".PP",
        r"Documents in \fI/usr/share/doc/dedupd\fR.",
    ]
    return "\n".join(lines) + "\n"


def _main_page(context: click.Context) -> str:
    description, _, status = (main.help or "").partition("\b\n")
    body = [
        roff.heading("Synopsis"),
        rf"{roff.bold('dedupd')} {roff.italic('COMMAND')} [{roff.italic('ARGUMENT')} ...]",
        roff.heading("Description"),
        *_paragraphs(description),
        ".PP",
        "Files that have not changed for some days are split into chunks, and each distinct chunk "
        "is stored once. A mount presents all files as before.",
        roff.heading("Commands"),
    ]
    for name, summary in COMMANDS.items():
        page = rf"\fB{roff.escaped('dedupd-' + name)}\fR(1)"
        body += roff.tagged(page, roff.escaped(summary))
    body += [roff.heading("Options"), *_options(main, context)]
    body += [roff.heading("Exit status"), *_exit_statuses(status)]
    body.append(roff.heading("Files"))
    for path, meaning in FILES.items():
        body += roff.tagged(roff.italic(path), roff.inline(meaning))
    body.append(roff.heading("Environment"))
    body += roff.tagged(roff.bold("DEDUPD_CONFIG"), "Path of the configuration file.")
    see = [f"dedupd-{name}(1)" for name in COMMANDS]
    return _page(
        "dedupd",
        1,
        "deduplicate primary volumes",
        body,
        ["dedupd-reader(1)", "dedupd.toml(5)", "dedupd-policy(5)", "mount.dedupd(8)", *see],
    )


FILES = {
    "/etc/dedupd/dedupd.toml": "The configuration of the service.",
    "/etc/dedupd/volumes.d": "One file per volume, written by `dedupd enable`.",
    "PATH/.dedupd": "All data of the volume PATH: the tree of the users, the store and the policy. "
    "Only root has access.",
    "/run/dedupd.sock": "Control socket of the service.",
}


def _command_page(name: str, summary: str, command: click.Command, context: click.Context) -> str:
    body = [
        roff.heading("Synopsis"),
        _usage(context),
        roff.heading("Description"),
        *_paragraphs(command.help or ""),
        roff.heading("Options"),
        *_options(command, context),
    ]
    if isinstance(command, click.Group):
        body.append(roff.heading("Jobs"))
        for job in command.list_commands(context):
            inner = command.get_command(context, job)
            assert inner is not None
            inside = click.Context(inner, parent=context, info_name=job)
            body += [roff.subheading(job), _usage(inside), *_paragraphs(inner.help or "")]
            body += _options(inner, inside)
    further = {"policy": "dedupd-policy(5)", "mount": "mount.dedupd(8)"}
    see = ["dedupd(1)", further.get(name, "dedupd.toml(5)")]
    return _page(f"dedupd-{name}", 1, summary[0].lower() + summary[1:].rstrip("."), body, see)


def _reader_page() -> str:
    """Return the page of dedupd-reader, the only program without click."""
    main_parser, commands = reader.parser(), reader.command_parsers()
    body = [
        roff.heading("Synopsis"),
        f"{roff.bold('dedupd-reader')} {roff.italic('COMMAND')} {roff.italic('VOLUME')}"
        f" [{roff.italic('ARGUMENT')} ...]",
        roff.heading("Description"),
        *_paragraphs(main_parser.description or ""),
        roff.heading("Commands"),
    ]
    for name, command in commands.items():
        usage = command.format_usage().removeprefix("usage: dedupd-reader ")
        words = roff.escaped(" ".join(usage.split()[1:]))
        body += [roff.subheading(name), f"{roff.bold(f'dedupd-reader {name}')} {words}"]
        body += [*_paragraphs(command.description or ""), *_arguments(command)]
    body += [roff.heading("Options"), *_arguments(main_parser)]
    body += [roff.heading("Exit status"), *_exit_statuses(main_parser.epilog or "")]
    summary = "read a volume of dedupd without dedupd"
    return _page("dedupd-reader", 1, summary, body, ["dedupd(1)", "dedupd-restore(1)"])


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in parser._actions:
        if action.help and not action.choices:
            words = [
                ", ".join(action.option_strings),
                action.metavar if action.nargs != 0 else None,
            ]
            tag = " ".join(str(word) for word in words if word)
            lines += roff.tagged(roff.bold(tag), roff.inline(action.help))
    return lines


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return " ".join([roff.bold(context.command_path), *(roff.escaped(piece) for piece in pieces)])


def _paragraphs(text: str) -> list[str]:
    """Format the docstring of a command, with its `code`."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", text.strip().replace("\b\n", "")):
        lines += [".PP", roff.inline(paragraph)]
    return lines


def _options(command: click.Command, context: click.Context) -> list[str]:
    lines = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:  # the synopsis has the others
            lines += roff.tagged(roff.bold(record[0]), roff.inline(record[1]))
    return lines


def _exit_statuses(text: str) -> list[str]:
    """Format ``Exit status: 0 done, 1 …`` as a list."""
    lines = []
    for number, meaning in re.findall(r"(\d) ([^,.]+)", " ".join(text.split())):
        lines += roff.tagged(roff.bold(number), roff.escaped(meaning))
    return lines


def _document_page(name: str, summary: str, text: str, see: list[str], section: int = 5) -> str:
    before, _, after = text.partition("\n## ")
    body = [roff.heading("Description"), *roff.markdown(before)]
    if after:
        body += roff.markdown("## " + after)
    return _page(name, section, summary, body, see)


def _section(text: str, name: str) -> str:
    """Return the text below a heading of a document."""
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for file_name, page_text in pages().items():
        (directory / file_name).write_text(page_text)
