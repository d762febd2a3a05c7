//! How entries of the table make room for others.
//!
//! In a table that grows by groups, most free slots are in the groups that grew last. So the
//! displaced entry is one whose other bucket is in these groups, if the bucket has such an entry; a
//! range of signatures identifies them. So two or three moves are enough, while a random walk takes
//! dozens. Entries without a slot move in turns, and a move's memory is prefetched one turn
//! earlier.

use super::group::{SLOTS, Slot, bits};
use super::in_hand::{DisplacedEntry, Room, SignatureFilter, Victim};
use super::table::Table;

/// Below this load, a key finds no free slot only if many keys have the same buckets.
const LOAD_MIN_TO_GROW: f64 = 0.90;

/// Maximum of moves of an entry, and of the entries that it displaced, before the table grows or
/// the entry is stashed.
const MOVES_MAX: usize = 400;
const GROWTHS_MAX: usize = 4;

impl Table {
    /// Note an entry whose buckets are both full.
    pub(super) fn take_in_hand(&mut self, signature: u16, number: u32, buckets: [u64; 2]) {
        let leading = buckets.iter().find_map(|&at| Some((at, self.leading(at)?)));
        let (bucket, victim) = leading.unwrap_or_else(|| (buckets[0], self.any(buckets[0])));
        self.held.insert(signature);
        self.prefetch_move(bucket, victim);
        self.in_hand.push(DisplacedEntry { signature, number, bucket, victim });
    }

    /// Give a slot to each entry in hand. Move other entries if necessary.
    pub fn settle(&mut self) {
        if self.in_hand.is_empty() {
            return;
        }
        self.settle_all();
        self.held = SignatureFilter::default();
        self.find_room();
    }

    /// Note the run of buckets with room: the groups that grew last.
    pub(super) fn find_room(&mut self) {
        let groups = self.groups.len();
        let end = self.next_group + groups;
        let has_room = |group: &usize| self.free[group % groups] >> self.group_bits > 0;
        let count = (self.next_group..end).rev().take_while(has_room).count();
        self.room = Room {
            start: (((end - count) % groups) as u64) << self.group_bits,
            buckets: (count as u64) << self.group_bits,
        };
    }

    fn settle_all(&mut self) {
        let (mut moves, mut growths) = (0, 0);
        while !self.in_hand.is_empty() {
            for at in (0..self.in_hand.len()).rev() {
                match self.move_on(self.in_hand[at]) {
                    Some(held) => self.in_hand[at] = held,
                    None => _ = self.in_hand.swap_remove(at),
                }
            }
            moves += 1;
            if moves == MOVES_MAX {
                if self.load() < LOAD_MIN_TO_GROW || growths == GROWTHS_MAX {
                    return self.stash_all();
                }
                self.grow();
                growths += 1;
                moves = 0;
            }
        }
    }

    fn stash_all(&mut self) {
        for DisplacedEntry { signature, number, bucket, .. } in std::mem::take(&mut self.in_hand) {
            self.stash_one(signature, bucket, number);
        }
    }

    /// Put an entry into its bucket. If the bucket is full, it replaces another entry. Returns that
    /// entry if its other bucket is also full.
    fn move_on(&mut self, held: DisplacedEntry) -> Option<DisplacedEntry> {
        let DisplacedEntry { mut signature, mut number, mut bucket, victim } = held;
        if self.put(signature, number, bucket) {
            return None;
        }
        let (group, at) = self.split(bucket);
        let (own, displaced) = self.groups[group].entry(at, victim.slot);
        if own == victim.signature {
            self.groups[group].set(at, victim.slot, signature, number);
            (signature, number, bucket) = (own, displaced, victim.target);
            if self.put(signature, number, bucket) {
                return None;
            }
        }
        let victim = self.leading(bucket).unwrap_or_else(|| self.any(bucket));
        self.prefetch_move(bucket, victim);
        Some(DisplacedEntry { signature, number, bucket, victim })
    }

    /// Prefetch the memory that the next `move_on` needs.
    #[inline]
    fn prefetch_move(&self, bucket: u64, victim: Victim) {
        let (group, at) = self.split(bucket);
        self.groups[group].prefetch_number(at, victim.slot);
        self.prefetch_bucket(victim.target);
    }

    /// An entry of a full bucket whose other bucket is among those with room.
    #[inline]
    fn leading(&self, bucket: u64) -> Option<Victim> {
        let Room { start, buckets } = self.room;
        if self.has_room(bucket) || buckets == 0 {
            return None;
        }
        let signatures_per_bucket = 65_536.0 / self.buckets as f64;
        let sum = start + bucket;
        let sum = if sum >= self.buckets { sum - self.buckets } else { sum };
        // The signatures at both ends may lead past the range.
        let first = (sum as f64 * signatures_per_bucket) as u16;
        let more = (buckets as f64 * signatures_per_bucket + 1.0) as u16;
        for (plane, own) in self.signatures(bucket).iter().enumerate() {
            for at in bits(own.within(first, more)) {
                let signature = own.signature(at);
                let target = self.other(signature, bucket);
                if self.has_room(target) {
                    return Some(Victim { slot: Slot { plane, at }, signature, target });
                }
            }
        }
        None
    }

    #[inline]
    fn has_room(&self, bucket: u64) -> bool {
        let Room { start, buckets } = self.room;
        let unwrapped = if bucket >= start { bucket } else { bucket + self.buckets };
        unwrapped - start < buckets
    }

    /// Any entry of a full bucket.
    fn any(&mut self, bucket: u64) -> Victim {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let turn = (self.random >> 32) as usize;
        let signatures = self.signatures(bucket);
        let slot = Slot { plane: (turn / SLOTS) % signatures.len(), at: turn % SLOTS };
        let signature = signatures[slot.plane].signature(slot.at);
        Victim { slot, signature, target: self.other(signature, bucket) }
    }
}
