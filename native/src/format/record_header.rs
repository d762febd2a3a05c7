//! The header of each record of a container (docs/design/format.md, "Record header").

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::bytes::layout;
use super::codec::Codec;
use super::ids::{Checksum, Fingerprint, RecordId};
use super::table_entry::{State, TableEntry};

layout! {
    pub mod fields: 80 bytes {
        MAGIC: 4 at 0,
        ORDINAL: 4 at 4,
        KIND: 1 at 8,
        CODEC: 1 at 9,
        COLLECTED: 2 at 10,
        RAW_LENGTH: 4 at 12,
        STORED_LENGTH: 4 at 16,
        HINT: 4 at 20,
        FINGERPRINT: 32 at 24,
        TARGET: 8 at 56,
        CHECKSUM: 8 at 64,
        HEADER_CHECKSUM: 8 at 72,
    }
}

pub const RECORD_HEADER_BYTES: usize = fields::BYTES;
/// The offset of each record is a multiple of this.
pub const RECORD_ALIGN_BYTES: usize = 8;
pub const MAGIC: [u8; 4] = *b"DDRC";

/// Largest size of a container.
pub const CONTAINER_BYTES_MAX: u32 = 1 << 30;

/// The kind of a record. A header may hold an unknown value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKind(pub u8);

impl RecordKind {
    pub const DATA: RecordKind = RecordKind(0);
    pub const FORWARD: RecordKind = RecordKind(1);
    pub const TOMBSTONE: RecordKind = RecordKind(2);
    pub const COPY: RecordKind = RecordKind(3);

    /// Returns whether such a record has its own payload.
    #[inline]
    pub fn has_bytes(self) -> bool {
        !matches!(self, RecordKind::FORWARD | RecordKind::TOMBSTONE)
    }
}

/// The fields of a header.
#[derive(Clone, Copy, Debug)]
pub struct RecordHeader {
    pub ordinal: u32,
    pub kind: RecordKind,
    pub codec: Codec,
    pub raw_length: u32,
    pub stored_length: u32,
    pub hint: u32,
    pub fingerprint: Fingerprint,
    /// An id. In a tombstone: the number of its ordinals, where 0 means one. In a record that
    /// depends on another: the id of that record.
    pub target: u64,
    pub checksum: Checksum,
    /// Number of collected records directly before it; only this number is left of them.
    pub collected: u16,
}

impl RecordHeader {
    /// Decodes a header. None if the magic or the checksum is wrong: the bytes are no header, or
    /// belong to a container with another seed.
    #[inline]
    pub fn sound(bytes: &[u8; RECORD_HEADER_BYTES], seed: u64) -> Option<RecordHeader> {
        let is_sound = *fields::MAGIC.of(bytes) == MAGIC
            && u32::from(fields::COLLECTED.u16(bytes)) <= fields::ORDINAL.u32(bytes)
            && fields::HEADER_CHECKSUM.u64(bytes) == header_checksum(bytes, seed);
        is_sound.then(|| RecordHeader {
            ordinal: fields::ORDINAL.u32(bytes),
            kind: RecordKind(fields::KIND.u8(bytes)),
            codec: Codec::from(fields::CODEC.u8(bytes)),
            raw_length: fields::RAW_LENGTH.u32(bytes),
            stored_length: fields::STORED_LENGTH.u32(bytes),
            hint: fields::HINT.u32(bytes),
            fingerprint: *fields::FINGERPRINT.of(bytes),
            target: fields::TARGET.u64(bytes),
            checksum: Checksum(fields::CHECKSUM.u64(bytes)),
            collected: fields::COLLECTED.u16(bytes),
        })
    }

    pub fn write(&self, out: &mut [u8; RECORD_HEADER_BYTES], seed: u64) {
        fields::MAGIC.put(out, &MAGIC);
        fields::ORDINAL.put(out, &self.ordinal.to_le_bytes());
        fields::KIND.put(out, &[self.kind.0]);
        fields::CODEC.put(out, &[self.codec.number()]);
        fields::COLLECTED.put(out, &self.collected.to_le_bytes());
        fields::RAW_LENGTH.put(out, &self.raw_length.to_le_bytes());
        fields::STORED_LENGTH.put(out, &self.stored_length.to_le_bytes());
        fields::HINT.put(out, &self.hint.to_le_bytes());
        fields::FINGERPRINT.put(out, &self.fingerprint);
        fields::TARGET.put(out, &self.target.to_le_bytes());
        fields::CHECKSUM.put(out, &self.checksum.0.to_le_bytes());
        let check = header_checksum(out, seed);
        fields::HEADER_CHECKSUM.put(out, &check.to_le_bytes());
    }

    /// The header of the record with this entry; None if it is damaged, or that of another record.
    pub fn of_entry(
        bytes: &[u8; RECORD_HEADER_BYTES],
        seed: u64,
        entry: &TableEntry,
        ordinal: u32,
    ) -> Option<RecordHeader> {
        RecordHeader::sound(bytes, seed).filter(|header| header.agrees_with(entry, ordinal))
    }

    /// Returns whether `entry`, that of `ordinal` in the table, describes this record of any kind.
    #[inline]
    pub fn agrees_with(&self, entry: &TableEntry, ordinal: u32) -> bool {
        self.ordinal == ordinal
            && self.codec == entry.codec
            && self.raw_length == entry.raw_length
            && self.stored_length == entry.stored_length
            && self.fingerprint == entry.fingerprint
    }

    /// The id of the record that this one depends on. A copy depends on none, despite its target.
    pub fn leans_on(&self) -> Option<u64> {
        let leans = self.codec.leans() && self.kind == RecordKind::DATA;
        leans.then_some(self.target)
    }

