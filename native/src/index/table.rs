//! Bucketised cuckoo hashing of 2-byte signatures and 4-byte record numbers (seed 003, 4.4).
//!
//! A key has two buckets, and the second follows from the first and the signature, so that entries
//! can be moved without their keys. For the same reason the number of buckets cannot change: the
//! table grows by planes. A plane gives eight more slots to each bucket of one group; groups take
//! turns, so that the table is never much larger than what it holds, and no step copies anything.
//! Wide buckets cost time and false matches, so the owner builds the table anew, with more buckets,
//! once `is_wide` says so.
//!
//! What is free in a table that grows like this is in the groups that grew last. An entry that has to
//! make room for another is chosen by that: it is one whose other bucket is there, if any is. So two
//! or three moves do where a random walk takes dozens, and the entries on their way move in turns,
//! each bucket being asked for before it is needed.

use std::collections::HashMap;
use std::io::Result;

use super::plane::{Bucket, Plane, SLOTS, bits};
use super::suggest::Suggest;

/// Buckets of a group, at most: 6 MiB a plane, which is whole huge pages.
pub const GROUP_BITS_MAX: u32 = 17;
const GROUP_BITS_MIN: u32 = 6;

/// Groups of a larger table are at least 2 to this, so that it grows by 3 % at most.
const GROUPS_BITS: u32 = 5;

/// Entries of the smallest table: 28 KiB.
const CAPACITY_MIN: usize = 1 << 12;

/// A plane is added before more of the slots than this are taken: beyond, insertion gets slow.
const LOAD_MAX: f64 = 0.96;

/// Below this load a key without a free slot is one of many of the same buckets.
const LOAD_MIN_TO_GROW: f64 = 0.90;

/// Moves of an entry, or of those that it displaced, before it is given up for the moment.
const MOVES_MAX: usize = 400;
const GROWTHS_MAX: usize = 4;

/// Entries of one key's buckets with its very signature; more than that go to the stash.
const EQUAL_MAX: usize = 12;

/// Planes of a group, on average, from which on fresh buckets are worth a scan of all tables.
const PLANES_WIDE: usize = 4;

/// What is known of an entry's key: its signature, and the lower one of its buckets.
type Stashed = (u16, u64);

/// Whether a signature may be among some, without a look at each of them.
#[derive(Default)]
struct Held([u64; 16]);

impl Held {
    #[inline]
    fn insert(&mut self, signature: u16) {
        self.0[usize::from(signature >> 6) % 16] |= 1 << (signature % 64);
    }

    #[inline]
    fn may_have(&self, signature: u16) -> bool {
        self.0[usize::from(signature >> 6) % 16] >> (signature % 64) & 1 != 0
    }
}

/// An entry on its way to a bucket.
#[derive(Clone, Copy)]
struct InHand {
    signature: u16,
    number: u32,
    bucket: u64,
}

pub struct Table {
    pub(super) group_bits: u32,
    pub(super) groups: Vec<Vec<Plane>>,
    /// Entries that found no slot: nearly none, but where somebody makes keys to that end.
    pub(super) stash: HashMap<Stashed, Vec<u32>>,
    pub(super) len: usize,
    planes: usize,
    buckets: u64,
    next_group: usize,
    /// Free slots of each group.
    free: Vec<u32>,
    /// Entries that were added and have no slot yet, because their buckets were full.
    in_hand: Vec<InHand>,
    /// The signatures of `in_hand`, and a few others.
    held: Held,
    random: u64,
}

impl Table {
    /// A table whose buckets have one plane when `capacity` entries fill it.
    pub fn with_capacity(capacity: usize) -> Table {
        let capacity = capacity.max(CAPACITY_MIN);
        let buckets = (capacity as f64 / (LOAD_MAX * SLOTS as f64)).ceil() as usize + 1;
        let group_bits = buckets.ilog2().saturating_sub(GROUPS_BITS);
        let group_bits = group_bits.clamp(GROUP_BITS_MIN, GROUP_BITS_MAX);
        let groups = buckets.div_ceil(1 << group_bits);
        let group = |_| vec![Plane::new(1 << group_bits)];
        Table::from_planes(group_bits, (0..groups).map(group).collect())
    }

