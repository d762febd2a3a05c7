//! States of the records of a container, from its redirection table.

use xxhash_rust::xxh3::Xxh3;

use crate::format::record_header::record_bytes;
use crate::format::table_entry::{ENTRY_BYTES, State, TableEntry, entries};
use crate::format::table_map;

/// The state of each whole entry; 0 where it is damaged, or was never written.
pub fn states(table: &[u8], seed: u64) -> Vec<u8> {
    entries(table).map(|entry| sound_state(TableEntry::sound(entry, seed)).0).collect()
}

/// A digest of what each entry says of its record's place and bytes, whatever the records' states
/// are, and of the seed. None where an entry is damaged, or in quarantine.
pub fn places_digest(table: &[u8], seed: u64) -> Option<u64> {
    let mut digest = Xxh3::with_seed(seed);
    for entry in entries(table) {
        let entry = TableEntry::sound(entry, seed)?;
        if !entry.state.is_known() || entry.state == State::QUARANTINED {
            return None;
        }
        digest.update(&entry.fingerprint);
        digest.update(&entry.offset.to_le_bytes());
        digest.update(&entry.stored_length.to_le_bytes());
    }
    Some(digest.digest())
}

fn sound_state(entry: Option<TableEntry>) -> State {
    entry.map(|entry| entry.state).filter(|state| state.is_known()).unwrap_or(State::NONE)
}

/// Bytes of the records of a table, now and after a compaction.
#[derive(Default)]
#[cfg_attr(feature = "python", pyo3::pyclass(frozen, get_all, module = "dedupd_core.native.store"))]
pub struct Weight {
    /// Records that a compaction keeps, with their bytes or as forwards.
    pub kept: u64,
    pub kept_bytes: u64,
    /// Of the table that a compaction writes.
    pub table_bytes: u64,
    pub orphaned: u64,
    pub orphaned_bytes: u64,
    pub quarantined: u64,
    /// Of live records: their raw bytes, and how many of these are not stored, since they were
    /// compressed by themselves, or with another record.
    pub raw_bytes: u64,
    pub compressed_away_bytes: u64,
    pub refined_away_bytes: u64,
}

/// Entries that are not valid are left out.
pub fn weigh(table: &[u8], seed: u64) -> Weight {
    let mut weight = Weight::default();
    let (mut count, mut left_out, mut mapped, mut run) = (0, 0, 0, 0);
    for entry in entries(table).map(|entry| TableEntry::sound(entry, seed)) {
        let stored = entry.map_or(0, |entry| u64::from(entry.stored_length));
        let state = sound_state(entry);
        let is_dead = matches!(state, State::ORPHANED | State::TOMBSTONE);
        match state {
            State::LIVE => {
                weight.keep(stored);
                if let Some(entry) = &entry {
                    weight.count_saved(entry);
                }
            }
            State::MERGED => weight.keep(0),
            State::QUARANTINED => {
                weight.keep(stored);
                weight.quarantined += 1;
            }
            _ => {}
        }
        if state == State::ORPHANED {
            weight.orphaned += 1;
            weight.orphaned_bytes += record_bytes(stored);
        }
        if is_dead {
            run += 1;
        } else if run > u32::from(u16::MAX) {
            weight.kept_bytes += record_bytes(0);
            run = 0;
        } else if run > 0 {
            // Dead records leave nothing but a count in the one after them, and no entry.
            left_out += run;
            mapped = count;
            run = 0;
        }
        count += 1;
    }
    if run > 0 {
        weight.kept_bytes += record_bytes(0);
    }
    let entries = u64::from(count - left_out) * ENTRY_BYTES as u64;
    weight.table_bytes = table_map::start_for(mapped) + entries;
    weight
}

impl Weight {
    fn keep(&mut self, stored: u64) {
        self.kept += 1;
        self.kept_bytes += record_bytes(stored);
    }

    fn count_saved(&mut self, entry: &TableEntry) {
        self.raw_bytes += u64::from(entry.raw_length);
        let saved = u64::from(entry.raw_length.saturating_sub(entry.stored_length));
        if entry.codec.leans() {
            self.refined_away_bytes += saved;
        } else {
            self.compressed_away_bytes += saved;
        }
    }
}
