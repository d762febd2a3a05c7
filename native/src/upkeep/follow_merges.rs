//! Redirection tables compared with marks: records that marked ones lead to, records that repeat
//! marked ones, and states that do not fit the marks.

use crate::format::ids::RecordId;
use crate::format::table_entry::{EntryBytes, State, TableEntry};
use crate::upkeep::mark_set::Marks;

/// The result of [`Marks::follow`].
#[derive(Default)]
pub struct Followed {
    /// Whether anything was marked.
    pub any: bool,
    /// The highest epoch of an orphan; 0 where there is none.
    pub epoch: u64,
}

/// The result of [`Marks::lean`].
#[derive(Default)]
pub struct Leaned {
    /// Whether anything was marked.
    pub any: bool,
    /// The places of entries that do not say what their record leans on: its header does.
    pub unknown: Vec<u32>,
}

/// The records of a part of a table that lean on others: their places, and the ids of these, holes
/// where the entry does not say. Tombstones are left out.
pub fn deltas(entries: &[&EntryBytes], seed: u64) -> (Vec<u32>, Vec<RecordId>) {
    let mut found = (Vec::new(), Vec::new());
    for (place, entry) in (0..).zip(entries) {
        let Some(entry) = TableEntry::sound(entry, seed) else { continue };
        if entry.leans() && entry.state != State::TOMBSTONE {
            found.0.push(place);
            let is_told = entry.state == State::LIVE;
            found.1.push(if is_told { entry.target } else { RecordId::HOLE });
        }
    }
    found
}

impl Marks {
    /// Marks the targets of marked merged entries, and live entries that repeat a record which is
    /// marked or unknown. `first` is the id of the first entry.
    pub fn follow(&mut self, first: RecordId, entries: &[&EntryBytes]) -> Followed {
        let mut found = Followed::default();
        for (own, entry) in (0..).map(|at| first.plus(at)).zip(entries) {
            let entry = TableEntry::unchecked(entry);
            let TableEntry { state, target, .. } = entry;
            match state {
                _ if target.is_hole() => {}
                State::ORPHANED => found.epoch = found.epoch.max(target.0),
                State::MERGED if self.contains(own) && !self.contains(target) => {
                    found.any |= self.mark(target);
                }
                State::LIVE if entry.leans() => {} // the target is its base
                State::LIVE if !self.contains(own) && self.is_repeated(target) => {
                    found.any |= self.set(own);
                }
                _ => {}
            }
        }
        found
    }

    /// Marks the records that marked ones lean on. `first` is the id of the first entry.
    pub fn lean(&mut self, first: RecordId, entries: &[&EntryBytes]) -> Leaned {
        let mut found = Leaned::default();
        for (place, entry) in (0..).zip(entries) {
            let entry = TableEntry::unchecked(entry);
            let is_needed = entry.leans() && entry.state != State::TOMBSTONE;
            if !is_needed || !self.contains(first.plus(u64::from(place))) {
                continue;
            }
            if entry.state != State::LIVE || entry.target.is_hole() {
                found.unknown.push(place);
            } else if !self.contains(entry.target) {
                found.any |= self.mark(entry.target);
            }
        }
        found
    }

    /// Marks second copies of records that `of` has marked or does not know. `first` is the id of
    /// the first copy. Returns the highest epoch of an orphan; 0 where there is none.
    pub fn add_copies(&mut self, first: RecordId, entries: &[&EntryBytes], of: &Marks) -> u64 {
        let mut epoch = 0;
        for (own, entry) in (0..).map(|at| first.plus(at)).zip(entries) {
            let TableEntry { state, target, .. } = TableEntry::unchecked(entry);
            if state == State::ORPHANED {
                epoch = epoch.max(target.0);
            } else if of.is_repeated(target) {
                self.set(own);
            }
        }
        epoch
    }

    /// Whether a record that repeats `target` is needed: where `target` is marked, and where it is
    /// lost.
    fn is_repeated(&self, target: RecordId) -> bool {
        self.contains(target) || !self.knows(target)
    }
}

/// The places of entries whose state does not fit: needed orphans, and other entries that are not
/// needed. Also the number of orphans. `needed` has a bit for each entry.
pub fn misfits(entries: &[&EntryBytes], needed: &[u8]) -> (Vec<u32>, u64) {
    let (mut places, mut orphans) = (Vec::new(), 0);
    for (at, entry) in entries.iter().enumerate() {
        let state = TableEntry::unchecked(entry).state;
        let is_orphan = state == State::ORPHANED;
        let is_needed = needed.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        orphans += u64::from(is_orphan);
        if state != State::TOMBSTONE && is_needed == is_orphan {
            places.push(at as u32);
        }
    }
    (places, orphans)
}
