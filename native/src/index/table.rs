//! Bucketised cuckoo hashing of 2-byte signatures and 4-byte record numbers (seed 003, 4.4).
//!
//! A key has two buckets, and the second follows from the first and the signature, so that entries
//! can be moved without their keys. For the same reason the number of buckets cannot change: the
//! table grows by planes. A plane gives eight more slots to each bucket of one group; groups take
//! turns, so that the table is never much larger than what it holds, and no step copies anything.
//! Wide buckets cost time and false matches, so the owner builds the table anew, with more buckets,
//! once `is_wide` says so.

use std::collections::HashMap;

pub const SLOTS: usize = 8;
pub const BUCKET_BYTES: usize = SLOTS * 6;

/// Buckets of a group, at most: 768 KiB a plane.
pub const GROUP_BITS_MAX: u32 = 14;
const GROUP_BITS_MIN: u32 = 6;

/// Groups of a larger table are at least 2 to this, so that it grows by 3 % at most.
const GROUPS_BITS: u32 = 5;

/// Entries of the smallest table: 28 KiB.
const CAPACITY_MIN: usize = 1 << 12;

/// A plane is added before more of the slots than this are taken: beyond, insertion gets slow.
const LOAD_MAX: f64 = 0.96;

/// Below this load a key without a free slot is one of many of the same buckets.
const LOAD_MIN_TO_GROW: f64 = 0.90;
const KICKS_MAX: usize = 400;
const GROWTHS_MAX: usize = 4;

/// Entries of one key's buckets with its very signature; more than that go to the stash.
const EQUAL_MAX: usize = 12;

/// Planes of a group, on average, from which on fresh buckets are worth a scan of all tables.
const PLANES_WIDE: usize = 4;

#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub struct Bucket {
    /// 0 where a slot is free.
    pub signatures: [u16; SLOTS],
    pub numbers: [u32; SLOTS],
}

impl Bucket {
    /// A bit for each slot with this signature.
    #[inline]
    fn matches(&self, signature: u16) -> u32 {
        let mut mask = 0;
        for (at, &own) in self.signatures.iter().enumerate() {
            mask |= u32::from(own == signature) << at;
        }
        mask
    }
}

pub type Plane = Box<[Bucket]>;

/// What is known of an entry's key: its signature, and the lower one of its buckets.
type Stashed = (u16, u64);

pub struct Table {
    pub(super) group_bits: u32,
    pub(super) groups: Vec<Vec<Plane>>,
    /// Entries that found no slot: nearly none, but where somebody makes keys to that end.
    pub(super) stash: HashMap<Stashed, Vec<u32>>,
    pub(super) len: usize,
    planes: usize,
    next_group: usize,
    random: u64,
}

/// Positions of the bits of a mask.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (at < 32).then_some(at)
    })
}

impl Table {
    /// A table whose buckets have one plane when `capacity` entries fill it.
    pub fn with_capacity(capacity: usize) -> Table {
        let capacity = capacity.max(CAPACITY_MIN);
        let buckets = (capacity as f64 / (LOAD_MAX * SLOTS as f64)).ceil() as usize + 1;
        let group_bits = buckets.ilog2().saturating_sub(GROUPS_BITS);
        let group_bits = group_bits.clamp(GROUP_BITS_MIN, GROUP_BITS_MAX);
        let groups = buckets.div_ceil(1 << group_bits);
        let plane = || vec![Bucket::default(); 1 << group_bits].into_boxed_slice();
        Table::from_planes(group_bits, (0..groups).map(|_| vec![plane()]).collect())
    }

    /// A table of these planes, with what they hold.
    pub(super) fn from_planes(group_bits: u32, groups: Vec<Vec<Plane>>) -> Table {
        let planes: usize = groups.iter().map(Vec::len).sum();
        let taken = |plane: &Plane| -> usize {
            plane.iter().map(|bucket| SLOTS - bucket.matches(0).count_ones() as usize).sum()
        };
        let len = groups.iter().flatten().map(taken).sum();
        let next_group = planes % groups.len();
        let random = 0x9E37_79B9_7F4A_7C15;
        Table { group_bits, groups, stash: HashMap::new(), len, planes, next_group, random }
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

    pub fn is_wide(&self) -> bool {
        self.planes >= PLANES_WIDE * self.groups.len()
    }

    fn buckets(&self) -> u64 {
        (self.groups.len() as u64) << self.group_bits
    }

    /// Signature, never 0, and first bucket.
    #[inline]
    fn place(&self, hash: u64) -> (u16, u64) {
        let signature = ((hash >> 48) as u16).max(1);
        let index = u128::from(hash << 16) * u128::from(self.buckets());
        (signature, (index >> 64) as u64)
    }

    /// The other bucket of a key; that of the other is the first again.
    #[inline]
    fn other(&self, signature: u16, bucket: u64) -> u64 {
        let mixed = u64::from(signature).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let sum = ((u128::from(mixed) * u128::from(self.buckets())) >> 64) as u64;
        if sum >= bucket { sum - bucket } else { sum + self.buckets() - bucket }
    }

    #[inline]
    fn split(&self, bucket: u64) -> (usize, usize) {
        ((bucket >> self.group_bits) as usize, (bucket & ((1 << self.group_bits) - 1)) as usize)
    }

    #[inline]
    fn planes_of(&self, bucket: u64) -> impl Iterator<Item = &Bucket> {
        let (group, at) = self.split(bucket);
        self.groups[group].iter().map(move |plane| &plane[at])
    }

    /// Ask for the memory that a look-up of this hash will need.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (signature, first) = self.place(hash);
        for bucket in [first, self.other(signature, first)] {
            for plane in self.planes_of(bucket) {
                prefetch(plane);
            }
        }
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
        if !self.stash.is_empty() {
            let stashed = self.stash.get(&(signature, first.min(second)));
            found.extend(stashed.into_iter().flatten());
        }
    }

