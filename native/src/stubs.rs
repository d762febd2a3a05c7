//! The stubs of many directories at once: what they name, and whether it is there.
//!
//! Only what is as it should be is counted here; whatever is out of the ordinary is left to the
//! caller, with nothing of it counted.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::commits::{DIRECT, StubHead, stub_head};
use crate::files::{Entry, open_beneath, scan_directory};
use crate::known::{self, Known, sound_leaf};
use crate::parallel;
use crate::records::{self, Files};

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
    pub streams: &'a HashMap<u32, Files>,
    pub attribute: &'a CStr,
    /// Of the attribute's checksum.
    pub seed: u64,
    /// Hold stubs that name a chunk against its entry as well: what is known of chunks is less than
    /// what these say.
    pub tables: Option<&'a Tables>,
}

/// Tables of the containers of chunks: name and seed, by number.
pub struct Tables {
    pub directory: RawFd,
    pub names: HashMap<u32, (CString, u64)>,
}

/// Tables that are kept open: the small files of a directory mostly lie together.
const TABLES_OPEN_MAX: usize = 8;

impl Store<'_> {
    /// Looks at directories below `root`, on several threads; results in their order.
    pub fn look_at(
        &self,
        root: RawFd,
        directories: &[CString],
        threads: usize,
    ) -> Vec<Result<Listed>> {
        let mut results: Vec<Option<Result<Listed>>> = Vec::new();
        results.resize_with(directories.len(), || None);
        let tasks = directories.iter().zip(results.iter_mut());
        parallel::for_each(tasks, threads, |(path, result)| {
            *result = Some(self.look_at_one(root, path));
        });
        results.into_iter().flatten().collect()
    }

    fn look_at_one(&self, root: RawFd, path: &CStr) -> Result<Listed> {
        let directory = open_directory(root, path)?;
        let mut listed = Listed::default();
        let mut scratch = Scratch::default();
        for entry in scan_directory(directory.as_raw_fd(), self.attribute)? {
            match &entry {
                Entry::File { links: 1, attribute: None, .. } => {
                    listed.plain += 1;
                    continue;
                }
                Entry::File { links: 1, attribute: Some(value), identity, .. } => {
                    let stub = stub_head(value, self.seed);
                    if stub.is_some_and(|stub| self.count(&stub, &mut scratch)) {
                        listed.stubs += 1;
                        listed.logical_bytes += identity.size;
                        continue;
                    }
                }
                _ => {}
            }
            listed.left.push(entry);
        }
        Ok(listed)
    }

    /// Counts what a stub refers to, where all of it is there; else false, and nothing is counted.
    fn count(&self, stub: &StubHead, scratch: &mut Scratch) -> bool {
        if stub.flags & !DIRECT != 0 {
            return false;
        }
        if stub.flags == DIRECT {
            return match self.tables {
                None => self.count_chunk(stub),
                Some(tables) => self.count_chunk_exactly(stub, tables, scratch),
            };
        }
        self.count_recipe(stub, scratch).is_some()
    }

    fn count_chunk(&self, stub: &StubHead) -> bool {
        let word = self.chunks.word(self.chunks.resolve(stub.recipe));
        let is_same = word & 0xFFFF_FFFF == u64::from(stub.check());
        let is_there = word != 0 && is_same && word >> 32 >= stub.covered;
        if is_there {
            self.chunks.refer(stub.recipe);
        }
        is_there
    }

    fn count_chunk_exactly(&self, stub: &StubHead, tables: &Tables, scratch: &mut Scratch) -> bool {
        let Some(entry) = scratch.entry(tables, stub.recipe) else { return false };
        let word = known::word(entry.raw_length, entry.check());
        let is_there = self.chunks.resolve(stub.recipe) == stub.recipe
            && self.chunks.own_word(stub.recipe) == word
            && entry.fingerprint[..stub.digest.len()] == stub.digest
            && u64::from(entry.raw_length) >= stub.covered;
        if is_there {
            self.chunks.refer(stub.recipe);
        }
        is_there
    }

    fn count_recipe(&self, stub: &StubHead, scratch: &mut Scratch) -> Option<()> {
        let files = self.streams.get(&((stub.recipe >> 32) as u32))?;
        let word = self.nodes.own_word(stub.recipe);
        let entry = files.entry(stub.recipe as u32)?;
        let is_known = word == known::word(entry.raw_length, entry.check());
        if !is_known || entry.fingerprint[..stub.digest.len()] != stub.digest {
            return None;
        }
        scratch.payload.resize(entry.raw_length as usize, 0);
        files.read_entry(&entry, stub.recipe as u32, &mut scratch.payload, &mut scratch.stored)?;
        let ids = sound_leaf(&scratch.payload, stub.covered, self.chunks)?;
        self.nodes.refer(stub.recipe);
        ids.into_iter().for_each(|id| self.chunks.refer(id));
        Some(())
    }
}

/// Opens a directory, however long its path: the kernel takes so much of one at a time.
fn open_directory(root: RawFd, path: &CStr) -> Result<OwnedFd> {
    let mut rest = path.to_bytes();
    let mut parent: Option<OwnedFd> = None;
    while rest.len() >= libc::PATH_MAX as usize {
        let head = &rest[..libc::PATH_MAX as usize];
        let Some(end) = head.iter().rposition(|&byte| byte == b'/') else { break };
        let at = parent.as_ref().map_or(root, AsRawFd::as_raw_fd);
        let step =
            open_beneath(at, &CString::new(&head[..end])?, libc::O_RDONLY | libc::O_DIRECTORY)?;
        parent = Some(step);
        rest = &rest[end + 1..];
    }
    let at = parent.as_ref().map_or(root, AsRawFd::as_raw_fd);
    open_beneath(at, &CString::new(rest)?, libc::O_RDONLY | libc::O_DIRECTORY)
}

/// Kept from one recipe to the next.
#[derive(Default)]
struct Scratch {
    payload: Vec<u8>,
    stored: Vec<u8>,
    open: HashMap<u32, OwnedFd>,
}

impl Scratch {
    /// What the table says of a live chunk.
    fn entry(&mut self, tables: &Tables, id: u64) -> Option<records::Entry> {
        let number = (id >> 32) as u32;
        let (name, seed) = tables.names.get(&number)?;
        if !self.open.contains_key(&number) {
            if self.open.len() == TABLES_OPEN_MAX {
                self.open.clear();
            }
            self.open.insert(number, open_beneath(tables.directory, name, libc::O_RDONLY).ok()?);
        }
        let table = self.open.get(&number)?.as_raw_fd();
        Files { data: table, table, seed: *seed, cached_only: false }.entry(id as u32)
    }
}
