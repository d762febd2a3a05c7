//! Bucketised cuckoo hashing of 2-byte signatures and 4-byte record numbers (seed 003, 4.4).
//!
//! A key has two buckets. The second results from the first and the signature, so that entries can
//! be moved without their keys. For the same reason the number of buckets cannot change: the table
//! grows by planes. A plane adds eight slots to each bucket of one group. Groups grow in turn, so
//! the table is never much larger than its entries need, and no step copies more than one group.
//! Wide buckets have more false matches, so the owner rebuilds the table with more buckets once it
//! `is_wide`.
//!
//! `moves` describes how entries move.

use std::collections::HashMap;
use std::io::Result;

use super::group::{BUCKET_BYTES, Group, Quad, SLOTS, Slot, bits};
use super::in_hand::{DisplacedEntry, Room, SignatureFilter};
use super::suggest::Suggest;

/// Maximum of buckets per group: 6 MiB per plane, in complete huge pages.
pub const GROUP_BITS_MAX: u32 = 17;
const GROUP_BITS_MIN: u32 = 6;

/// Larger tables have at least 2 to the power of this groups, so that a step adds at most 3 %.
const GROUPS_BITS: u32 = 5;

/// Entries of the smallest table: 28 KiB.
const CAPACITY_MIN: usize = 1 << 12;

/// A plane is added before more than this share of the slots is used, because insertion gets slow.
const LOAD_MAX: f64 = 0.96;

/// Maximum of entries with equal buckets and signature. If the buckets are full, further such
/// entries go to the stash.
const EQUAL_MAX: u32 = 12;

/// Average number of planes per group from which more buckets are worth a scan of all tables.
const PLANES_WIDE: usize = 4;

/// The known part of an entry's key: its signature, and its lower bucket.
type StashedKey = (u16, u64);

pub struct Table {
    pub(super) group_bits: u32,
    pub(super) groups: Vec<Group>,
    /// Entries without a slot: nearly none, except with keys constructed for this purpose.
    pub(super) stash: HashMap<StashedKey, Vec<u32>>,
    pub(super) len: usize,
    planes: usize,
    pub(super) buckets: u64,
    pub(super) next_group: usize,
    /// Free slots of each group.
    pub(super) free: Vec<u32>,
    /// Buckets that had free slots at the last check.
    pub(super) room: Room,
    /// Added entries that have no slot yet, because their buckets were full.
    pub(super) in_hand: Vec<DisplacedEntry>,
    /// The signatures of `in_hand`, and a few others.
    pub(super) held: SignatureFilter,
    pub(super) random: u64,
}

impl Table {
    /// A table with one plane per bucket when `capacity` entries fill it.
    pub fn with_capacity(capacity: usize) -> Table {
        let capacity = capacity.max(CAPACITY_MIN);
        let buckets = (capacity as f64 / (LOAD_MAX * SLOTS as f64)).ceil() as usize + 1;
        let group_bits = buckets.ilog2().saturating_sub(GROUPS_BITS);
        let group_bits = group_bits.clamp(GROUP_BITS_MIN, GROUP_BITS_MAX);
        let groups = buckets.div_ceil(1 << group_bits);
        Table::from_groups(
            group_bits,
            (0..groups).map(|_| Group::new(1 << group_bits, 1)).collect(),
        )
    }

