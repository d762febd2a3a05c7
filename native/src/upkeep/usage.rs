//! What groups of files take of a store: the records that each needs, and those that no other does.
//!
//! Groups are taken in one after the other, so that a record needs no more than a word: which group
//! came upon it last, and whether another one had before. 12 bytes a record.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::format::ids::{ContainerNumber, RecordId};
use crate::format::recipe::LEVELS_MAX;
use crate::format::record_header::record_bytes;
use crate::format::table_entry::{EntryBytes, FORWARDS_MAX, State, TableEntry, entries, set_state};
use crate::store::bases::Bases;
use crate::store::why::{StorePart, Unreadable};
use crate::upkeep::recipe_nodes::{NamedRecords, each_node};

/// A group of files, by the order in which groups are taken in.
pub type Group = u32;

/// Set in [`Record::seen`] where several groups need the record.
const SHARED: u32 = 1 << 31;

/// Of the file systems that volumes are on.
pub const BLOCK_BYTES: u64 = 4096;

/// Groups are fewer.
pub const GROUPS_MAX: u32 = SHARED - 2;

#[derive(Clone, Copy, Default)]
struct Record {
    /// In containers, second copies included.
    bytes: u32,
    /// 0 where no group needs it, else one more than the last group that does.
    seen: u32,
    references: u32,
}

impl Record {
    fn is_only_of(self, group: Group) -> bool {
        self.seen == group + 1
    }

    fn last(self) -> Option<Group> {
        (self.seen & !SHARED).checked_sub(1)
    }
}

/// All records of chunks, or all of recipes.
#[derive(Default)]
pub struct Records {
    containers: BTreeMap<ContainerNumber, Vec<Record>>,
    /// The record that a merged one leads to, or that one leans on.
    leads: HashMap<RecordId, RecordId>,
}

/// What a group needs, of one kind.
#[derive(Clone, Copy, Default)]
pub struct NeedTotals {
    pub records: u64,
    pub bytes: u64,
    /// Those of records that no group before it needs.
    pub first_bytes: u64,
    /// The share of its references in the bytes of records: these are split among all references.
    pub share_bytes: f64,
    /// References to ids of no record.
    pub strays: u64,
    /// What its files would take if they were plain, as far as leaves of recipes say.
    pub plain_bytes: u64,
}

/// The files that are gone.
#[derive(Clone, Copy)]
pub enum Gone {
    Nothing,
    One(Group),
    /// All but those of the last group.
    AllBut(Group),
}

impl Records {
    /// Adds a container, by its table.
    pub fn add_table(&mut self, number: ContainerNumber, table: &[u8], seed: u64) {
        let mut records = Vec::with_capacity(table.len() / size_of::<EntryBytes>());
        for (ordinal, entry) in (0..).zip(entries(table)) {
            let entry = TableEntry::sound(entry, seed);
            let stored = match entry {
                Some(entry) if entry.state == State::MERGED => {
                    self.leads.insert(RecordId::new(number, ordinal), entry.target);
                    0
                }
                Some(entry) if entry.state != State::TOMBSTONE => {
                    if entry.leans() && entry.state == State::LIVE {
                        self.leads.insert(RecordId::new(number, ordinal), entry.target);
                    }
                    entry.stored_length
                }
                _ => {
                    records.push(Record::default());
                    continue;
                }
            };
            let bytes = record_bytes(u64::from(stored)) as u32;
            records.push(Record { bytes, ..Record::default() });
        }
        self.containers.insert(number, records);
    }

    /// Adds second copies of these records, by the table of their container.
    pub fn add_copies(&mut self, table: &[u8], seed: u64) {
        let sound = entries(table).filter_map(|entry| TableEntry::sound(entry, seed));
        for entry in sound.filter(|entry| entry.state == State::LIVE) {
            if let Some(record) = self.get_mut(entry.target) {
                record.bytes += record_bytes(u64::from(entry.stored_length)) as u32;
            }
        }
    }

    fn get(&self, id: RecordId) -> Record {
        let container = self.containers.get(&id.container());
        container.and_then(|own| own.get(id.place())).copied().unwrap_or_default()
    }

    fn get_mut(&mut self, id: RecordId) -> Option<&mut Record> {
        self.containers.get_mut(&id.container())?.get_mut(id.place())
    }

    /// A group refers to a record, so many times, and to those that it leads to. Notes that; or
    /// adds its share, once all references of all groups are noted.
    pub fn meet(
        &mut self,
        id: RecordId,
        group: Group,
        count: u32,
        is_sharing: bool,
        taken: &mut NeedTotals,
    ) {
        if is_sharing {
            taken.share_bytes += self.share(id, count);
        } else {
            self.refer(id, group, count, taken);
        }
    }

