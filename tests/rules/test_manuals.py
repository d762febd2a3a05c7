"""Man pages and completion are made from the commands and docs/, and say all that these say."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dedupd.cli.main import COMMANDS, main
from dedupd.service.config import SERVICE_KEYS, VOLUME_KEYS
from dedupd_core.config.policy import KEYS
from dedupd_reader.reader import command_parsers, parser
from tests.support.lab import REPOSITORY

needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")


def made_by(script: str, directory: Path) -> Path:
    """Where one of the scripts has put what it makes."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(REPOSITORY / "scripts" / script), str(directory)]
    subprocess.run(command, check=True, env=environment)
    return directory


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_by("man_pages.py", tmp_path_factory.mktemp("man"))


def shown(page: Path) -> str:
    """A page as plain text, in one line."""
    done = subprocess.run(
        ["groff", "-k", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", page],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return " ".join(done.stdout.replace("‐", "-").replace("−", "-").split())


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and every job, each with its page's name."""
    context = click.Context(main, info_name="dedupd")
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield f"dedupd-{name}.1", command
        if isinstance(command, click.Group):
            inside = click.Context(command, parent=context, info_name=name)
            for job in command.list_commands(inside):
                inner = command.get_command(inside, job)
                assert inner is not None
                yield f"dedupd-{name}.1", inner


@needs_groff
def test_a_page_has_all_that_the_help_of_its_command_has(pages: Path) -> None:
    texts = {page.name: shown(page) for page in pages.glob("*.1")}
    for name, command in commands():
        for words in re.split(r"\n\s*\n", command.help or ""):
            assert " ".join(words.replace("`", "").split()) in texts[name], name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                record = parameter.get_help_record(click.Context(command))
                assert record is not None and record[1], (name, parameter.name, "has no help")
                for part in record:
                    assert " ".join(part.replace("`", "").split()) in texts[name], (name, part)


@needs_groff
def test_the_page_of_the_reader_has_all_of_its_help(pages: Path) -> None:
    text = shown(pages / "dedupd-reader.1")
    assert " ".join((parser().description or "").split()) in text
    for name, command in command_parsers().items():
        assert f"dedupd-reader {name}" in text and (command.description or "?") in text
        for action in command._actions:
            assert " ".join((action.help or "?").replace("`", "").split()) in text, (name, action)
    assert "dedupd-reader(1)" in shown(pages / "dedupd.1")


@needs_groff
def test_the_first_page_leads_to_all_others(pages: Path) -> None:
    text = shown(pages / "dedupd.1")
    for name, summary in COMMANDS.items():
        assert f"dedupd-{name}(1) {summary}" in text
    for page in pages.glob("*.5"):
        assert f"{page.stem}(5)" in text


@needs_groff
def test_the_pages_of_files_name_every_key(pages: Path) -> None:
    text = shown(pages / "dedupd.toml.5")
    for key in (*SERVICE_KEYS, *VOLUME_KEYS):
        assert f" {key} " in text
    text = shown(pages / "dedupd-policy.5")
    for key in KEYS:
        assert f" {key} Default: " in text


@needs_groff
def test_pages_read_like_the_documents(pages: Path) -> None:
    """No mark of Markdown is left, and no character went missing on the way."""
    text = shown(pages / "dedupd-policy.5")
    document = (REPOSITORY / "docs/guide/policy.md").read_text()
    assert "**" not in text and "](" not in text and "| " not in text
    for line in re.findall(r"```toml\n(.*?)```", document, re.DOTALL)[0].splitlines():
        assert " ".join(line.split()) in text


# --- completion -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def completions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_by("completions.py", tmp_path_factory.mktemp("share"))


def completed(completions: Path, directory: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    program = directory / "dedupd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dedupd.cli.main "$@"\n')
    program.chmod(0o755)
    script = completions / "bash-completion/completions/dedupd"
    line = f"source {script}; COMP_WORDS=(dedupd {' '.join(words)} ); COMP_CWORD={len(words)}"
    done = subprocess.run(
        ["bash", "-c", f"{line}; _dedupd_completion {program}; printf '%s\\n' ${{COMPREPLY[@]}}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    return done.stdout.split()


def test_bash_completes_commands_jobs_and_options(completions: Path, tmp_path: Path) -> None:
    assert completed(completions, tmp_path, "po") == ["policy"]
    assert completed(completions, tmp_path, "run", "sc") == ["scrub"]
    assert completed(completions, tmp_path, "enable", "--chunk") == ["--chunk-size"]
    assert completed(completions, tmp_path, "--he") == ["--help"]


def test_commands_complete_without_importing_them() -> None:
    """It has to be as fast as somebody's fingers."""
    check = (
        "import sys, click; from dedupd.cli.main import main;"
        "main.shell_complete(click.Context(main), 'e');"
        "sys.exit('dedupd.cli.enable' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", "bash-completion/completions/dedupd"),
        ("zsh", "zsh/vendor-completions/_dedupd"),
        ("fish", "fish/vendor_completions.d/dedupd.fish"),
    ],
)
def test_each_shell_understands_its_completion(completions: Path, shell: str, place: str) -> None:
    assert f"{shell}_complete" in (completions / place).read_text()
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", str(completions / place)], check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ext",), ["extract"]),
        (("extract", "--pri"), ["--privileges"]),
        (("check", "--rec"), ["--records"]),
        (("list", "packaging/systemd/dedupd-m"), ["packaging/systemd/dedupd-mount@.service"]),
    ],
)
def test_bash_completes_the_reader(
    completions: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    script = completions / "bash-completion/completions/dedupd-reader"
    line = f"source {script}; COMP_WORDS=(dedupd-reader {' '.join(words)}); COMP_CWORD={len(words)}"
    line += f"; _dedupd_reader dedupd-reader {words[-1]}; printf '%s\\n' ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", "bash-completion/completions/dedupd-reader"),
        ("zsh", "zsh/vendor-completions/_dedupd-reader"),
        ("fish", "fish/vendor_completions.d/dedupd-reader.fish"),
    ],
)
def test_each_shell_understands_the_completion_of_the_reader(
    completions: Path, shell: str, place: str
) -> None:
    text = (completions / place).read_text()
    assert all(name in text for name in command_parsers())
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", str(completions / place)], check=True)
