"""Check that a site loads nothing from outside.

    python scripts/check_site.py DIRECTORY

reads every page and style sheet. Links that a reader follows may lead anywhere; files that a
browser loads automatically must be in DIRECTORY. The exit status is 1 if something else is loaded.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_OUTSIDE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.I)
_IN_STYLES = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", re.I)
_LINKS_LOADED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch"}
_POLICY = "default-src 'self' file: 'unsafe-inline' data: blob:"


class Page(HTMLParser):
    """The addresses that a browser loads for a page, and its policy."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link":
            if _LINKS_LOADED & {*values.get("rel", "").lower().split()}:
                self.loaded.append(values.get("href", ""))
        elif tag == "form":
            self.loaded.append(values.get("action", ""))
        else:
            self.loaded += [values[name] for name in ("src", "srcset", "data") if name in values]
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values.get("content", "")
        self.loaded += addresses_in(values.get("style", ""))


def addresses_in(styles: str) -> list[str]:
    """Return the addresses that a style sheet loads."""
    return [first or second for first, second in _IN_STYLES.findall(styles)]


def problems(site: Path) -> Iterator[str]:
    """Yield each outside address that a file loads, and each page without the policy."""
    pages = sorted(site.rglob("*.html"))
    if not pages:
        yield f"{site}: no pages; build the site first"
    for path in pages:
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        yield from (f"{path}: loads {one}" for one in page.loaded if _OUTSIDE.match(one))
        if page.policy != _POLICY:
            yield f"{path}: lets a browser load files from elsewhere"
    for path in sorted(site.rglob("*.css")):
        loaded = addresses_in(path.read_text(encoding="utf-8"))
        yield from (f"{path}: loads {one}" for one in loaded if _OUTSIDE.match(one))


def main() -> int:
    found = [*problems(Path(sys.argv[1]))]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
