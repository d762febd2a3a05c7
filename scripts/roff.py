"""Text, and the Markdown of docs/, in the language of man pages.

Of Markdown only what docs/ uses: headings, paragraphs, lists, tables, code, emphasis, links.
"""

import re
from collections.abc import Iterator

_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\*(?P<italic>[^*\s][^*]*)\*"
    r"|\[(?P<text>[^]]+)\](?:\((?P<target>[^)]+)\)|\[[^]]*\])"
)


def escaped(text: str) -> str:
    """Characters that mean something to roff, as themselves."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("^", r"\(ha")
    text = text.replace("~", r"\(ti").replace("`", r"\(ga").replace('"', r"\(dq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def bold(text: str) -> str:
    return rf"\fB{escaped(text)}\fR"


def italic(text: str) -> str:
    return rf"\fI{escaped(text)}\fR"


def inline(text: str) -> str:
    """A paragraph of Markdown, in one line."""
    parts = []
    end = 0
    for match in _INLINE.finditer(text):
        parts.append(escaped(text[end : match.start()]))
        end = match.end()
        if match["code"]:
            parts.append(bold(match["code"]))
        elif match["bold"]:
            parts.append(rf"\fB{inline(match['bold'])}\fR")
        elif match["italic"]:
            parts.append(italic(match["italic"]))
        else:
            parts.append(inline(match["text"]))
    parts.append(escaped(text[end:]))
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def title(name: str, section: int, version: str) -> str:
    return f'.TH {escaped(name).upper()} {section} "" "dedupd {version}" dedupd'


def heading(text: str) -> str:
    return f'.SH "{escaped(text).upper()}"'


def subheading(text: str) -> str:
    return f'.SS "{inline(text)}"'


def tagged(tag: str, *paragraphs: str) -> list[str]:
    """A term and what it means; all of it is roff already."""
    lines = [".TP", tag]
    for number, paragraph in enumerate(paragraphs):
        lines += [".IP"] * (number > 0) + [paragraph]
    return lines


def example(lines: list[str]) -> list[str]:
    return [".PP", ".RS 4", ".EX", *(escaped(line) for line in lines), ".EE", ".RE"]


def markdown(text: str) -> list[str]:
    """Markdown in lines of roff; ``##`` begins a section, ``###`` a part of one."""
    lines: list[str] = []
    for block in _blocks(text):
        first = block[0]
        if first.startswith("#"):
            level, _, words = first.partition(" ")
            if level == "##":
                lines.append(heading(words))
            elif len(level) > 2:
                lines.append(subheading(words))
        elif first.startswith("```"):
            lines += example(block[1:-1])
        elif first.startswith("    "):
            lines += example([line[4:] for line in block])
        elif first.startswith("|"):
            lines += _table(block)
        elif _ITEM.match(first):
            lines += _list(block)
        else:
            lines += [".PP", inline(" ".join(block))]
    return lines


_ITEM = re.compile(r"(?P<mark>[*-]|\d+\.) +(?P<text>.*)")


def _blocks(text: str) -> Iterator[list[str]]:
    """Lines that belong together. Code may have empty lines."""
    block: list[str] = []
    in_code = False
    for line in text.splitlines():
        if line.startswith("```"):
            if not in_code and block:
                yield block
                block = []
            in_code = not in_code
            block.append(line)
            if not in_code:
                yield block
                block = []
        elif in_code or (line.strip() and not line.startswith("#")):
            block.append(line)
        else:
            if block:
                yield block
            block = []
            if line.startswith("#"):
                yield [line]
    if block:
        yield block


def _list(block: list[str]) -> list[str]:
    items: list[tuple[str, list[str]]] = []
    for line in block:
        match = _ITEM.match(line)
        if match:
            items.append((match["mark"], [match["text"]]))
        else:
            items[-1][1].append(line.strip())
    lines = []
    for mark, words in items:
        bullet = r"\(bu" if mark in "*-" else mark
        lines += [f".IP {bullet} 4", inline(" ".join(words))]
    return lines


def _table(block: list[str]) -> list[str]:
    """Each row as a term, with the columns between it and the last by their names."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in block
    ]
    names, lines = rows[0], []
    for row in rows[2:]:
        tag, *middle, text = row
        between = [f"{name}: {cell}" for name, cell in zip(names[1:], middle, strict=False) if cell]
        extra = f" ({inline('; '.join(between))})" if between else ""
        lines += tagged(inline(tag) + extra, inline(text) or r"\&")
    return lines
