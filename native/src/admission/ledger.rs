//! The files that were judged to save too little, and the notes of a run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::format::saved_notes::{Judged, Note};
use crate::system::files::Identity;
use crate::threads::lock::locked;

/// The row of a skipped file in its present state.
pub fn judged(identity: &Identity, gain: u16, missing: u16) -> Judged {
    Judged { inode: identity.inode, check: check_of(identity), gain, missing }
}

/// A changed file has the check of its old state once in 2^32 times; then it is still skipped.
fn check_of(identity: &Identity) -> u32 {
    let mut bytes = [0; 24];
    let values = [identity.size, identity.mtime_ns, identity.ctime_ns];
    for (field, value) in bytes.chunks_exact_mut(8).zip(values) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    xxh3_64(&bytes) as u32
}

/// Replaces the thousandths that a file would save if its attributes leave no room for a stub
/// attribute. Such a file is always skipped.
pub const FULL: u16 = u16::MAX;

/// Findings of this run's walk about a file that an earlier run judged.
const UNSEEN: u8 = 0;
const UNCHANGED: u8 = 1;
const CHANGED: u8 = 2;

/// The judgements of earlier runs, and of this one.
pub struct Ledger {
    /// Ordered by inode.
    earlier: Vec<Judged>,
    seen: Vec<AtomicU8>,
    /// A file that would free at least this many thousandths is judged again (a new policy).
    gain_min: u16,
    rows_max: usize,
    notes_max: usize,
    /// Part of each noted prefix, so that files of different domains share none.
    salt: AtomicU64,
    run: Mutex<Run>,
}

/// The judgements of this run.
#[derive(Default)]
struct Run {
    judged: Vec<Judged>,
    /// Files that were read again because others have their chunks. Their notes remain valid.
    again: Vec<Judged>,
    notes: Vec<Note>,
    /// How many of `judged` and `again` are saved.
    saved: (usize, usize),
}

/// The files that a run leaves judged, by inode.
pub struct JudgedFiles {
    pub rows: Vec<Judged>,
    /// Inodes with new notes of this run since the last save, which replace their earlier notes.
    pub renewed: Vec<u64>,
}

impl JudgedFiles {
    pub fn has(&self, inode: u64) -> bool {
        self.get(inode).is_some()
    }

    pub fn get(&self, inode: u64) -> Option<&Judged> {
        let at = self.rows.binary_search_by_key(&inode, |row| row.inode).ok()?;
        self.rows.get(at)
    }
}

impl Ledger {
    /// `rows` are those of an earlier run, in any order. At most `rows_max` files are kept, and
    /// `notes_max` notes until [`Ledger::is_full`].
    pub fn new(mut rows: Vec<Judged>, gain_min: u16, rows_max: usize, notes_max: usize) -> Ledger {
        rows.sort_unstable_by_key(|row| row.inode);
        rows.dedup_by_key(|row| row.inode);
        rows.truncate(rows_max);
        let seen = rows.iter().map(|_| AtomicU8::new(UNSEEN)).collect();
        let (salt, run) = (AtomicU64::default(), Mutex::default());
        Ledger { earlier: rows, seen, gain_min, rows_max, notes_max, salt, run }
    }

    /// Declares that later notes are of files of another domain.
    pub fn use_salt(&self, salt: u64) {
        self.salt.store(salt, Ordering::Relaxed);
    }

    fn salted(&self, prefixes: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
        let salt = self.salt.load(Ordering::Relaxed);
        prefixes.map(move |prefix| prefix ^ salt)
    }

    /// Returns whether a plain file was judged in its present state, so that it need not be read.
    pub fn passes_over(&self, identity: &Identity) -> bool {
        let Ok(at) = self.earlier.binary_search_by_key(&identity.inode, |row| row.inode) else {
            return false;
        };
        let row = &self.earlier[at];
        let is_left = row.gain < self.gain_min || row.gain == FULL;
        let is_same = row.check == check_of(identity) && is_left;
        let seen = if is_same { UNCHANGED } else { CHANGED };
        self.seen[at].store(seen, Ordering::Relaxed);
        is_same
    }

    /// The saving of a file that an earlier run found, in thousandths, if the file is unchanged.
    pub fn gain_of(&self, identity: &Identity) -> Option<u16> {
        self.known(identity).map(|row| row.gain).filter(|gain| *gain != FULL)
    }

    /// Returns whether a file without room for a stub's attribute in an earlier run is unchanged.
    pub fn is_full_of_attributes(&self, identity: &Identity) -> bool {
        self.known(identity).is_some_and(|row| row.gain == FULL)
    }

    fn known(&self, identity: &Identity) -> Option<&Judged> {
        let at = self.earlier.binary_search_by_key(&identity.inode, |row| row.inode).ok()?;
        self.earlier.get(at).filter(|row| row.check == check_of(identity))
    }

    /// Remember a skipped file, with the first bytes of the fingerprints of its chunks.
    pub fn leave(&self, judged: Judged, prefixes: impl Iterator<Item = u64>) {
        let mut run = locked(&self.run);
        if self.earlier.len() + run.judged.len() >= self.rows_max {
            return;
        }
        run.judged.push(judged);
        let owner = judged.inode;
        run.notes.extend(self.salted(prefixes).map(|prefix| Note::new(prefix, owner)));
    }

