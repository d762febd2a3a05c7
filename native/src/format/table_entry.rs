//! Redirection tables (docs/design/format.md, "Table header", "Table entry").

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::bytes::layout;
use super::codec::Codec;
use super::ids::{ContainerNumber, Fingerprint, FingerprintCheck, RecordId};

layout! {
    pub mod header: 64 bytes {
        MAGIC: 8 at 0,
        FORMAT: 2 at 8,
        KIND: 1 at 10,
        PUNCHES: 1 at 11,
        CONTAINER: 4 at 12,
        GENERATION: 4 at 16,
        PARTITION: 4 at 20,
        VOLUME_CHECK: 8 at 24,
        SEED: 8 at 32,
        SYNCED_BYTES: 6 at 40,
        MAP_LINES: 2 at 46,
        SYNCED_COUNT: 4 at 48,
        RECONCILED: 4 at 52,
        CHECKSUM: 8 at 56,
    }
}

layout! {
    pub mod fields: 64 bytes {
        FINGERPRINT: 32 at 0,
        OFFSET: 8 at 32,
        TARGET: 8 at 40,
        STORED_LENGTH: 4 at 48,
        RAW_LENGTH: 4 at 52,
        HINT: 4 at 56,
        STATE: 1 at 60,
        CODEC: 1 at 61,
        CHECK: 2 at 62,
    }
}

pub const ENTRY_BYTES: usize = fields::BYTES;

/// Maximum of steps from a merged record to the record with its bytes. More steps count as a loop.
pub const FORWARDS_MAX: usize = 64;

/// An entry as stored in a table.
pub type EntryBytes = [u8; ENTRY_BYTES];

/// The state of a record. An entry may hold an unknown value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub u8);

impl State {
    /// State of an entry that is damaged, or was never written.
    pub const NONE: State = State(0);
    pub const LIVE: State = State(1);
    pub const ORPHANED: State = State(2);
    pub const MERGED: State = State(3);
    pub const QUARANTINED: State = State(4);
    pub const TOMBSTONE: State = State(5);

    /// Returns whether such a record has bytes that have not failed a check.
    #[inline]
    pub fn has_bytes(self) -> bool {
        matches!(self, State::LIVE | State::ORPHANED)
    }

    pub fn is_known(self) -> bool {
        (State::LIVE.0..=State::TOMBSTONE.0).contains(&self.0)
    }
}

/// The fields of an entry.
#[derive(Clone, Copy, Debug)]
pub struct TableEntry {
    pub fingerprint: Fingerprint,
    pub offset: u64,
    /// For a merged entry, its merge target; for a copy, the repeated record. For a live record
    /// that depends on another, that record, or a hole. For an orphan its epoch, which is no id.
    pub target: RecordId,
    pub stored_length: u32,
    pub raw_length: u32,
    pub hint: u32,
    pub state: State,
    pub codec: Codec,
}

impl TableEntry {
    /// Decodes an entry without checking its checksum.
    #[inline]
    pub fn unchecked(bytes: &EntryBytes) -> TableEntry {
        TableEntry {
            fingerprint: *fields::FINGERPRINT.of(bytes),
            offset: fields::OFFSET.u64(bytes),
            target: RecordId(fields::TARGET.u64(bytes)),
            stored_length: fields::STORED_LENGTH.u32(bytes),
            raw_length: fields::RAW_LENGTH.u32(bytes),
            hint: fields::HINT.u32(bytes),
            state: State(fields::STATE.u8(bytes)),
            codec: Codec::from(fields::CODEC.u8(bytes)),
        }
    }

    /// Decodes an entry. None if the checksum is wrong: the entry is damaged, was never written, or
    /// belongs to a container with another seed.
    #[inline]
    pub fn sound(bytes: &EntryBytes, seed: u64) -> Option<TableEntry> {
        let is_sound = fields::CHECK.u16(bytes) == check(bytes, seed);
        is_sound.then(|| TableEntry::unchecked(bytes))
    }

    /// Returns whether decoding the payload requires the bytes of another record.
    #[inline]
    pub fn leans(&self) -> bool {
        self.codec.leans() && self.stored_length > 0
    }

    /// Whether two entries are of the same record at the same place, whatever its state is.
    pub fn describes(&self, other: &TableEntry) -> bool {
        self.fingerprint == other.fingerprint
            && self.offset == other.offset
            && self.stored_length == other.stored_length
            && self.raw_length == other.raw_length
            && self.codec == other.codec
    }

    pub fn to_bytes(&self, seed: u64) -> EntryBytes {
        let mut bytes = [0; ENTRY_BYTES];
        fields::FINGERPRINT.put(&mut bytes, &self.fingerprint);
        fields::OFFSET.put(&mut bytes, &self.offset.to_le_bytes());
        fields::TARGET.put(&mut bytes, &self.target.0.to_le_bytes());
        fields::STORED_LENGTH.put(&mut bytes, &self.stored_length.to_le_bytes());
        fields::RAW_LENGTH.put(&mut bytes, &self.raw_length.to_le_bytes());
        fields::HINT.put(&mut bytes, &self.hint.to_le_bytes());
        fields::STATE.put(&mut bytes, &[self.state.0]);
        fields::CODEC.put(&mut bytes, &[self.codec.number()]);
        let check = check(&bytes, seed);
        fields::CHECK.put(&mut bytes, &check.to_le_bytes());
        bytes
    }

