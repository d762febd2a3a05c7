"""The site of docs/ has every page, and asks for nothing outside of itself."""

import re
from pathlib import Path

import pytest

from scripts.check_site import problems
from tests.support.sources import ROOT

POLICY = (
    '<meta http-equiv="Content-Security-Policy"'
    " content=\"default-src 'self' file: 'unsafe-inline' data: blob:\">"
)
DECISIONS = "decisions/"
"""The hook of the site lists these (scripts/site/hooks.py)."""


def test_the_site_lists_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", text, re.M)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    named = {page for page in pages if not re.match(rf"{DECISIONS}\d", page)}
    assert sorted(listed) == sorted(named)


def test_the_theme_keeps_browsers_from_loading_anything_else() -> None:
    assert POLICY in (ROOT / "scripts/site/main.html").read_text(encoding="utf-8")


def a_site(directory: Path, body: str, styles: str = "") -> Path:
    (directory / "index.html").write_text(f"<html><head>{POLICY}</head>{body}</html>")
    (directory / "main.css").write_text(styles)
    return directory


def test_links_to_follow_and_files_of_the_site_are_no_problem(tmp_path: Path) -> None:
    body = '<a href="https://example.org">there</a><img src="a.png"><script src="../a.js"></script>'
    styles = "a { background: url(b.png) } b { background: url('data:image/png;base64,AA') }"
    assert list(problems(a_site(tmp_path, body, styles))) == []


@pytest.mark.parametrize(
    "body",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<link rel="preconnect" href="https://example.org" crossorigin>',
        '<img src="http://example.org/a.png">',
        '<p style="background: url(https://example.org/a.png)">',
        '<form action="https://example.org/search">',
    ],
)
def test_whatever_a_browser_loads_from_elsewhere_is_found(tmp_path: Path, body: str) -> None:
    (found,) = problems(a_site(tmp_path, body))
    assert "example.org" in found


def test_style_sheets_are_searched_too(tmp_path: Path) -> None:
    styles = '@import "https://example.org/fonts.css"; a { src: url(//example.org/b.woff2) }'
    assert len([*problems(a_site(tmp_path, "", styles))]) == 2


def test_a_page_without_the_policy_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<html></html>")
    assert len([*problems(tmp_path)]) == 1
