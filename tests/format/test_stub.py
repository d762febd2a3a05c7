"""The stub attribute: small enough for the inode, and no flipped bit goes unseen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import DamagedStub
from dedupd_core.format.stub import (
    Flag,
    StubAttribute,
    binding,
    binding_in,
    decode_stub,
    encode_stub,
)
from tests.support.formats import U64, UUID, flipped

flags = st.sampled_from([Flag(value) for value in range(16)])
stubs = st.builds(
    StubAttribute,
    recipe=U64,
    digest=st.binary(min_size=16, max_size=16),
    covered=U64,
    mtime_ns=st.integers(-(2**63), 2**63 - 1),
    flags=flags,
    local_bytes=U64,
)


@given(stubs, UUID, U64)
def test_an_attribute_comes_back_as_it_was(stub: StubAttribute, volume: bytes, bound: int) -> None:
    value = encode_stub(stub, volume, bound)
    assert (decode_stub(value, volume, "here"), binding_in(value)) == (stub, bound)


@given(stubs, UUID)
def test_every_flipped_bit_of_an_attribute_is_noticed(stub: StubAttribute, volume: bytes) -> None:
    value = encode_stub(stub, volume, 7)
    for bit in range(len(value) * 8):
        with pytest.raises(DamagedStub, match="here"):
            decode_stub(flipped(value, bit), volume, "here")


@given(stubs, UUID, st.data())
def test_an_attribute_cut_short_or_drawn_out_is_noticed(
    stub: StubAttribute, volume: bytes, data: st.DataObject
) -> None:
    value = encode_stub(stub, volume, 7)
    length = data.draw(st.integers(0, len(value) - 1))
    for wrong in (value[:length], value + bytes(16), b""):
        with pytest.raises(DamagedStub):
            decode_stub(wrong, volume, "here")


@given(stubs, UUID, UUID)
def test_an_attribute_of_another_volume_is_refused(
    stub: StubAttribute, volume: bytes, other: bytes
) -> None:
    if volume != other:
        with pytest.raises(DamagedStub, match="another volume"):
            decode_stub(encode_stub(stub, volume, 7), other, "here")


@given(stubs, UUID)
def test_a_stub_fits_into_the_inode(stub: StubAttribute, volume: bytes) -> None:
    assert len(encode_stub(stub, volume, 7)) <= 64


@given(U64, U64, st.integers(0, 2**32 - 1), U64, U64, st.integers(0, 2**32 - 1))
def test_each_file_of_each_instance_has_a_binding_of_its_own(
    seed: int, inode: int, generation: int, seed2: int, inode2: int, generation2: int
) -> None:
    one, other = (seed, inode, generation), (seed2, inode2, generation2)
    assert (binding(*one) == binding(*other)) == (one == other)


@given(stubs, UUID, st.integers(5, 7))
def test_flags_of_a_later_version_are_refused(stub: StubAttribute, volume: bytes, bit: int) -> None:
    later = replace(stub, flags=Flag(stub.flags | 1 << bit))
    with pytest.raises(DamagedStub, match="does not support"):
        decode_stub(encode_stub(later, volume, 7), volume, "here")
