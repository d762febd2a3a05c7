//! The stubs of many directories at once: the records that they name, and whether these exist.
//!
//! Only sound references are counted here. If a stub is unusual in any way, the caller must handle
//! it, and none of its references is counted.

use crate::format::ids::{Fingerprint, FingerprintCheck};
use crate::format::stub::{DIRECT, Seeds, StubHead, stub_head};
use crate::store::bases::Bases;
use crate::store::record_reader::CacheUse;
use crate::system::files::Entry;
use crate::upkeep::record_census::{KnownBytes, RecordCensus, sound_leaf};

/// The content of a directory. `left` are files that the caller must examine, and directories.
#[derive(Default)]
pub struct Listed {
    pub left: Vec<Entry>,
    pub stubs: u64,
    pub plain: u64,
    /// Length of the counted stubs.
    pub logical_bytes: i64,
}

/// Records to compare the stubs of a tree with.
pub struct Store<'a> {
    pub chunks: &'a RecordCensus,
    pub nodes: &'a RecordCensus,
    pub chunk_records: &'a Bases,
    pub recipes: &'a Bases,
    pub seeds: Seeds,
    /// Also compare stubs that name a chunk with its table entry, which has more detail than
    /// `chunks`.
    pub is_exact: bool,
}

impl Store<'_> {
    /// Counts the references of `entries` if all records exist; other entries go to `left`.
    pub fn sort_out(&self, entries: &mut Vec<Entry>, listed: &mut Listed) {
        for entry in entries.drain(..) {
            match &entry {
                Entry::File { links: 1, attribute: None, .. } => {
                    listed.plain += 1;
                    continue;
                }
                // Local blocks must be compared with the count of the attribute.
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
                    if stub.is_some_and(|stub| self.count(&stub)) {
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

    /// Counts the references of a stub if all records exist; else counts none, and returns false.
    fn count(&self, stub: &StubHead) -> bool {
        if stub.flags & !DIRECT != 0 {
            return false;
        }
        if stub.flags != DIRECT {
            return self.count_recipe(stub).is_some();
        }
        let is_there =
            if self.is_exact { self.has_chunk_exactly(stub) } else { self.has_chunk(stub) };
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

    fn has_chunk_exactly(&self, stub: &StubHead) -> bool {
        let found = self.chunk_records.described(stub.recipe, CacheUse::Any);
        found.is_ok_and(|(length, fingerprint)| {
            self.chunks.resolve(stub.recipe) == stub.recipe
                && is_meant(self.chunks, stub, length, &fingerprint)
                && u64::from(length) >= stub.covered
        })
    }

    fn count_recipe(&self, stub: &StubHead) -> Option<()> {
        let (payload, fingerprint) = self.recipes.of_any(stub.recipe, CacheUse::Any).ok()?;
        if !is_meant(self.nodes, stub, payload.len() as u32, &fingerprint) {
            return None;
        }
        let ids = sound_leaf(&payload, stub.covered, self.chunks)?;
        self.nodes.refer(stub.recipe);
        ids.into_iter().for_each(|id| self.chunks.refer(id));
        Some(())
    }
}

/// Returns whether the record that a stub names is known, and has the content of the stub.
fn is_meant(known: &RecordCensus, stub: &StubHead, length: u32, fingerprint: &Fingerprint) -> bool {
    let fingerprint_check = FingerprintCheck::of(fingerprint);
    known.own(stub.recipe) == KnownBytes { raw_length: length, fingerprint_check }
        && fingerprint.starts_with(&stub.digest)
}