    #[inline]
    fn matching(&self, bucket: u64, signature: u16, found: &mut Vec<u32>) {
        for plane in self.planes_of(bucket) {
            for slot in bits(plane.matches(signature)) {
                found.push(plane.numbers[slot]);
            }
        }
    }

    /// Add an entry; false, and no change, if it is there. `scratch` saves an allocation.
    pub fn add(&mut self, hash: u64, number: u32, scratch: &mut Vec<u32>) -> bool {
        scratch.clear();
        self.candidates(hash, scratch);
        if scratch.contains(&number) {
            return false;
        }
        if self.len as f64 >= self.slots() as f64 * LOAD_MAX {
            self.grow();
        }
        self.len += 1;
        let (signature, first) = self.place(hash);
        let second = self.other(signature, first);
        if scratch.len() >= EQUAL_MAX {
            self.stash.entry((signature, first.min(second))).or_default().push(number);
        } else if self.free_in(first) >= self.free_in(second) {
            self.settle(signature, number, first);
        } else {
            self.settle(signature, number, second);
        }
        true
    }

    fn free_in(&self, bucket: u64) -> u32 {
        self.planes_of(bucket).map(|plane| plane.matches(0).count_ones()).sum()
    }

    /// Put an entry into a bucket, moving others to their other buckets as far as needed.
    fn settle(&mut self, mut signature: u16, mut number: u32, mut bucket: u64) {
        let mut growths = 0;
        loop {
            for _ in 0..KICKS_MAX {
                if self.put(signature, number, bucket) {
                    return;
                }
                (signature, number) = self.exchange(signature, number, bucket);
                bucket = self.other(signature, bucket);
            }
            if self.load() < LOAD_MIN_TO_GROW || growths == GROWTHS_MAX {
                let key = (signature, bucket.min(self.other(signature, bucket)));
                return self.stash.entry(key).or_default().push(number);
            }
            self.grow();
            growths += 1;
        }
    }

    fn put(&mut self, signature: u16, number: u32, bucket: u64) -> bool {
        let (group, at) = self.split(bucket);
        for plane in &mut self.groups[group] {
            let own = &mut plane[at];
            if let Some(slot) = bits(own.matches(0)).next() {
                own.signatures[slot] = signature;
                own.numbers[slot] = number;
                return true;
            }
        }
        false
    }

    /// Take the place of an entry of a full bucket, chosen at random; returns that entry.
    fn exchange(&mut self, signature: u16, number: u32, bucket: u64) -> (u16, u32) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (group, at) = self.split(bucket);
        let planes = &mut self.groups[group];
        let chosen = (self.random >> 32) as usize % (planes.len() * SLOTS);
        let own = &mut planes[chosen / SLOTS][at];
        let slot = chosen % SLOTS;
        (
            std::mem::replace(&mut own.signatures[slot], signature),
            std::mem::replace(&mut own.numbers[slot], number),
        )
    }

    fn grow(&mut self) {
        let plane = vec![Bucket::default(); 1 << self.group_bits].into_boxed_slice();
        self.groups[self.next_group].push(plane);
        self.next_group = (self.next_group + 1) % self.groups.len();
        self.planes += 1;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch(bucket: &Bucket) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; the address is that of a reference.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(bucket).cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch(_: &Bucket) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes())
    }

    fn filled(capacity: usize, count: u32) -> Table {
        let mut table = Table::with_capacity(capacity);
        let mut scratch = Vec::new();
        for n in 0..count {
            assert!(table.add(hash(n.into()), n, &mut scratch));
        }
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
    fn what_is_there_is_not_added_again() {
        let mut table = filled(1000, 1000);
        assert!(!table.add(hash(7), 7, &mut Vec::new()));
        assert_eq!(table.len(), 1000);
    }

    #[test]
    fn the_table_stays_full_while_it_grows() {
        let mut table = Table::with_capacity(200_000);
        let mut scratch = Vec::new();
        for n in 0..600_000u32 {
            table.add(hash(n.into()), n, &mut scratch);
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
        let mut scratch = Vec::new();
        assert!((1000..3000).all(|number| table.add(hash(0), number, &mut scratch)));
        assert!((1000..3000).all(|number| found(&table, hash(0)).contains(&number)));
        assert!((0..500u32).all(|n| found(&table, hash(n.into())).contains(&n)));
        assert!(table.planes <= planes + table.len() / (SLOTS << table.group_bits));
    }

    #[test]
    fn entries_of_one_bucket_with_many_signatures_do_not_make_the_table_large() {
        let mut table = Table::with_capacity(10_000);
        let mut scratch = Vec::new();
        for signature in 1..2000u64 {
            table.add(signature << 48 | 5, signature as u32, &mut scratch);
        }
        assert!(
            (1..2000u64).all(|s| found(&table, s << 48 | 5).contains(&(s as u32))),
            "an entry is lost"
        );
        assert_eq!(table.planes, table.groups.len());
    }
}
