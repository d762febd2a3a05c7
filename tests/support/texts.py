"""Texts that people read, each with its place: help, messages, documents, docstrings."""

import ast
import inspect
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from tokenize import COMMENT

import click

from dedupd.cli.main import COMMANDS, main
from tests.support.sources import ROOT

Texts = Iterator[tuple[str, str]]
"""Pairs of a place and the text in this place."""

WORDS_MIN = 3
"""A shorter literal is a key or a label."""


def help_texts() -> Texts:
    """The help of all commands and options."""
    yield from ((f"dedupd {name}", text) for name, text in COMMANDS.items())
    yield from _help_of(main, click.Context(main, info_name="dedupd"))


def _help_of(command: click.Command, context: click.Context) -> Texts:
    yield context.command_path, command.help or ""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield f"{context.command_path} {parameter.opts[0]}", parameter.help or ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _help_of(inner, click.Context(inner, parent=context, info_name=name))


def literals(path: Path) -> Texts:
    """The literals of a module, without docstrings. X stands for a value."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    other = {id(node) for node in _docstring_nodes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            other.update(id(part) for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in other:
            text = text_of(node)
            if _is_sentence(text):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def docstrings(path: Path) -> Texts:
    """The docstrings of a module, its classes, functions and constants, without indented code."""
    for node in _docstring_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        assert isinstance(node.value, str)
        text = _INDENTED.sub("\n", f"\n{inspect.cleandoc(node.value)}\n")
        yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def python_comments(path: Path) -> Texts:
    """The comments of a module, without those for tools. Adjacent lines are one text."""
    block: list[str] = []
    first = last = (0, 0)
    with path.open("rb") as file:
        found = [token for token in tokenize.tokenize(file.readline) if token.type == COMMENT]
    for token in found:
        if block and token.start != (last[0] + 1, last[1]):
            yield f"{path.relative_to(ROOT)}:{first[0]}", "\n".join(block)
            block = []
        if not re.match(r"#(!| noqa| type:| fmt:| ---)", token.string):
            first = token.start if not block else first
            block.append(token.string.removeprefix("#").removeprefix(" "))
            last = token.start
    if block:
        yield f"{path.relative_to(ROOT)}:{first[0]}", "\n".join(block)


def _docstring_nodes(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def text_of(node: ast.AST, filled_in: str = "X") -> str:
    """A literal, with ``filled_in`` for each value; empty for any other node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, filled_in) or filled_in for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_sentence(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= WORDS_MIN and " " in text


_RUST = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def rust_literals(path: Path) -> Texts:
    """The literals of a Rust module, without those of its tests. X stands for a value."""
    source = path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0]
    source = re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)
    for literal in _RUST.finditer(source.replace("'\"'", "' '")):
        text = re.sub(r"\\\n\s*", "", literal[1])
        if _is_sentence(text) and "\n" not in text:
            yield str(path.relative_to(ROOT)), re.sub(r"\{[^}]*\}", "X", text)


_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')


def page_literals(path: Path) -> Texts:
    """The literals of a script or a page. X stands for a value."""
    source = re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for literal in _QUOTED.finditer(source):
        text = re.sub(r"\$\{[^}]*\}", "X", literal[1] or literal[2] or "").replace("\\`", "`")
        if _is_sentence(text):
            yield str(path.relative_to(ROOT)), text


def template_texts(path: Path) -> Texts:
    """The text of an HTML template. X stands for a value."""
    source = re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    source = re.sub(r"\{\{.*?\}\}", "X", source)
    for text in re.split(r"\{%.*?%\}|</?(?:p|h\d|div|th|td|li|summary|span)\b[^>]*>", source):
        yield str(path.relative_to(ROOT)), re.sub(r"<[^>]*>", "", text)


def comments(path: Path) -> Texts:
    """The comments of a configuration file or a unit, without its settings."""
    block: list[str] = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("# ") and not re.match(r"# \w+ = ", line):
            block.append(line[2:])
        elif block:
            yield str(path.relative_to(ROOT)), "\n".join(block)
            block = []


def lines_with(path: Path, pattern: str) -> Texts:
    """The first group of ``pattern`` in each line that it matches."""
    for found in re.finditer(pattern, path.read_text(encoding="utf-8"), re.MULTILINE):
        yield str(path.relative_to(ROOT)), found[1]


_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n)\n(?:(?: {4}|\t).*\n)+")
_LINK = re.compile(r"\[([^]]*)\](?:\([^)]*\)|\[[^]]*\])?")


def prose(path: Path) -> Texts:
    """The paragraphs and cells of a Markdown document, without code, headings and links."""
    for part in _parts_of(path.read_text(encoding="utf-8")):
        yield str(path.relative_to(ROOT)), part


def _parts_of(markdown: str) -> Iterator[str]:
    text = _INDENTED.sub("\n", "\n" + _FENCED.sub("", markdown))
    text = re.sub(r"^(#.*|\[.*\]: .*)$", "", text, flags=re.MULTILINE)
    text = _LINK.sub(r"\1", text).replace("**", "")
    cells = [cell for row in re.findall(r"^\|.*\|$", text, re.MULTILINE) for cell in row.split("|")]
    yield from (re.sub(r"^\|.*\|$", "", text, flags=re.MULTILINE), *cells)


_RUST_COMMENT = re.compile(r"\s*(//[/!]?)(?: (.*))?$")


def rust_comments(path: Path) -> Texts:
    """The comments of a Rust module, those in its documentation included, without code."""
    block: list[str] = []
    marks = start = None
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        found = _RUST_COMMENT.match(line)
        if block and (found is None or found[1] != marks):
            yield from (
                (f"{path.relative_to(ROOT)}:{start}", p) for p in _parts_of("\n".join(block))
            )
            block = []
        if found is not None:
            marks, start = found[1], start if block else number
            block.append(found[2] or "")
