"""The page of the service: one HTML file that loads data only from the service."""

import base64
import hashlib
import re
from pathlib import Path

_HERE = Path(__file__).parent

PAGE = (
    (_HERE / "page.html")
    .read_text(encoding="utf-8")
    .replace("/* drawing.js */", (_HERE / "drawing.js").read_text(encoding="utf-8"))
)


def _hash_of(tag: str) -> str:
    """Hash the script or style of the page, for the policy that allows only this content."""
    match = re.search(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    assert match is not None
    digest = hashlib.sha256(match[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash_of('script')}",
        f"style-src {_hash_of('style')}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""A second protection: the page already treats names of files and messages as text."""
