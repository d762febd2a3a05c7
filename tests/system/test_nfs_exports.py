"""What doctor reads of the kernel's NFS server, and what it makes of it."""

import pytest

from dedupd_core.system.nfs_exports import (
    Export,
    exports,
    faults,
    in_the_way,
    line_for,
    parse_exports,
)

UUID = "8c1f7a9e-0d5b-4c55-9f0a-1b2c3d4e5f60"
DEFAULTS = "ro,wdelay,hide,nocrossmnt,secure,root_squash,no_all_squash,no_subtree_check"

ETAB = f"""\
# made by exportfs
/srv/share\t192.168.0.0/24({DEFAULTS},fsid={UUID},sec=sys)
/srv/with\\040blank\t\\134({DEFAULTS}) *({DEFAULTS})
"""


def test_a_table_of_exportfs_is_read() -> None:
    first, second, third = parse_exports(ETAB)
    assert (first.path, first.client, first.has_fsid) == ("/srv/share", "192.168.0.0/24", True)
    assert (second.path, second.client, second.has_fsid) == ("/srv/with blank", "\\134", False)
    assert third.client == "*" and "no_subtree_check" in third.options


def exported(path: str, *options: str) -> Export:
    return Export(path, "*", frozenset(options))


@pytest.mark.parametrize(
    ("export", "is_bad"),
    [
        (exported("/srv/share", f"fsid={UUID}", "no_subtree_check"), None),
        (exported("/srv/other"), None),
        (exported("/srv/share2"), None),
        (exported("/srv/share", "no_subtree_check"), True),
        (exported("/srv/share/part"), True),
        (exported("/srv/share/.dedupd/data", "fsid=3"), True),
        (exported("/srv/share", "fsid=3", "subtree_check"), False),
        (exported("/srv", "fsid=0"), False),
        (exported("/", "crossmnt"), False),
    ],
)
def test_what_fails_users_is_said_with_the_line_to_write(
    export: Export, is_bad: bool | None
) -> None:
    told = faults("/srv/share", "/srv/share/.dedupd", UUID, [export])
    assert [one.is_bad for one in told] == ([] if is_bad is None else [is_bad])
    for one in told:
        assert export.path in one.found and f"fsid={UUID}" in one.remedy


def test_a_volume_that_is_exported_by_itself_may_be_in_another_export() -> None:
    own = exported("/srv/share", "fsid=1")
    assert faults("/srv/share", "/srv/share/.dedupd", UUID, [exported("/srv"), own]) == []


def test_exports_around_and_in_a_directory_are_in_the_way_of_making_it_a_volume() -> None:
    found = [exported(path) for path in ("/srv", "/srv/share/a", "/srv/share", "/srv/s", "/home")]
    assert in_the_way("/srv/share", found) == ["/srv", "/srv/share", "/srv/share/a"]


def test_the_line_is_read_back_as_it_was_meant() -> None:
    (found,) = parse_exports(line_for("/srv/a b\\c", UUID))
    assert (found.path, found.client, found.has_fsid) == ("/srv/a b\\c", "*", True)


def test_where_no_server_is_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupd_core.system.nfs_exports.TABLES", ("/nowhere/etab",))
    assert exports() == []