    /// The implied tombstone for the records that were collected before it.
    pub fn before(&self) -> Option<RecordHeader> {
        (self.collected > 0).then(|| RecordHeader {
            ordinal: self.ordinal - u32::from(self.collected),
            kind: RecordKind::TOMBSTONE,
            codec: Codec::Raw,
            raw_length: 0,
            stored_length: 0,
            hint: 0,
            fingerprint: [0; 32],
            target: self.collected.into(),
            checksum: Checksum(xxh3_64(&[])),
            collected: 0,
        })
    }

    /// The ordinal of the next record. A tombstone stands for several ordinals.
    pub fn next_ordinal(&self) -> u32 {
        let run = if self.kind == RecordKind::TOMBSTONE { self.target.max(1) } else { 1 };
        self.ordinal.saturating_add(u32::try_from(run).unwrap_or(u32::MAX))
    }

    /// The entry of a redirection table for this record at `offset`, in the state after it was
    /// appended.
    pub fn table_entry(&self, offset: u64) -> TableEntry {
        let state = match self.kind {
            RecordKind::FORWARD => State::MERGED,
            RecordKind::TOMBSTONE => State::TOMBSTONE,
            _ => State::LIVE,
        };
        // The target of a tombstone is a count, not an id.
        let target = if self.kind == RecordKind::TOMBSTONE { 0 } else { self.target };
        TableEntry {
            fingerprint: self.fingerprint,
            offset,
            target: RecordId(target),
            stored_length: self.stored_length,
            raw_length: self.raw_length,
            hint: self.hint,
            state,
            codec: self.codec,
        }
    }
}

fn header_checksum(bytes: &[u8; RECORD_HEADER_BYTES], seed: u64) -> u64 {
    xxh3_64_with_seed(&bytes[..fields::HEADER_CHECKSUM.start], seed)
}

/// Bytes of a complete record: header, payload and padding.
#[inline]
pub fn record_bytes(stored_length: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + stored_length).next_multiple_of(RECORD_ALIGN_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: RecordKind, codec: Codec) -> RecordHeader {
        RecordHeader {
            ordinal: 40,
            kind,
            codec,
            raw_length: 9,
            stored_length: 5,
            hint: 3,
            fingerprint: [7; 32],
            target: 6,
            checksum: Checksum(8),
            collected: 0,
        }
    }

    #[test]
    fn only_data_and_copies_have_bytes() {
        let kinds = (0..=u8::MAX).map(RecordKind);
        let without: Vec<_> = kinds.filter(|kind| !kind.has_bytes()).collect();
        assert_eq!(without, [RecordKind::FORWARD, RecordKind::TOMBSTONE]);
    }

    #[test]
    fn only_data_of_some_codecs_leans() {
        assert_eq!(header(RecordKind::DATA, Codec::Delta).leans_on(), Some(6));
        assert_eq!(header(RecordKind::COPY, Codec::Delta).leans_on(), None);
        assert_eq!(header(RecordKind::DATA, Codec::Zstd).leans_on(), None);
    }

    #[test]
    fn a_tombstone_stands_for_as_many_ordinals_as_its_target() {
        let tombstone = header(RecordKind::TOMBSTONE, Codec::Raw);
        assert_eq!(tombstone.next_ordinal(), 46);
        assert_eq!(RecordHeader { target: 0, ..tombstone }.next_ordinal(), 41);
        assert_eq!(RecordHeader { target: u64::MAX, ..tombstone }.next_ordinal(), u32::MAX);
        assert_eq!(header(RecordKind::DATA, Codec::Raw).next_ordinal(), 41);
    }

    #[test]
    fn records_that_were_collected_imply_a_tombstone() {
        assert!(header(RecordKind::DATA, Codec::Raw).before().is_none());
        let found = RecordHeader { collected: 4, ..header(RecordKind::DATA, Codec::Delta) };
        let before = found.before().unwrap();
        assert_eq!((before.ordinal, before.kind, before.target), (36, RecordKind::TOMBSTONE, 4));
        assert_eq!((before.codec, before.collected, before.stored_length), (Codec::Raw, 0, 0));
    }

    #[test]
    fn the_entry_of_a_record_has_the_state_of_its_kind() {
        let entry = |kind| header(kind, Codec::Zstd).table_entry(100);
        let found =
            [RecordKind::DATA, RecordKind::FORWARD, RecordKind::TOMBSTONE, RecordKind::COPY]
                .map(|kind| (entry(kind).state, entry(kind).target.0));
        let expected =
            [(State::LIVE, 6), (State::MERGED, 6), (State::TOMBSTONE, 0), (State::LIVE, 6)];
        assert_eq!(found, expected);
        assert_eq!(entry(RecordKind::DATA).offset, 100);
    }

    #[test]
    fn an_entry_of_another_record_does_not_agree() {
        let header = header(RecordKind::DATA, Codec::Zstd);
        let entry = header.table_entry(100);
        assert!(header.agrees_with(&entry, 40) && !header.agrees_with(&entry, 41));
        let others = [
            TableEntry { codec: Codec::Raw, ..entry },
            TableEntry { raw_length: 8, ..entry },
            TableEntry { stored_length: 4, ..entry },
            TableEntry { fingerprint: [6; 32], ..entry },
        ];
        assert!(others.iter().all(|other| !header.agrees_with(other, 40)));
    }

    #[test]
    fn a_record_ends_at_a_multiple_of_eight() {
        assert_eq!([0, 1, 8, 9].map(record_bytes), [80, 88, 88, 96]);
    }
}
