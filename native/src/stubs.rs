//! The stubs of many directories at once: what they name, and whether it is there.
//!
//! Only what is as it should be is counted here; whatever is out of the ordinary is left to the
//! caller, with nothing of it counted.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io::Result;
use std::os::fd::RawFd;

use crate::commits::{DIRECT, StubHead, stub_head};
use crate::files::{Entry, scan_directory};
use crate::known::{Known, sound_leaf};
use crate::parallel;
use crate::records::Files;

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
    /// Leave stubs that name a chunk: what is known of chunks is less than what these say.
    pub leaves_direct: bool,
}

impl Store<'_> {
    /// Looks at directories, on several threads; results in their order.
    pub fn look_at(&self, directories: &[RawFd], threads: usize) -> Vec<Result<Listed>> {
        let mut results: Vec<Option<Result<Listed>>> = Vec::new();
        results.resize_with(directories.len(), || None);
        let tasks = directories.iter().zip(results.iter_mut());
        parallel::for_each(tasks, threads, |(&fd, result)| *result = Some(self.look_at_one(fd)));
        results.into_iter().flatten().collect()
    }

    fn look_at_one(&self, fd: RawFd) -> Result<Listed> {
        let mut listed = Listed::default();
        let mut scratch = Scratch::default();
        for entry in scan_directory(fd, self.attribute)? {
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
            return !self.leaves_direct && self.count_chunk(stub);
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

    fn count_recipe(&self, stub: &StubHead, scratch: &mut Scratch) -> Option<()> {
        let files = self.streams.get(&((stub.recipe >> 32) as u32))?;
        let word = self.nodes.own_word(stub.recipe);
        let entry = files.entry(stub.recipe as u32)?;
        let is_known = word == crate::known::word(entry.raw_length, entry.check());
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

/// Kept from one recipe to the next.
#[derive(Default)]
struct Scratch {
    payload: Vec<u8>,
    stored: Vec<u8>,
}
