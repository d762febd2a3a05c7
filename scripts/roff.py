"""Converts text, and the Markdown of docs/, into the language of man pages."""

import re

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

_MARKDOWN = MarkdownIt().enable("table")


def escaped(text: str) -> str:
    """Escape characters that have a meaning in roff."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("^", r"\(ha")
    text = text.replace("~", r"\(ti").replace("`", r"\(ga").replace('"', r"\(dq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def bold(text: str) -> str:
    return rf"\fB{escaped(text)}\fR"


def italic(text: str) -> str:
    return rf"\fI{escaped(text)}\fR"


def inline(text: str) -> str:
    """Convert a paragraph of Markdown into one line."""
    return _inline(SyntaxTreeNode(_MARKDOWN.parseInline(" ".join(text.split()))))


def _inline(node: SyntaxTreeNode) -> str:
    match node.type:
        case "text":
            return escaped(node.content)
        case "code_inline":
            return bold(node.content)
        case "softbreak":
            return " "
    inside = "".join(map(_inline, node.children))
    return {"strong": rf"\fB{inside}\fR", "em": rf"\fI{inside}\fR"}.get(node.type, inside)


def title(name: str, section: int, version: str) -> str:
    return f'.TH {escaped(name).upper()} {section} "" "dedupd {version}" dedupd'


def heading(text: str) -> str:
    return f'.SH "{escaped(text.upper())}"'


def subheading(text: str) -> str:
    return f'.SS "{text}"'


def tagged(tag: str, *paragraphs: str) -> list[str]:
    """Return a term and its meaning, which are roff already."""
    lines = [".TP", tag]
    for number, paragraph in enumerate(paragraphs):
        lines += [".IP"] * (number > 0) + [paragraph]
    return lines


def example(lines: list[str]) -> list[str]:
    return [".PP", ".RS 4", ".EX", *(escaped(line) for line in lines), ".EE", ".RE"]


def markdown(text: str) -> list[str]:
    """Convert Markdown into lines of roff; ``##`` starts a section, ``###`` a subsection."""
    lines: list[str] = []
    for block in SyntaxTreeNode(_MARKDOWN.parse(text)).children:
        match block.type:
            case "heading" if block.tag == "h2":
                lines.append(heading(block.children[0].content))
            case "heading" if block.tag > "h2":
                lines.append(subheading(_inline(block)))
            case "fence" | "code_block":
                lines += example(block.content.splitlines())
            case "table":
                lines += _table(block)
            case "bullet_list" | "ordered_list":
                for number, item in enumerate(block.children, start=1):
                    mark = r"\(bu" if block.type == "bullet_list" else f"{number}."
                    lines += [f".IP {mark} 4", _inline(item)]
            case "paragraph":
                lines += [".PP", _inline(block)]
    return lines


def _table(table: SyntaxTreeNode) -> list[str]:
    """Format each row as a term, with the columns between it and the last by their names."""
    names, *rows = [
        [_inline(cell) for cell in row.children] for part in table.children for row in part.children
    ]
    lines = []
    for tag, *middle, text in rows:
        between = [f"{name}: {cell}" for name, cell in zip(names[1:], middle, strict=False) if cell]
        extra = f" ({'; '.join(between)})" if between else ""
        lines += tagged(tag + extra, text or r"\&")
    return lines
