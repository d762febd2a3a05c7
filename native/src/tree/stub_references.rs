//! The stubs of many directories at once: the records that they name, and whether these are there.
//!
//! Only sound references are counted here; a stub of which anything is out of the ordinary is left
//! to the caller, with nothing of it counted.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::format::ids::{ContainerNumber, RecordId};
use crate::format::stub::{DIRECT, Seeds, StubHead, stub_head};
use crate::format::table_entry::TableEntry;
use crate::store::record_reader::{Files, Reads};
use crate::system::files::{Entry, open_beneath};
use crate::upkeep::record_census::{Known, KnownBytes, sound_leaf};

/// What a directory holds. `left` are files that the caller has to look at, and directories.
#[derive(Default)]
pub struct Listed {
    pub left: Vec<Entry>,
    pub stubs: u64,
    pub plain: u64,
    /// Of the stubs that were counted.
    pub logical_bytes: i64,
}

/// What the stubs of a tree are held against.
pub struct Store<'a> {
    pub chunks: &'a Known,
    pub nodes: &'a Known,
    /// Containers of recipes, by number.
    pub streams: &'a HashMap<ContainerNumber, Files<'a>>,
    pub seeds: Seeds,
    /// Hold stubs that name a chunk against its entry as well: what is known of chunks is less than
    /// what these say.
    pub tables: Option<&'a Tables>,
}

/// Tables of the containers of chunks: name and seed, by number.
pub struct Tables {
    pub directory: RawFd,
    pub names: HashMap<ContainerNumber, (CString, u64)>,
}

/// Tables that are kept open: the small files of a directory mostly lie together.
const TABLES_OPEN_MAX: usize = 8;

impl Store<'_> {
    /// Counts what `entries` refer to, where all of it is there; the others are left.
    pub fn sort_out(&self, entries: &mut Vec<Entry>, listed: &mut Listed, scratch: &mut Scratch) {
        for entry in entries.drain(..) {
            match &entry {
                Entry::File { links: 1, attribute: None, .. } => {
                    listed.plain += 1;
                    continue;
                }
                // Blocks of its own have to be held against those that the attribute counts.
                Entry::File {
                    links: 1,
                    attribute: Some(value),
                    allocated: 0,
                    identity,
                    generation,
                    ..
                } => {
                    let binding = self.seeds.binding(identity.inode, *generation);
                    let stub = stub_head(value, self.seeds.attribute)
                        .filter(|stub| stub.binding == binding && stub.local == 0);
                    if stub.is_some_and(|stub| self.count(&stub, scratch)) {
                        listed.stubs += 1;
                        listed.logical_bytes += identity.size;
                        continue;
                    }
                }
                _ => {}
            }
            listed.left.push(entry);
        }
    }

    /// Counts what a stub refers to, where all of it is there; else false, and nothing is counted.
    fn count(&self, stub: &StubHead, scratch: &mut Scratch) -> bool {
        if stub.flags & !DIRECT != 0 {
            return false;
        }
        if stub.flags != DIRECT {
            return self.count_recipe(stub, scratch).is_some();
        }
        let is_there = match self.tables {
            None => self.has_chunk(stub),
            Some(tables) => self.has_chunk_exactly(stub, tables, scratch),
        };
        if is_there {
            self.chunks.refer(stub.recipe);
        }
        is_there
    }

    fn has_chunk(&self, stub: &StubHead) -> bool {
        let known = self.chunks.known(self.chunks.resolve(stub.recipe));
        known.is_there()
            && known.fingerprint_check == stub.fingerprint_check()
            && u64::from(known.raw_length) >= stub.covered
    }

    fn has_chunk_exactly(&self, stub: &StubHead, tables: &Tables, scratch: &mut Scratch) -> bool {
        let Some(entry) = scratch.entry(tables, stub.recipe) else { return false };
        self.chunks.resolve(stub.recipe) == stub.recipe
            && self.chunks.own(stub.recipe) == KnownBytes::of(&entry)
            && entry.fingerprint[..stub.digest.len()] == stub.digest
            && u64::from(entry.raw_length) >= stub.covered
    }

    fn count_recipe(&self, stub: &StubHead, scratch: &mut Scratch) -> Option<()> {
        let files = self.streams.get(&stub.recipe.container())?;
        let ordinal = stub.recipe.ordinal();
        let entry = files.entry(ordinal).ok()?;
        let is_known = self.nodes.own(stub.recipe) == KnownBytes::of(&entry);
        if !is_known || entry.fingerprint[..stub.digest.len()] != stub.digest {
            return None;
        }
        scratch.payload.resize(entry.raw_length as usize, 0);
        files.read_entry(&entry, ordinal, &mut scratch.payload, &mut scratch.stored).ok()?;
        let ids = sound_leaf(&scratch.payload, stub.covered, self.chunks)?;
        self.nodes.refer(stub.recipe);
        ids.into_iter().for_each(|id| self.chunks.refer(id));
        Some(())
    }
}

/// Kept from one recipe to the next.
#[derive(Default)]
pub struct Scratch {
    payload: Vec<u8>,
    stored: Vec<u8>,
    open: HashMap<ContainerNumber, OwnedFd>,
}

impl Scratch {
    /// What the table says of a live chunk.
    fn entry(&mut self, tables: &Tables, id: RecordId) -> Option<TableEntry> {
        let number = id.container();
        let (name, seed) = tables.names.get(&number)?;
        if !self.open.contains_key(&number) {
            if self.open.len() == TABLES_OPEN_MAX {
                self.open.clear();
            }
            self.open.insert(number, open_beneath(tables.directory, name, libc::O_RDONLY).ok()?);
        }
        let table = self.open.get(&number)?.as_raw_fd();
        let files = Files { data: table, table, seed: *seed, reads: Reads::Any, bases: None };
        files.entry(id.ordinal()).ok()
    }
}
