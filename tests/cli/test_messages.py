"""Errors of the system as messages: a call by descriptor names no file."""

import errno
import os

import pytest

from dedupd.cli.common import message_of
from dedupd_core.system.paths import explain


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, "Input/output error"),
        (0, "Input/output error"),
        (17, "Input/output error"),
        ("a/b", "a/b: Input/output error"),
        (b"a/\xff", "a/\udcff: Input/output error"),
    ],
)
def test_an_error_names_its_file_if_it_has_one(name: object, text: str) -> None:
    assert explain(OSError(errno.EIO, os.strerror(errno.EIO), name)) == text
    assert message_of(OSError(errno.EIO, os.strerror(errno.EIO), name)) == text


@pytest.mark.parametrize(("name", "where"), [(3, "the volume"), ("/srv/x", "/srv/x")])
def test_a_refusal_names_what_was_refused(name: object, where: str) -> None:
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    assert message_of(error).startswith(f"{where}: permission denied; ")


def test_an_error_without_a_reason_is_shown_as_it_is() -> None:
    assert explain(OSError("no volume")) == "no volume"
    assert explain(ValueError()) == "ValueError"
