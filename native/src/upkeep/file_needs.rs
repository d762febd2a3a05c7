//! How many bytes of each recipe node are needed: columns of little-endian u64, in memory and in a
//! file. Items after the end of a column count as zeros.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use super::mark_set::{Marks, digest};
use super::recipe_nodes::{NamedRecords, each_node};
use crate::format::bytes::u64s;
use crate::format::ids::{ContainerNumber, Fingerprint, RecordId};
use crate::format::table_entry::{TableEntry, entries};
use crate::store::bases::Bases;
use crate::store::why::{StorePart, Unreadable};

/// A digest of the fingerprints of the entries of a table with a length that is not 0.
pub fn digest_needed(table: &[u8], lengths: &[u8], seed: u64) -> u64 {
    let mut digest = Xxh3::with_seed(seed);
    for (entry, length) in entries(table).zip(u64s(lengths)) {
        if length > 0 {
            digest.update(&TableEntry::unchecked(entry).fingerprint);
        }
    }
    digest.digest()
}

#[derive(Clone, Default)]
struct Column {
    lengths: Vec<u64>,
    fresh: Vec<u8>,
}

/// How many bytes of each node are needed, and which nodes are fresh: more of them is needed than
/// when they were last taken.
#[derive(Clone)]
pub struct Needs {
    columns: BTreeMap<ContainerNumber, Column>,
    /// Where fresh nodes are looked for next: a container, and a byte of `fresh`.
    next: (ContainerNumber, usize),
}

impl Needs {
    /// Containers with so many nodes each, none of them needed.
    pub fn of(counts: impl IntoIterator<Item = (ContainerNumber, usize)>) -> Needs {
        let column =
            |count: usize| Column { lengths: vec![0; count], fresh: vec![0; count.div_ceil(8)] };
        let columns = counts.into_iter().map(|(number, count)| (number, column(count)));
        Needs { columns: columns.collect(), next: Needs::BEGIN }
    }

    const BEGIN: (ContainerNumber, usize) = (ContainerNumber(0), 0);

    /// Note that at least the first `length` bytes of a node are needed. Ids of no node are
    /// ignored.
    pub fn need(&mut self, id: RecordId, length: u64) {
        let ordinal = id.place();
        let Some(own) = self.columns.get_mut(&id.container()) else {
            return;
        };
        if let Some(known) = own.lengths.get_mut(ordinal).filter(|known| length > **known) {
            *known = length;
            own.fresh[ordinal / 8] |= 1 << (ordinal % 8);
        }
    }

    pub fn needed(&self, id: RecordId) -> u64 {
        let own = self.columns.get(&id.container());
        own.and_then(|own| own.lengths.get(id.place())).copied().unwrap_or(0)
    }

    pub fn lengths(&self, number: ContainerNumber) -> &[u64] {
        self.columns.get(&number).map_or(&[], |own| &own.lengths)
    }

    pub fn fresh(&self, number: ContainerNumber) -> &[u8] {
        self.columns.get(&number).map_or(&[], |own| &own.fresh)
    }

    /// Continues with the result of an earlier run for a container: the lengths of each node that
    /// stubs `wanted`, the lengths that were `needed`, and the nodes that it had not read. If more of
    /// a node is needed now, the node is fresh. Returns false, and changes nothing, if more was
    /// wanted than is needed now, or if the container has fewer nodes.
    pub fn resume(
        &mut self,
        number: ContainerNumber,
        wanted: &[u8],
        needed: &[u8],
        fresh: &[u8],
    ) -> bool {
        let Some(own) = self.columns.get_mut(&number) else {
            return needed.iter().all(|&byte| byte == 0);
        };
        let now = own.lengths.iter().copied().chain(std::iter::repeat(0));
        let is_less = u64s(wanted).zip(now).any(|(then, now)| then > now);
        if is_less || u64s(needed).skip(own.lengths.len()).any(|then| then > 0) {
            return false;
        }
        let then = u64s(needed).chain(std::iter::repeat(0));
        for (at, (length, then)) in own.lengths.iter_mut().zip(then).enumerate() {
            let was_fresh = fresh.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
            let bit = 1 << (at % 8);
            if *length > then || was_fresh {
                own.fresh[at / 8] |= bit;
            } else {
                own.fresh[at / 8] &= !bit;
            }
            *length = then.max(*length);
        }
        true
    }

    /// The next fresh nodes of a container, `most` at most: ordinals, and how many bytes of each are
    /// needed. They are fresh again when more of them is needed. The search continues behind the
    /// nodes that were taken last, and then from the first container on. None if no node is fresh.
    pub fn take_fresh(&mut self, most: usize) -> Option<(ContainerNumber, Vec<(u32, u64)>)> {
        self.take_from(self.next, most).or_else(|| self.take_from(Needs::BEGIN, most))
    }

