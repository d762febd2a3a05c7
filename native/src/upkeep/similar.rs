//! Which record a chunk could lean on: the join of the sketches of some chunks, as many as memory
//! holds, with those of all chunks before them, which stream by.

use std::collections::HashSet;

use hashbrown::HashTable;

use super::mark_set::Marks;
use super::sketch::{SUPER_FEATURES, Sketch};
use crate::format::ids::RecordId;
use crate::format::table_entry::{EntryBytes, State, TableEntry};

struct Slot {
    super_feature: u64,
    /// The record that stands for all that have this super-feature; a hole as long as there is none.
    stands: RecordId,
}

/// Super-features of the chunks that are looked at, each with one record that has it.
///
/// One and the same record for many chunks is what is wanted: few bases that serve many.
#[derive(Default)]
pub struct Similar {
    slots: HashTable<Slot>,
    /// The base that was chosen last: of equals, one near it is taken.
    last: RecordId,
    /// Records on which nothing more is to lean: they are being left.
    avoided: HashSet<RecordId>,
}

/// A super-feature has 40 bits, and the table looks at all 64.
fn hash_of(super_feature: u64) -> u64 {
    super_feature.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn hash(slot: &Slot) -> u64 {
    hash_of(slot.super_feature)
}

impl Similar {
    pub fn bytes(&self) -> usize {
        self.slots.allocation_size()
    }

    /// Forget all chunks.
    pub fn forget(&mut self) {
        *self = Similar { avoided: std::mem::take(&mut self.avoided), ..Similar::default() };
    }

    /// Let nothing more lean on a record.
    pub fn avoid(&mut self, id: RecordId) {
        self.avoided.insert(id);
    }

    /// Take back [`Similar::avoid`].
    pub fn allow(&mut self, id: RecordId) {
        self.avoided.remove(&id);
    }

    /// Look for the super-features of these chunks from now on.
    pub fn want(&mut self, sketches: &[Sketch]) {
        self.slots.reserve(sketches.len() * SUPER_FEATURES, hash);
        for &super_feature in sketches.iter().flatten().filter(|&&one| one != 0) {
            let is_same = |slot: &Slot| slot.super_feature == super_feature;
            if self.slots.find(hash_of(super_feature), is_same).is_none() {
                let slot = Slot { super_feature, stands: RecordId::HOLE };
                self.slots.insert_unique(hash_of(super_feature), slot, hash);
            }
        }
    }

    /// Let the live records of a part of a table that are no difference to another stand for their
    /// super-features, where none does. One that is leaned on already takes the place of one that is
    /// not. `first` is the id of the first entry.
    pub fn offer(
        &mut self,
        first: RecordId,
        sketches: &[Sketch],
        entries: &[&EntryBytes],
        seed: u64,
        leaned: &Marks,
    ) {
        let rows = (0..).map(|at| first.plus(at)).zip(sketches.iter().zip(entries));
        for (id, (sketch, bytes)) in rows {
            let is_known = sketch.iter().any(|one| self.slot(*one).is_some());
            if !is_known {
                continue;
            }
            let Some(entry) = TableEntry::sound(bytes, seed) else { continue };
            if entry.state == State::LIVE && entry.is_base() {
                self.stand(id, sketch, leaned);
            }
        }
    }

    fn slot(&mut self, super_feature: u64) -> Option<&mut Slot> {
        if super_feature == 0 {
            return None;
        }
        let is_same = |slot: &Slot| slot.super_feature == super_feature;
        self.slots.find_mut(hash_of(super_feature), is_same)
    }

    /// Let a record stand for its super-features, where none does.
    pub fn stand(&mut self, id: RecordId, sketch: &Sketch, leaned: &Marks) {
        let is_base = leaned.contains(id);
        for &super_feature in sketch {
            let Some(stands) = self.slot(super_feature).map(|slot| slot.stands) else { continue };
            let is_better = is_base && !leaned.contains(stands) || self.avoided.contains(&stands);
            if (stands.is_hole() || is_better)
                && let Some(slot) = self.slot(super_feature)
            {
                slot.stands = id;
            }
        }
    }

    /// The record with most super-features of a sketch; of several the one that is nearest to the
    /// choice before. None where there is none but `own`.
    pub fn choose(&mut self, own: RecordId, sketch: &Sketch) -> Option<RecordId> {
        let mut found = [RecordId::HOLE; SUPER_FEATURES];
        for (place, &super_feature) in sketch.iter().enumerate() {
            found[place] = self.slot(super_feature).map_or(RecordId::HOLE, |slot| slot.stands);
        }
        let last = self.last;
        let rank = |id: RecordId| {
            let votes = found.iter().filter(|&&one| one == id).count();
            (votes, std::cmp::Reverse(id.0.abs_diff(last.0)))
        };
        let is_open = |id: &RecordId| !id.is_hole() && *id != own && !self.avoided.contains(id);
        let candidates = found.iter().copied().filter(is_open);
        candidates.max_by_key(|&id| rank(id))
    }

    /// A record was chosen, and did.
    pub fn chosen(&mut self, id: RecordId) {
        self.last = id;
    }
}
