"""Copies of volumes that count as the volume: as a disk has it again after a power cut."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from dedupd_core.errors import Damaged, DamagedStub
from dedupd_core.format.instance import Instance
from dedupd_core.format.stub import decode_stub, encode_stub
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.stores.membership import MemberList, Membership
from dedupd_core.stub.instance import instance_of
from dedupd_core.stub.transition import AttributeSpace
from dedupd_core.system.files import opened


def belong_here(root: Path, *stores: bytes) -> None:
    """Make the volume at ``root`` the one that was enabled there, as if its inodes had been kept.

    A test that builds a volume out of what another one had on its disk does this. Products never
    do: it believes every hole. Its stubs are of its own store, or of one of these.
    """
    base = root / ".dedupd"
    record, parameters = base / "instance.json", _parameters(base)
    if parameters is None or not record.exists() or not (base / "data").exists():
        return
    try:
        Instance.from_json(record.read_bytes(), "")
    except Damaged:
        return  # let the program say so
    with opened(os.open(base / "data", os.O_RDONLY)) as fd:
        here = instance_of(fd)
    record.write_bytes(here.to_json())
    rebind_below(root, ("data",), *stores)


def rebind_below(root: Path, places: Sequence[str], *stores: bytes) -> None:
    """Bind the stubs in places of ``.dedupd`` to the inodes that they have."""
    base = root / ".dedupd"
    parameters = parameters_of(base)
    with opened(os.open(base / "data", os.O_RDONLY)) as fd:
        here = instance_of(fd)
    name, volume_id = parameters.attribute.encode(), parameters.uuid_bytes
    for place in places:
        for directory, _, names in os.walk(base / place):
            for file in names:
                path = Path(directory, file)
                if path.is_file() and not path.is_symlink():
                    for store_id in (volume_id, *stores):
                        _rebind(path, AttributeSpace(name, store_id, here.seed(volume_id)))


def belong_to_store_here(root: Path, store: Path) -> None:
    """As :func:`belong_here`, of a volume on a shared store, which knows it here."""
    base = root / ".dedupd"
    file = base / "membership.json"
    if file.exists():
        membership = Membership.from_json(file.read_bytes(), "")
        file.write_bytes(replace(membership, name=str(store)).to_json())
    file = store / "store.json"
    known_as = [Parameters.from_json(file.read_bytes(), "").uuid_bytes] if file.exists() else []
    belong_here(root, *known_as)
    members = store / "members.json"
    parameters = _parameters(base)
    if parameters is None or not members.exists() or not (base / "data").exists():
        return
    with opened(os.open(base / "data", os.O_RDONLY)) as fd:
        here = instance_of(fd)
    known = MemberList.from_json(members.read_bytes(), "").members
    changed = [
        replace(one, root=str(root), **asdict(here)) if one.uuid == parameters.uuid else one
        for one in known
    ]
    members.write_bytes(MemberList(changed).to_json())


def _parameters(base: Path) -> Parameters | None:
    for name in ("volume.json", "enabling", "disabling"):
        if (base / name).exists():
            return Parameters.from_json((base / name).read_bytes(), name)
    return None


def parameters_of(base: Path) -> Parameters:
    """Those of a volume that is enabled, or almost."""
    found = _parameters(base)
    assert found is not None
    return found


def _rebind(path: Path, space: AttributeSpace) -> None:
    name = space.name.decode()
    if name not in os.listxattr(path):
        return
    try:
        stub = decode_stub(os.getxattr(path, name), space.volume_id, "")
    except DamagedStub:
        return
    with opened(os.open(path, os.O_PATH)) as fd:
        os.setxattr(path, name, encode_stub(stub, space.volume_id, space.binding_of(fd)))