    /// A table of these groups, with their entries.
    pub(super) fn from_groups(group_bits: u32, groups: Vec<Group>) -> Table {
        let planes: usize = groups.iter().map(Group::planes).sum();
        let free: Vec<u32> = groups.iter().map(|group| group.free() as u32).collect();
        let slots = (planes << group_bits) * SLOTS;
        Table {
            group_bits,
            len: slots - free.iter().map(|&free| free as usize).sum::<usize>(),
            stash: HashMap::new(),
            planes,
            buckets: (groups.len() as u64) << group_bits,
            next_group: planes % groups.len(),
            groups,
            free,
            room: Room::default(),
            in_hand: Vec::new(),
            held: SignatureFilter::default(),
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn slots(&self) -> usize {
        (self.planes << self.group_bits) * SLOTS
    }

    pub fn load(&self) -> f64 {
        self.len as f64 / self.slots() as f64
    }

    pub fn bytes(&self) -> usize {
        (self.planes << self.group_bits) * BUCKET_BYTES
            + self.stash.values().map(|numbers| 64 + numbers.capacity() * 4).sum::<usize>()
    }

    /// Signature, never 0, and first bucket.
    #[inline]
    fn place(&self, hash: u64) -> (u16, u64) {
        let signature = ((hash >> 48) as u16).max(1);
        let index = u128::from(hash << 16) * u128::from(self.buckets);
        (signature, (index >> 64) as u64)
    }

    /// The other bucket of a key. The other bucket of the result is the first one again.
    ///
    /// The sum of both grows with the signature. So the signatures that lead from a bucket to a
    /// range of buckets are themselves a range.
    #[inline]
    pub(super) fn other(&self, signature: u16, bucket: u64) -> u64 {
        let sum = (u64::from(signature) * self.buckets) >> 16;
        if sum >= bucket { sum - bucket } else { sum + self.buckets - bucket }
    }

    /// Group of a bucket, and its place in the group.
    #[inline]
    pub(super) fn split(&self, bucket: u64) -> (usize, usize) {
        ((bucket >> self.group_bits) as usize, (bucket & ((1 << self.group_bits) - 1)) as usize)
    }

    #[inline]
    pub(super) fn signatures(&self, bucket: u64) -> &[Quad] {
        let (group, at) = self.split(bucket);
        self.groups[group].signatures(at)
    }

    /// Prefetch the memory that a look-up of this hash will need.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (signature, first) = self.place(hash);
        self.prefetch_bucket(first);
        self.prefetch_bucket(self.other(signature, first));
    }

    #[inline]
    pub(super) fn prefetch_bucket(&self, bucket: u64) {
        let (group, at) = self.split(bucket);
        self.groups[group].prefetch(at);
    }

    /// Append the numbers of all entries that have the buckets and the signature of a hash.
    #[inline]
    pub fn candidates(&self, hash: u64, found: &mut Vec<u32>) {
        let (signature, first) = self.place(hash);
        let second = self.other(signature, first);
        self.matching(first, signature, found);
        if second != first {
            self.matching(second, signature, found);
        }
        if self.held.may_have(signature) {
            let of_key = |held: &&DisplacedEntry| {
                held.signature == signature && (held.bucket == first || held.bucket == second)
            };
            found.extend(self.in_hand.iter().filter(of_key).map(|held| held.number));
        }
        if !self.stash.is_empty() {
            let stashed = self.stash.get(&(signature, first.min(second)));
            found.extend(stashed.into_iter().flatten());
        }
    }

    #[inline]
    fn matching(&self, bucket: u64, signature: u16, found: &mut Vec<u32>) {
        let (group, at) = self.split(bucket);
        let group = &self.groups[group];
        for (plane, own) in group.signatures(at).iter().enumerate() {
            for slot in bits(own.matches(signature)) {
                found.push(group.number(at, Slot { plane, at: slot }));
            }
        }
    }

    /// Add a new entry.
    ///
    /// Call `settle` after a few additions: it gives slots to the entries whose buckets were full.
    pub fn add(&mut self, hash: u64, number: u32) {
        if self.len as f64 >= self.slots() as f64 * LOAD_MAX {
            self.grow();
        }
        self.len += 1;
        let (signature, first) = self.place(hash);
        let second = self.other(signature, first);
        let (bucket, room) = match (self.room(first), self.room(second)) {
            (Some(room), Some(other)) if room.1 < other.1 => (second, other),
            (Some(room), _) => (first, room),
            (None, Some(room)) => (second, room),
            (None, None) if self.equal_to(signature, first) >= EQUAL_MAX => {
                return self.stash_one(signature, first, number);
            }
            (None, None) => return self.take_in_hand(signature, number, [first, second]),
        };
        self.fill(bucket, room.0, signature, number);
    }

    /// Number of entries with a key's buckets and signature.
    fn equal_to(&self, signature: u16, first: u64) -> u32 {
        let planes = |bucket| self.signatures(bucket).iter();
        let both = planes(first).chain(planes(self.other(signature, first)));
        both.map(|own| own.matches(signature).count_ones()).sum()
    }

    #[inline]
    fn room(&self, bucket: u64) -> Option<(Slot, u32)> {
        let (group, at) = self.split(bucket);
        if self.free[group] == 0 { None } else { self.groups[group].room(at) }
    }

    #[inline]
    fn fill(&mut self, bucket: u64, slot: Slot, signature: u16, number: u32) {
        let (group, at) = self.split(bucket);
        self.groups[group].set(at, slot, signature, number);
        self.free[group] -= 1;
    }

    /// Put an entry into a bucket, if it has room.
    #[inline]
    pub(super) fn put(&mut self, signature: u16, number: u32, bucket: u64) -> bool {
        let room = self.room(bucket);
        if let Some((slot, _)) = room {
            self.fill(bucket, slot, signature, number);
        }
        room.is_some()
    }

    pub(super) fn stash_one(&mut self, signature: u16, bucket: u64, number: u32) {
        let key = (signature, bucket.min(self.other(signature, bucket)));
        self.stash.entry(key).or_default().push(number);
    }

    /// Add eight slots to each bucket of a group.
    pub(super) fn grow(&mut self) {
        let group = self.next_group;
        self.groups[group].add_plane();
        self.free[group] += (SLOTS as u32) << self.group_bits;
        self.planes += 1;
        self.next_group = (group + 1) % self.groups.len();
        self.find_room();
    }
}

impl Suggest for Table {
    fn prefetch(&self, hash: u64) {
        Table::prefetch(self, hash);
    }