    /// A table of these planes, with what they hold.
    pub(super) fn from_planes(group_bits: u32, groups: Vec<Vec<Plane>>) -> Table {
        let planes: usize = groups.iter().map(Vec::len).sum();
        let free_in = |group: &Vec<Plane>| group.iter().map(Plane::free).sum::<usize>() as u32;
        let free: Vec<u32> = groups.iter().map(free_in).collect();
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
            in_hand: Vec::new(),
            held: Held::default(),
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
        (self.planes << self.group_bits) * super::plane::BUCKET_BYTES
            + self.stash.values().map(|numbers| 64 + numbers.capacity() * 4).sum::<usize>()
    }

    /// Signature, never 0, and first bucket.
    #[inline]
    fn place(&self, hash: u64) -> (u16, u64) {
        let signature = ((hash >> 48) as u16).max(1);
        let index = u128::from(hash << 16) * u128::from(self.buckets);
        (signature, (index >> 64) as u64)
    }

    /// The other bucket of a key; that of the other is the first again.
    #[inline]
    fn other(&self, signature: u16, bucket: u64) -> u64 {
        let mixed = u64::from(signature).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let sum = ((u128::from(mixed) * u128::from(self.buckets)) >> 64) as u64;
        if sum >= bucket { sum - bucket } else { sum + self.buckets - bucket }
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
        self.prefetch_bucket(first);
        self.prefetch_bucket(self.other(signature, first));
    }

    #[inline]
    fn prefetch_bucket(&self, bucket: u64) {
        self.planes_of(bucket).for_each(prefetch);
    }

