//! What has become of the records of a container: the states in its redirection table.

use crate::format::bytes::u32_at;
use crate::format::record_header::RECORD_HEADER_BYTES;
use crate::format::table_entry::{
    ENTRY_BYTES, STATE_AT, STATE_LIVE, STATE_MERGED, STATE_ORPHANED, STATE_QUARANTINED,
    STATE_TOMBSTONE, entry_body,
};

const ALIGN_BYTES: u64 = 8;
const STORED_LENGTH_AT: usize = 48;

/// The state of each whole entry; 0 where it is damaged, or was never written.
pub fn states(table: &[u8], seed: u64) -> Vec<u8> {
    let state = |entry| match entry_body(entry, seed) {
        Some(body) if body[STATE_AT] <= STATE_TOMBSTONE => body[STATE_AT],
        _ => 0,
    };
    let entries = table.chunks_exact(ENTRY_BYTES).filter_map(|entry| entry.first_chunk());
    entries.map(state).collect()
}

/// What the records of a table take, and what they would take after a compaction.
#[derive(Default)]
pub struct Weight {
    /// Records that a compaction keeps, with their bytes or as forwards.
    pub kept: u64,
    pub kept_bytes: u64,
    pub orphaned: u64,
    pub orphaned_bytes: u64,
    pub quarantined: u64,
}

/// Entries that are not valid count as nothing.
pub fn weigh(table: &[u8], seed: u64) -> Weight {
    let mut weight = Weight::default();
    let mut in_run = false;
    for (entry, state) in table.chunks_exact(ENTRY_BYTES).zip(states(table, seed)) {
        let stored = u64::from(u32_at(entry, STORED_LENGTH_AT));
        let is_dead = matches!(state, STATE_ORPHANED | STATE_TOMBSTONE);
        match state {
            STATE_LIVE => weight.keep(stored),
            STATE_MERGED => weight.keep(0),
            STATE_QUARANTINED => {
                weight.keep(stored);
                weight.quarantined += 1;
            }
            // A row of what is dead leaves a single record, without a payload.
            _ if is_dead && !in_run => weight.kept_bytes += record_size(0),
            _ => {}
        }
        if state == STATE_ORPHANED {
            weight.orphaned += 1;
            weight.orphaned_bytes += record_size(stored);
        }
        in_run = is_dead;
    }
    weight
}

impl Weight {
    fn keep(&mut self, stored: u64) {
        self.kept += 1;
        self.kept_bytes += record_size(stored);
    }
}

fn record_size(stored: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + stored).next_multiple_of(ALIGN_BYTES)
}
