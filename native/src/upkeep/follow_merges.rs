//! What redirection tables say of marked records: what they lead to, what repeats them, and which
//! states do not fit the marks.

use crate::format::bytes::u64_at;
use crate::format::table_entry::{
    ENTRY_BYTES, STATE_AT, STATE_LIVE, STATE_MERGED, STATE_ORPHANED, STATE_TOMBSTONE,
};
use crate::upkeep::mark_set::Marks;

const TARGET_AT: usize = 40;

/// What [`Marks::follow`] found.
#[derive(Default)]
pub struct Followed {
    /// Whether anything was marked.
    pub any: bool,
    /// The highest epoch of an orphan; 0 where there is none.
    pub epoch: u64,
    /// Ids of no record that marked ones lead to.
    pub strays: Vec<u64>,
}

impl Marks {
    /// Marks what marked entries were merged into, and live ones that repeat a record that is
    /// marked, or that there is not. `first` is the id of the first entry.
    pub fn follow(&mut self, first: u64, entries: &[&[u8; ENTRY_BYTES]]) -> Followed {
        let mut found = Followed::default();
        for (own, entry) in (first..).zip(entries) {
            let target = u64_at(*entry, TARGET_AT);
            match entry[STATE_AT] {
                _ if target == 0 => {}
                STATE_ORPHANED => found.epoch = found.epoch.max(target),
                STATE_MERGED if self.contains(own) && !self.contains(target) => {
                    if self.set(target, true) {
                        found.any = true;
                    } else {
                        found.strays.push(target);
                    }
                }
                STATE_LIVE if !self.contains(own) && self.is_repeated(target) => {
                    found.any |= self.set(own, true);
                }
                _ => {}
            }
        }
        found
    }

    /// Marks second copies, of which `first` is the first one's id, of what `of` has marked, and of
    /// what it does not know. Returns the highest epoch of an orphan; 0 where there is none.
    pub fn add_copies(&mut self, first: u64, entries: &[&[u8; ENTRY_BYTES]], of: &Marks) -> u64 {
        let mut epoch = 0;
        for (own, entry) in (first..).zip(entries) {
            let target = u64_at(*entry, TARGET_AT);
            if entry[STATE_AT] == STATE_ORPHANED {
                epoch = epoch.max(target);
            } else if of.is_repeated(target) {
                self.set(own, true);
            }
        }
        epoch
    }

    /// Whether what repeats a record is needed: where that is, and where it is lost, so that nobody
    /// can tell.
    fn is_repeated(&self, target: u64) -> bool {
        self.contains(target) || !self.knows(target)
    }
}

/// The places of entries that are marked and were collected, or are not and were not; and how many
/// orphans there are. `needed` has a bit for each entry.
pub fn misfits(entries: &[&[u8; ENTRY_BYTES]], needed: &[u8]) -> (Vec<u32>, u64) {
    let (mut places, mut orphans) = (Vec::new(), 0);
    for (at, entry) in entries.iter().enumerate() {
        let state = entry[STATE_AT];
        let is_orphan = state == STATE_ORPHANED;
        let is_needed = needed.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        orphans += u64::from(is_orphan);
        if state != STATE_TOMBSTONE && is_needed == is_orphan {
            places.push(at as u32);
        }
    }
    (places, orphans)
}
