"""MkDocs hooks for the site of docs/: anchors, links and the list of decisions."""

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\[([^]]*)\]\((?:\.\./)+(?:benchmarks|README|SECURITY|CONTRIBUTING)[^)]*\)")


def on_config(config: Any) -> Any:
    """Give headings the same anchors as in a repository, and list all decisions."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    pages = sorted(Path(config.docs_dir, "decisions").glob("[0-9]*.md"))
    for entry in config.nav:
        entry.get("Decisions", []).extend(f"decisions/{page.name}" for page in pages)
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files outside of docs/ into text: the site does not have them."""
    return _OUTSIDE.sub(r"\1", markdown)


def slug(heading: str, separator: str) -> str:
    """Return the anchor of a heading, as a repository shows it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
