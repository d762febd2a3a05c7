//! What has become of the records of a container: the states in its redirection table.

use crate::seal::{ENTRY_BYTES, STATE_AT, entry_body};

/// The highest state that there is (`dedupd/format/table.py`).
const STATE_MAX: u8 = 5;

/// The state of each whole entry; 0 where it is damaged, or was never written.
pub fn states(table: &[u8], seed: u64) -> Vec<u8> {
    let state = |entry| match entry_body(entry, seed) {
        Some(body) if body[STATE_AT] <= STATE_MAX => body[STATE_AT],
        _ => 0,
    };
    let entries = table.chunks_exact(ENTRY_BYTES).filter_map(|entry| entry.first_chunk());
    entries.map(state).collect()
}