    fn take_from(
        &mut self,
        (start, byte): (ContainerNumber, usize),
        most: usize,
    ) -> Option<(ContainerNumber, Vec<(u32, u64)>)> {
        for (&number, own) in self.columns.range_mut(start..) {
            let (mut at, mut taken) = (if number == start { byte } else { 0 }, Vec::new());
            while taken.len() < most && at < own.fresh.len() {
                if own.fresh[at] == 0 {
                    at += 1;
                    continue;
                }
                let place = at * 8 + own.fresh[at].trailing_zeros() as usize;
                own.fresh[at] &= own.fresh[at] - 1;
                taken.push((place as u32, own.lengths[place]));
            }
            if !taken.is_empty() {
                self.next = (number, at);
                return Some((number, taken));
            }
        }
        None
    }

    /// The same for the same lengths.
    pub fn digest(&self) -> Fingerprint {
        digest(self.columns.iter().map(|(&number, own)| {
            let lengths = own.lengths.iter().flat_map(|one| one.to_le_bytes());
            (number, lengths.collect::<Vec<_>>())
        }))
    }
}

/// Nodes that were taken by one [`read_fresh`].
#[derive(Default)]
pub struct NodesRead {
    pub taken: usize,
    pub nodes: usize,
    /// In the needed parts of the nodes that were read.
    pub rows: usize,
    pub unreadable: Vec<Unreadable>,
}

/// What is needed: the nodes of recipes, how much of each, and the chunks.
pub struct Needed<'a> {
    pub nodes: &'a mut Marks,
    pub needs: &'a mut Needs,
    pub chunks: &'a mut Marks,
}

impl Needed<'_> {
    /// Reads the next fresh nodes, `most` at most, and marks what their needed part names.
    /// Marks nothing for an unreadable node.
    pub fn read_fresh(&mut self, recipes: &Bases, most: usize) -> NodesRead {
        let mut read = NodesRead::default();
        let Some((number, fresh)) = self.needs.take_fresh(most) else { return read };
        read.taken = fresh.len();
        each_node(recipes, number, &fresh, |at, named| match named {
            Ok(named) => {
                read.nodes += 1;
                read.rows += named.ids.len();
                self.mark(&named);
            }
            Err(why) => {
                let part = StorePart::Node(RecordId::new(number, fresh[at].0));
                read.unreadable.push(Unreadable { part, why });
            }
        });
        read
    }

    /// Marks what the needed part of a node names, by its payload. Returns how many rows that has;
    /// None if the payload is not a node.
    pub fn add_node(&mut self, id: RecordId, payload: &[u8]) -> Option<usize> {
        let named = NamedRecords::by(payload, self.needs.needed(id))?;
        self.mark(&named);
        Some(named.ids.len())
    }

    fn mark(&mut self, named: &NamedRecords) {
        for id in named.chunks() {
            self.chunks.mark(id);
        }
        for (id, end) in named.nodes() {
            self.nodes.mark(id);
            self.needs.need(id, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_nodes_are_taken_in_order_and_once() {
        let mut needs = Needs::of([(ContainerNumber(1), 20), (ContainerNumber(2), 9)]);
        let id = |number, ordinal| RecordId::new(ContainerNumber(number), ordinal);
        assert!(needs.take_fresh(3).is_none());
        for (number, ordinal) in [(2, 8), (1, 19), (1, 3), (1, 2), (1, 0), (1, 20), (3, 0)] {
            needs.need(id(number, ordinal), 5);
        }
        let ordinals = |taken: Option<(ContainerNumber, Vec<(u32, u64)>)>| {
            taken.map(|(number, nodes)| (number.0, nodes.iter().map(|one| one.0).collect()))
        };
        assert_eq!(ordinals(needs.take_fresh(2)), Some((1, vec![0, 2])));
        needs.need(id(1, 0), 6);
        needs.need(id(1, 2), 5);
        assert_eq!(needs.take_fresh(2), Some((ContainerNumber(1), vec![(0, 6), (3, 5)])));
        assert_eq!(ordinals(needs.take_fresh(9)), Some((1, vec![19])));
        needs.need(id(1, 2), 6);
        assert_eq!(ordinals(needs.take_fresh(9)), Some((2, vec![8])));
        assert_eq!(ordinals(needs.take_fresh(9)), Some((1, vec![2])));
        assert!(needs.take_fresh(9).is_none());
    }
}