    fn refer(&mut self, id: RecordId, group: Group, count: u32, taken: &mut NeedTotals) {
        let mut id = id;
        for _ in 0..=FORWARDS_MAX {
            if id.is_hole() {
                return;
            }
            let Some(record) = self.get_mut(id) else {
                taken.strays += 1;
                return;
            };
            record.references = record.references.saturating_add(count);
            if record.last() != Some(group) {
                if record.seen == 0 {
                    taken.first_bytes += u64::from(record.bytes);
                }
                let shared = if record.seen == 0 { 0 } else { SHARED };
                record.seen = (group + 1) | shared;
                taken.records += 1;
                taken.bytes += u64::from(record.bytes);
            }
            match self.leads.get(&id) {
                Some(&target) => id = target,
                None => return,
            }
        }
    }

    fn share(&self, id: RecordId, count: u32) -> f64 {
        let (mut id, mut share) = (id, 0.0);
        for _ in 0..=FORWARDS_MAX {
            let record = self.get(id);
            if record.references > 0 {
                share += f64::from(record.bytes) * f64::from(count) / f64::from(record.references);
            }
            match self.leads.get(&id) {
                Some(&target) => id = target,
                None => break,
            }
        }
        share
    }

    fn is_needed(&self, id: RecordId, gone: Gone) -> bool {
        let record = self.get(id);
        match gone {
            Gone::Nothing => record.seen != 0,
            Gone::One(group) => record.seen != 0 && !record.is_only_of(group),
            Gone::AllBut(rest) => record.last() == Some(rest),
        }
    }

    /// The table of a container as a collection leaves it once some files are gone. `is_of_copies`:
    /// the container has second copies of these records.
    pub fn collected(
        &self,
        number: ContainerNumber,
        table: &[u8],
        seed: u64,
        is_of_copies: bool,
        gone: Gone,
    ) -> Vec<u8> {
        let mut after = table.to_vec();
        for (ordinal, bytes) in (0..).zip(after.chunks_exact_mut(size_of::<EntryBytes>())) {
            let Some(bytes) = bytes.first_chunk_mut::<{ size_of::<EntryBytes>() }>() else { break };
            let Some(entry) = TableEntry::sound(bytes, seed) else { continue };
            let own = RecordId::new(number, ordinal);
            let id = if is_of_copies { entry.target } else { own };
            // As in ``jobs/gc/sweep.py``, ``_swept``.
            match (entry.state, self.is_needed(id, gone)) {
                (State::LIVE, false) => set_state(bytes, State::ORPHANED, seed),
                (State::ORPHANED, true) if !is_of_copies => set_state(bytes, State::LIVE, seed),
                (State::MERGED | State::QUARANTINED, false) => {
                    set_state(bytes, State::TOMBSTONE, seed);
                }
                _ => {}
            }
        }
        after
    }

    /// The groups that alone need records of a container, or records that these are copies of.
    pub fn sole_groups(&self, number: ContainerNumber, copies: Option<&[u8]>) -> BTreeSet<Group> {
        let sole = |record: Record| record.last().filter(|_| record.seen & SHARED == 0);
        match copies {
            None => {
                let own = self.containers.get(&number);
                own.into_iter().flatten().copied().filter_map(sole).collect()
            }
            Some(table) => entries(table)
                .map(|entry| self.get(TableEntry::unchecked(entry).target))
                .filter_map(sole)
                .collect(),
        }
    }

    /// How many records of a container have more than `count` references, and the bytes of one
    /// more copy of each.
    pub fn referred_more_than(
        &self,
        count: u32,
        number: ContainerNumber,
        table: &[u8],
    ) -> (u64, u64) {
        let (mut records, mut bytes) = (0, 0);
        for (ordinal, entry) in (0..).zip(entries(table)) {
            let entry = TableEntry::unchecked(entry);
            let references = self.get(RecordId::new(number, ordinal)).references;
            if references > count && entry.state == State::LIVE {
                records += 1;
                bytes += record_bytes(u64::from(entry.stored_length));
            }
        }
        (records, bytes)
    }
}

/// How much of a recipe node a group needs, and how often.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeNeed {
    pub id: RecordId,
    pub end: u64,
    pub count: u32,
    /// Nodes between it and the stub.
    pub depth: u8,
}

/// A chunk that stubs of a group name themselves, and how often.
pub type ChunkNeed = (RecordId, u32);

/// What stubs of a group name, and the nodes of recipes.
#[derive(Default)]
pub struct References {
    pub chunks: Vec<ChunkNeed>,
    pub nodes: Vec<NodeNeed>,
    /// So many of each were taken.
    chunks_taken: usize,
    nodes_taken: usize,
}