    /// The start of the fingerprint, as a recipe has it.
    #[inline]
    pub fn fingerprint_check(&self) -> FingerprintCheck {
        FingerprintCheck::of(&self.fingerprint)
    }
}

/// Sets the state of an entry, and updates its checksum.
pub fn set_state(bytes: &mut EntryBytes, state: State, seed: u64) {
    fields::STATE.put(bytes, &[state.0]);
    let check = check(bytes, seed);
    fields::CHECK.put(bytes, &check.to_le_bytes());
}

/// The checksum of an entry, which covers all bytes before the checksum.
#[inline]
fn check(bytes: &EntryBytes, seed: u64) -> u16 {
    xxh3_64_with_seed(&bytes[..fields::CHECK.start], seed) as u16
}

/// Complete entries, in order.
pub fn entries(table: &[u8]) -> impl Iterator<Item = &EntryBytes> {
    table.chunks_exact(ENTRY_BYTES).filter_map(|entry| entry.first_chunk())
}

/// The seed of a container's checksums, from the header of its table. None if the header is not
/// valid, or belongs to another container or volume.
pub fn seed_in(
    header_bytes: &[u8; header::BYTES],
    volume_id: &[u8; 16],
    container: ContainerNumber,
) -> Option<u64> {
    let is_own = header::MAGIC.of(header_bytes) == b"DEDUPDIR"
        && header::CHECKSUM.u64(header_bytes) == xxh3_64(&header_bytes[..header::CHECKSUM.start])
        && header::CONTAINER.u32(header_bytes) == container.0;
    let volume = &header_bytes[header::VOLUME_CHECK.start..header::SEED.end()];
    match header::FORMAT.u16(header_bytes) {
        1 if is_own && volume == volume_id => {
            Some(public_seed(volume_id, container, header::GENERATION.u32(header_bytes)))
        }
        2 | 3 if is_own && header::VOLUME_CHECK.u64(header_bytes) == xxh3_64(volume_id) => {
            Some(header::SEED.u64(header_bytes))
        }
        _ => None,
    }
}

/// The name of a container in its directory.
pub fn data_name(container: ContainerNumber) -> String {
    format!("{:08}.dat", container.0)
}

/// The name of a container's table in its directory.
pub fn table_name(container: ContainerNumber) -> String {
    format!("{:08}.dir", container.0)
}

layout! {
    /// The bytes whose xxh3 is the seed of a container without its own seed.
    mod public: 24 bytes {
        VOLUME_ID: 16 at 0,
        CONTAINER: 4 at 16,
        GENERATION: 4 at 20,
    }
}

/// The seed of a container of format 1, which any user can compute
/// (`format.container.public_seed`).
fn public_seed(volume_id: &[u8; 16], container: ContainerNumber, generation: u32) -> u64 {
    let mut key = [0; public::BYTES];
    public::VOLUME_ID.put(&mut key, volume_id);
    public::CONTAINER.put(&mut key, &container.0.to_le_bytes());
    public::GENERATION.put(&mut key, &generation.to_le_bytes());
    xxh3_64(&key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::table_map::collected;

    const VOLUME_ID: [u8; 16] = *b"0123456789abcdef";

    #[test]
    fn each_state_has_its_properties() {
        let known: Vec<_> = (0..=u8::MAX).filter(|&state| State(state).is_known()).collect();
        assert_eq!(known, [1, 2, 3, 4, 5]);
        let with_bytes: Vec<_> = (0..=u8::MAX).filter(|&state| State(state).has_bytes()).collect();
        assert_eq!(with_bytes, [State::LIVE.0, State::ORPHANED.0]);
    }

    #[test]
    fn an_entry_leans_by_its_codec_if_it_has_bytes() {
        let entry = TableEntry { codec: Codec::Delta, stored_length: 1, ..collected() };
        assert!(entry.leans());
        assert!(!TableEntry { stored_length: 0, ..entry }.leans());
        assert!(!TableEntry { codec: Codec::Zstd, ..entry }.leans());
        let fingerprint = std::array::from_fn(|at| at as u8);
        let check = TableEntry { fingerprint, ..entry }.fingerprint_check();
        assert_eq!(check, FingerprintCheck(0x0302_0100));
    }

    #[test]
    fn entries_are_whole() {
        assert_eq!(entries(&[0; 3 * ENTRY_BYTES + 1]).count(), 3);
    }

    #[test]
    fn files_of_a_container_have_its_number() {
        assert_eq!(data_name(ContainerNumber(7)), "00000007.dat");
        assert_eq!(table_name(ContainerNumber(123_456_789)), "123456789.dir");
    }

    #[test]
    fn the_seed_of_format_1_follows_from_what_anybody_knows() {
        let seed = |volume: &[u8; 16], container, generation| {
            public_seed(volume, ContainerNumber(container), generation)
        };
        let expected = xxh3_64(b"0123456789abcdef\x02\0\0\0\x03\0\0\0");
        assert_eq!(seed(&VOLUME_ID, 2, 3), expected);
        assert_ne!(seed(&VOLUME_ID, 2, 4), expected);
        assert_ne!(seed(&VOLUME_ID, 3, 3), expected);
    }
}