    /// Remember a file that is skipped although others have its chunks. Its notes remain valid.
    pub fn leave_again(&self, judged: Judged) {
        locked(&self.run).again.push(judged);
    }

    /// Note chunks of a file that is being read.
    pub fn note(&self, inode: u64, prefixes: impl Iterator<Item = u64>) {
        let mut run = locked(&self.run);
        run.notes.extend(self.salted(prefixes).map(|prefix| Note::new(prefix, inode)));
    }

    /// Note stored chunks, which skipped files may have.
    pub fn note_stored(&self, prefixes: impl Iterator<Item = u64>) {
        let mut run = locked(&self.run);
        if !self.earlier.is_empty() || !run.judged.is_empty() {
            run.notes.extend(self.salted(prefixes).map(Note::stored));
        }
    }

    /// Returns whether the notes of this run must be saved before further notes.
    pub fn is_full(&self) -> bool {
        locked(&self.run).notes.len() >= self.notes_max
    }

    /// Returns whether this run has unsaved changes.
    pub fn has_changed(&self) -> bool {
        let run = locked(&self.run);
        !run.notes.is_empty() || run.saved != (run.judged.len(), run.again.len())
    }

    /// The notes of this run, in order.
    pub fn notes(&self) -> Vec<Note> {
        let notes = &mut locked(&self.run).notes;
        notes.sort_unstable();
        notes.dedup();
        notes.clone()
    }

    /// Drop the notes of this run after they and its judgements were saved.
    pub fn forget_notes(&self) {
        let mut run = locked(&self.run);
        run.notes = Vec::new();
        run.saved = (run.judged.len(), run.again.len());
    }

    /// The files that remain judged. With `whole`, the walk has visited every file, so unseen files
    /// are deleted, or no longer plain. `recalled` files were read again: only the judgements of
    /// this run are valid for them.
    pub fn kept(&self, whole: bool, recalled: &[u64]) -> JudgedFiles {
        let run = locked(&self.run);
        let is_recalled = |inode: &u64| recalled.binary_search(inode).is_ok();
        let earlier = self.earlier.iter().zip(&self.seen).filter(|(row, seen)| {
            let is_there = match seen.load(Ordering::Relaxed) {
                UNSEEN => !whole,
                seen => seen == UNCHANGED,
            };
            is_there && !is_recalled(&row.inode)
        });
        let judged = run.judged.iter().filter(|row| !is_recalled(&row.inode));
        let mut rows: Vec<Judged> =
            run.again.iter().chain(judged).copied().chain(earlier.map(|(row, _)| *row)).collect();
        // The first row of an inode remains: the sort is stable.
        rows.sort_by_key(|row| row.inode);
        rows.dedup_by_key(|row| row.inode);
        let mut renewed: Vec<u64> =
            run.judged.iter().skip(run.saved.0).map(|row| row.inode).collect();
        renewed.sort_unstable();
        renewed.dedup();
        JudgedFiles { rows, renewed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(inode: u64, size: i64) -> Identity {
        Identity { inode, size, mtime_ns: 3, ctime_ns: 4 }
    }

    #[test]
    fn a_file_is_passed_over_as_long_as_it_is_unchanged() {
        let rows = vec![judged(&identity(7, 100), 10, 1), judged(&identity(3, 100), 60, 1)];
        let ledger = Ledger::new(rows, 50, 10, 10);
        assert!(ledger.passes_over(&identity(7, 100)));
        assert!(!ledger.passes_over(&identity(3, 100)), "the policy takes it by now");
        assert!(!ledger.passes_over(&identity(8, 100)));
        assert_eq!(ledger.kept(true, &[]).rows.len(), 1);
        assert!(!ledger.passes_over(&identity(7, 101)));
        assert_eq!(ledger.kept(true, &[]).rows.len(), 0);
    }

    #[test]
    fn a_file_without_room_for_an_attribute_is_passed_over_whatever_it_saves() {
        let ledger = Ledger::new(vec![judged(&identity(7, 100), FULL, 1)], 0, 10, 10);
        assert!(ledger.passes_over(&identity(7, 100)));
        assert!(ledger.is_full_of_attributes(&identity(7, 100)));
        assert_eq!(ledger.gain_of(&identity(7, 100)), None);
        assert!(!ledger.passes_over(&identity(7, 101)));
        assert!(!ledger.is_full_of_attributes(&identity(7, 101)));
    }

    #[test]
    fn what_was_not_seen_stays_unless_the_walk_was_whole() {
        let ledger = Ledger::new(vec![judged(&identity(7, 100), 10, 1)], 50, 10, 10);
        assert!(ledger.kept(false, &[]).has(7));
        assert!(!ledger.kept(true, &[]).has(7));
    }
    #[test]
    fn what_is_saved_is_renewed_no_more() {
        let ledger = Ledger::new(vec![judged(&identity(3, 1), 1, 1)], 50, 10, 10);
        ledger.leave(judged(&identity(7, 100), 10, 1), [5].into_iter());
        assert_eq!(ledger.kept(false, &[]).renewed, [7]);
        ledger.forget_notes();
        assert!(!ledger.has_changed());
        ledger.note_stored([5].into_iter());
        assert!(ledger.has_changed());
        let kept = ledger.kept(false, &[]);
        assert!(kept.has(7) && kept.renewed.is_empty());
    }
}