    fn may_have(&self, hash: u64, found: &mut Vec<u32>) -> bool {
        self.candidates(hash, found);
        !found.is_empty()
    }

    fn add(&mut self, hash: u64, number: u32) -> Result<()> {
        Table::add(self, hash, number);
        Ok(())
    }

    fn settle(&mut self) {
        Table::settle(self);
    }

    fn len(&self) -> usize {
        Table::len(self)
    }

    fn bytes(&self) -> usize {
        Table::bytes(self)
    }

    fn is_wide(&self) -> bool {
        self.planes >= PLANES_WIDE * self.groups.len()
    }

    fn renew(&mut self, capacity: usize) -> Result<()> {
        // The memory of the old table is freed first.
        *self = Table::with_capacity(0);
        *self = Table::with_capacity(capacity);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes())
    }

    fn filled(capacity: usize, count: u32) -> Table {
        let mut table = Table::with_capacity(capacity);
        for n in 0..count {
            table.add(hash(n.into()), n);
            if n % 32 == 31 {
                table.settle();
            }
        }
        table.settle();
        table
    }

    fn found(table: &Table, hash: u64) -> Vec<u32> {
        let mut found = Vec::new();
        table.candidates(hash, &mut found);
        found
    }

    #[test]
    fn every_entry_is_found_through_all_growth() {
        let table = filled(20_000, 100_000);
        assert!((0..100_000u32).all(|n| found(&table, hash(n.into())).contains(&n)));
        assert_eq!(table.len(), 100_000);
    }

    #[test]
    fn the_table_stays_full_while_it_grows() {
        let mut table = Table::with_capacity(200_000);
        for n in 0..600_000u32 {
            table.add(hash(n.into()), n);
            table.settle();
            assert!(n < 200_000 || table.load() > 0.9, "{n}: {}", table.load());
        }
        assert!(table.stash.is_empty());
        assert!(table.load() > 0.93, "{}", table.load());
    }

    #[test]
    fn few_entries_match_a_key_that_is_not_there() {
        let table = filled(100_000, 100_000);
        let wrong: usize = (0..100_000).map(|n| found(&table, hash(n + 1_000_000)).len()).sum();
        assert!(wrong < 100, "{wrong} of 100000");
    }

    #[test]
    fn any_number_of_entries_may_have_one_hash() {
        let mut table = filled(500, 500);
        let planes = table.planes;
        (1000..3000).for_each(|number| table.add(hash(0), number));
        assert!((1000..3000).all(|number| found(&table, hash(0)).contains(&number)));
        table.settle();
        assert!((1000..3000).all(|number| found(&table, hash(0)).contains(&number)));
        assert!((0..500u32).all(|n| found(&table, hash(n.into())).contains(&n)));
        assert!(table.planes <= planes + table.len() / (SLOTS << table.group_bits));
    }

    #[test]
    fn entries_of_one_bucket_with_many_signatures_do_not_make_the_table_large() {
        let mut table = Table::with_capacity(10_000);
        for signature in 1..2000u64 {
            table.add(signature << 48 | 5, signature as u32);
            table.settle();
        }
        assert!(
            (1..2000u64).all(|s| found(&table, s << 48 | 5).contains(&(s as u32))),
            "an entry is lost"
        );
        assert_eq!(table.planes, table.groups.len());
    }
}
