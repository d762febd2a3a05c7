//! Which record a chunk could lean on: the join of the sketches of some chunks, as many as memory
//! holds, with those of all chunks before them, which stream by.

use std::collections::HashSet;

use hashbrown::HashTable;

use super::sketch::{FEATURES, Sketch};
use crate::format::ids::RecordId;
use crate::format::table_entry::{EntryBytes, State, TableEntry};

/// Records that are tried for one chunk: a third one would save a fifth of a hundredth of a store.
const CANDIDATES_MAX: usize = 2;

struct Slot {
    feature: u64,
    /// The record that stands for all that have this feature; a hole as long as there is none.
    stands: RecordId,
}

/// Features of the chunks that are looked at, each with one record that has it.
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

/// A feature has 40 bits, and the table looks at all 64.
fn hash_of(feature: u64) -> u64 {
    feature.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn hash(slot: &Slot) -> u64 {
    hash_of(slot.feature)
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

    /// Look for the features of these chunks from now on.
    pub fn want(&mut self, sketches: &[Sketch]) {
        self.slots.reserve(sketches.len() * FEATURES, hash);
        for &feature in sketches.iter().flatten().filter(|&&one| one != 0) {
            let is_same = |slot: &Slot| slot.feature == feature;
            if self.slots.find(hash_of(feature), is_same).is_none() {
                let slot = Slot { feature, stands: RecordId::HOLE };
                self.slots.insert_unique(hash_of(feature), slot, hash);
            }
        }
    }

    /// Let the live records of a part of a table that are no difference to another stand for their
    /// features. `first` is the id of the first entry.
    pub fn offer(
        &mut self,
        first: RecordId,
        sketches: &[Sketch],
        entries: &[&EntryBytes],
        seed: u64,
    ) {
        let rows = (0..).map(|at| first.plus(at)).zip(sketches.iter().zip(entries));
        for (id, (sketch, bytes)) in rows {
            let is_known = sketch.iter().any(|one| self.slot(*one).is_some());
            if !is_known {
                continue;
            }
            let Some(entry) = TableEntry::sound(bytes, seed) else { continue };
            if entry.state == State::LIVE && entry.codec.may_be_base() {
                self.stand(id, sketch);
            }
        }
    }

    fn slot(&mut self, feature: u64) -> Option<&mut Slot> {
        if feature == 0 {
            return None;
        }
        let is_same = |slot: &Slot| slot.feature == feature;
        self.slots.find_mut(hash_of(feature), is_same)
    }

    /// Let a record stand for its features, in the place of those before: what comes next is more
    /// like it, and as few bases serve as many as where the first one stays.
    pub fn stand(&mut self, id: RecordId, sketch: &Sketch) {
        let is_avoided = self.avoided.contains(&id);
        for &feature in sketch {
            let slot = self.slot(feature).filter(|slot| !is_avoided || slot.stands.is_hole());
            if let Some(slot) = slot {
                slot.stands = id;
            }
        }
    }

    /// The records with most features of a sketch, the best one first; of equals the one that is
    /// nearest to the choice before. Never `own`.
    pub fn choose(&mut self, own: RecordId, sketch: &Sketch) -> Vec<RecordId> {
        let mut found = [RecordId::HOLE; FEATURES];
        for (place, &feature) in sketch.iter().enumerate() {
            found[place] = self.slot(feature).map_or(RecordId::HOLE, |slot| slot.stands);
        }
        let last = self.last;
        let rank = |id: RecordId| {
            let votes = found.iter().filter(|&&one| one == id).count();
            (votes, std::cmp::Reverse(id.0.abs_diff(last.0)))
        };
        let is_open = |id: &RecordId| !id.is_hole() && *id != own && !self.avoided.contains(id);
        let mut candidates: Vec<_> = found.iter().copied().filter(is_open).collect();
        candidates.sort_by_key(|&id| (std::cmp::Reverse(rank(id)), id));
        candidates.dedup();
        candidates.truncate(CANDIDATES_MAX);
        candidates
    }

    /// A record was chosen, and did.
    pub fn chosen(&mut self, id: RecordId) {
        self.last = id;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(sketches: &[Sketch]) -> Similar {
        let mut similar = Similar::default();
        similar.want(sketches);
        similar
    }

    #[test]
    fn the_last_one_stands_for_a_feature_and_those_with_most_come_first() {
        let (wanted, some) = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 30, 40, 5, 60, 70, 80]);
        let one = [10, 20, 30, 40, 50, 60, 7, 80];
        let mut similar = known(&[wanted]);
        similar.stand(RecordId(11), &wanted);
        similar.stand(RecordId(12), &some);
        similar.stand(RecordId(13), &one);
        assert_eq!(similar.choose(RecordId(99), &wanted), [RecordId(11), RecordId(12)]);
        assert_eq!(similar.choose(RecordId(11), &wanted), [RecordId(12), RecordId(13)]);
        assert_eq!(similar.choose(RecordId(99), &[9; FEATURES]), []);
    }

    #[test]
    fn what_is_avoided_is_not_chosen_and_takes_no_place() {
        let sketch = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut similar = known(&[sketch]);
        similar.avoid(RecordId(11));
        similar.stand(RecordId(11), &sketch);
        assert_eq!(similar.choose(RecordId(99), &sketch), []);
        similar.stand(RecordId(12), &sketch);
        similar.stand(RecordId(11), &sketch);
        assert_eq!(similar.choose(RecordId(99), &sketch), [RecordId(12)]);
    }
}