impl References {
    /// What was not taken yet, nodes by their container, with equal ones counted together.
    fn take(&mut self) -> (Vec<ChunkNeed>, BTreeMap<ContainerNumber, Vec<NodeNeed>>) {
        let mut fresh = self.nodes.split_off(self.nodes_taken);
        fresh.sort_unstable();
        for one in fresh {
            match self.nodes[self.nodes_taken..].last_mut() {
                Some(last) if (last.id, last.end) == (one.id, one.end) => {
                    last.count = last.count.saturating_add(one.count);
                }
                _ => self.nodes.push(one),
            }
        }
        let mut wanted: BTreeMap<ContainerNumber, Vec<NodeNeed>> = BTreeMap::new();
        for node in &self.nodes[self.nodes_taken..] {
            wanted.entry(node.id.container()).or_default().push(*node);
        }
        let chunks = self.chunks[self.chunks_taken..].to_vec();
        (self.chunks_taken, self.nodes_taken) = (self.chunks.len(), self.nodes.len());
        (chunks, wanted)
    }

    /// All is to be taken once more.
    pub fn again(&mut self) {
        (self.chunks_taken, self.nodes_taken) = (0, 0);
    }
}

/// A group of files, and what it needs.
#[derive(Default)]
pub struct GroupUsage {
    pub references: References,
    pub chunks: NeedTotals,
    pub recipes: NeedTotals,
    /// Nodes that could not be read in the last round.
    unread: Vec<NodeNeed>,
}

/// The records of a store.
#[derive(Default)]
pub struct Store {
    pub chunks: Records,
    pub recipes: Records,
}

impl Store {
    pub fn of(&self, are_recipes: bool) -> &Records {
        if are_recipes { &self.recipes } else { &self.chunks }
    }

    pub fn of_mut(&mut self, are_recipes: bool) -> &mut Records {
        if are_recipes { &mut self.recipes } else { &mut self.chunks }
    }
}

/// One of the groups, while it is taken in.
pub struct Taking<'a> {
    pub store: &'a mut Store,
    pub group: Group,
    pub own: &'a mut GroupUsage,
    /// Whether the shares are added, once all references of all groups are noted.
    pub is_sharing: bool,
}

impl Taking<'_> {
    /// Takes in what was named since the last call, without reading recipes. Returns the nodes to
    /// read, by their container.
    pub fn take(&mut self) -> BTreeMap<ContainerNumber, Vec<NodeNeed>> {
        let (own, store) = (&mut *self.own, &mut *self.store);
        own.unread.clear();
        let (chunks, wanted) = own.references.take();
        for (id, count) in chunks {
            store.chunks.meet(id, self.group, count, self.is_sharing, &mut own.chunks);
        }
        for node in wanted.values().flatten() {
            store.recipes.meet(node.id, self.group, node.count, self.is_sharing, &mut own.recipes);
        }
        wanted
    }

    /// Reads nodes of a container, ascending, and takes in the chunks that leaves name. Nodes that
    /// other nodes name are to be taken. Returns the nodes that cannot be read.
    pub fn read(
        &mut self,
        recipes: &Bases,
        number: ContainerNumber,
        nodes: &[NodeNeed],
    ) -> Vec<Unreadable> {
        let needed: Vec<_> = nodes.iter().map(|node| (node.id.ordinal(), node.end)).collect();
        let mut unreadable = Vec::new();
        each_node(recipes, number, &needed, |at, named| match named {
            Ok(named) => self.add(&nodes[at], &named),
            Err(why) => {
                unreadable.push(Unreadable { part: StorePart::Node(nodes[at].id), why });
                self.own.unread.push(nodes[at]);
            }
        });
        unreadable
    }

    /// Takes in a node that could not be read, by its payload. Returns whether that is a node.
    pub fn add_node(&mut self, id: RecordId, payload: &[u8]) -> bool {
        let all = std::mem::take(&mut self.own.unread);
        let (same, others): (Vec<_>, _) = all.into_iter().partition(|node| node.id == id);
        self.own.unread = others;
        same.iter().all(|node| {
            NamedRecords::by(payload, node.end).map(|named| self.add(node, &named)).is_some()
        })
    }

    fn add(&mut self, node: &NodeNeed, named: &NamedRecords) {
        let own = &mut *self.own;
        for id in named.chunks() {
            self.store.chunks.meet(id, self.group, node.count, self.is_sharing, &mut own.chunks);
        }
        if !self.is_sharing {
            let present = named.present.next_multiple_of(BLOCK_BYTES);
            own.recipes.plain_bytes += present * u64::from(node.count);
            let depth = node.depth + 1;
            let below = named.nodes().filter(|_| depth <= LEVELS_MAX);
            let needs = below.map(|(id, end)| NodeNeed { id, end, count: node.count, depth });
            own.references.nodes.extend(needs);
        }
    }
}