    /// Ask for the part of a bucket that was added last: most of what is free is there.
    #[inline]
    fn prefetch_room(&self, bucket: u64) {
        let (group, at) = self.split(bucket);
        if let Some(plane) = self.groups[group].last() {
            prefetch(&plane[at]);
            prefetch_numbers(&plane[at]);
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
        if self.held.may_have(signature) {
            let of_key = |held: &&InHand| {
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
        for plane in self.planes_of(bucket) {
            for slot in bits(plane.matches(signature)) {
                found.push(plane.numbers[slot]);
            }
        }
    }

    /// Add an entry that is not there; `equal` others have its buckets and its signature.
    ///
    /// Call `settle` after a few: it gives slots to those that found their buckets full.
    pub fn add(&mut self, hash: u64, number: u32, equal: usize) {
        if self.len as f64 >= self.slots() as f64 * LOAD_MAX {
            self.grow();
        }
        self.len += 1;
        let (signature, first) = self.place(hash);
        let second = self.other(signature, first);
        if equal >= EQUAL_MAX {
            return self.stash.entry((signature, first.min(second))).or_default().push(number);
        }
        let bucket = if self.free_in(first) >= self.free_in(second) { first } else { second };
        let added = InHand { signature, number, bucket };
        if !self.put(added) {
            self.held.insert(signature);
            self.in_hand.push(added);
            // `displace` is going to look at it.
            self.planes_of(bucket).for_each(prefetch_numbers);
        }
    }

    fn free_in(&self, bucket: u64) -> u32 {
        if self.free[self.split(bucket).0] == 0 {
            return 0;
        }
        self.planes_of(bucket).map(|plane| plane.matches(0).count_ones()).sum()
    }

    /// Give a slot to each entry in hand, moving others to their other buckets as far as needed.
    pub fn settle(&mut self) {
        if self.in_hand.is_empty() {
            return;
        }
        self.settle_all();
        self.held = Held::default();
    }

    fn settle_all(&mut self) {
        let (mut moves, mut growths) = (0, 0);
        while !self.in_hand.is_empty() {
            for at in (0..self.in_hand.len()).rev() {
                let held = self.in_hand[at];
                if self.put(held) {
                    self.in_hand.swap_remove(at);
                } else {
                    let next = self.displace(held);
                    self.prefetch_room(next.bucket);
                    self.in_hand[at] = next;
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
        for InHand { signature, number, bucket } in std::mem::take(&mut self.in_hand) {
            let key = (signature, bucket.min(self.other(signature, bucket)));
            self.stash.entry(key).or_default().push(number);
        }
    }

    fn put(&mut self, held: InHand) -> bool {
        let (group, at) = self.split(held.bucket);
        if self.free[group] == 0 {
            return false;
        }
        for plane in self.groups[group].iter_mut().rev() {
            let own = &mut plane[at];
            if let Some(slot) = bits(own.matches(0)).next() {
                own.signatures[slot] = held.signature;
                own.numbers[slot] = held.number;
                self.free[group] -= 1;
                return true;
            }
        }
        false
    }

    /// Take the place of an entry of a full bucket; returns that entry, on its way to its other one.
    ///
    /// It is one of those whose other bucket is in the group with the most room, or in one with a
    /// free slot in every bucket. The plane that was added last is looked at first: it is in cache.
    fn displace(&mut self, held: InHand) -> InHand {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let turn = (self.random >> 32) as usize;
        let (group, at) = self.split(held.bucket);
        let enough = 1 << self.group_bits;
        let (mut chosen, mut target, mut room) = ((0, 0), 0, None);
        for (number, plane) in self.groups[group].iter().enumerate().rev() {
            let signatures = &plane[at].signatures;
            for step in 0..SLOTS {
                let slot = (step + turn) % SLOTS;
                let other = self.other(signatures[slot], held.bucket);
                let free = Some(self.free[self.split(other).0]);
                if free > room {
                    (chosen, target, room) = ((number, slot), other, free);
                }
            }
            if room >= Some(enough) {
                break;
            }
        }
        let own = &mut self.groups[group][chosen.0][at];
        InHand {
            signature: std::mem::replace(&mut own.signatures[chosen.1], held.signature),
            number: std::mem::replace(&mut own.numbers[chosen.1], held.number),
            bucket: target,
        }
    }

    fn grow(&mut self) {
        self.groups[self.next_group].push(Plane::new(1 << self.group_bits));
        self.free[self.next_group] += (SLOTS as u32) << self.group_bits;
        self.next_group = (self.next_group + 1) % self.groups.len();
        self.planes += 1;
    }
}

/// Ask for a bucket's signatures.
#[inline]
fn prefetch(bucket: &Bucket) {
    prefetch_line(&bucket.signatures);
}

/// Ask for a bucket's last numbers: half of all buckets reach into the next cache line.
#[inline]
fn prefetch_numbers(bucket: &Bucket) {
    prefetch_line(&bucket.numbers[SLOTS - 1]);
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line<T>(of: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; the address is that of a reference.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(of).cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_line<T>(_: &T) {}

impl Suggest for Table {
    fn prefetch(&self, hash: u64) {
        Table::prefetch(self, hash);
    }

    fn may_have(&self, hash: u64, found: &mut Vec<u32>) -> bool {
        self.candidates(hash, found);
        !found.is_empty()
    }

    fn search(&mut self, _: u64, _: &mut Vec<u32>) -> Result<()> {
        Ok(())
    }

    fn note(&mut self, _: u64) {}

    fn add(&mut self, hash: u64, number: u32, equal: usize) -> Result<()> {
        Table::add(self, hash, number, equal);
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

    fn reads(&self) -> u64 {
        0
    }

    fn is_wide(&self) -> bool {
        self.planes >= PLANES_WIDE * self.groups.len()
    }

    fn renew(&mut self, capacity: usize) -> Result<()> {
        // The old one goes first.
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
            table.add(hash(n.into()), n, 0);
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
            table.add(hash(n.into()), n, 0);
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
        (1000..3000).for_each(|number| table.add(hash(0), number, number as usize - 1000));
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
            table.add(signature << 48 | 5, signature as u32, 0);
            table.settle();
        }
        assert!(
            (1..2000u64).all(|s| found(&table, s << 48 | 5).contains(&(s as u32))),
            "an entry is lost"
        );
        assert_eq!(table.planes, table.groups.len());
    }
}
