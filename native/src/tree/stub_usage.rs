//! The blocks of a tree's files, and the records that their stubs name, by owner or by type.

use std::collections::HashMap;

use crate::format::ids::RecordId;
use crate::format::stub::{DIRECT, stub_head};
use crate::format::suffix::suffix;
use crate::system::files::Entry;

const BLOCK_BYTES: i64 = crate::upkeep::usage::BLOCK_BYTES as i64;

/// The key that groups files of a directory.
#[derive(Clone, Copy)]
pub enum GroupBy {
    Nothing,
    Owner,
    Type,
}

/// Files of one key. Bytes are those of blocks for `own`, else lengths.
#[derive(Default)]
pub struct Sums {
    pub files: u64,
    pub stubs: u64,
    pub logical_bytes: i64,
    pub own_bytes: i64,
    /// Blocks of the stubs among them.
    pub stubs_own_bytes: i64,
    pub optimized_bytes: i64,
    /// Lengths of stubs that name a chunk, in complete blocks.
    pub direct_bytes: i64,
    pub chunks: Vec<RecordId>,
    pub recipes: Vec<RecordId>,
    /// The needed bytes of each of `recipes`.
    pub covered: Vec<u64>,
}

/// The content of a directory. `left` are directories, files of several names, and those with an
/// attribute that is not valid.
#[derive(Default)]
pub struct Usage {
    pub left: Vec<Entry>,
    pub sums: HashMap<Box<[u8]>, Sums>,
}

impl Usage {
    /// Sums files up by the key `by`: the owner's number in four bytes, or the suffix of the name.
    pub fn sort_out(&mut self, entries: &mut Vec<Entry>, by: GroupBy, seed: u64) {
        for entry in entries.drain(..) {
            let Entry::File { links: 1, name, identity, owner, allocated, attribute, .. } = &entry
            else {
                self.left.push(entry);
                continue;
            };
            let stub = match attribute {
                None => None,
                Some(value) => match stub_head(value, seed) {
                    None => {
                        self.left.push(entry);
                        continue;
                    }
                    stub => stub,
                },
            };
            let sums = match by {
                GroupBy::Nothing => of_key(&mut self.sums, &[]),
                GroupBy::Owner => of_key(&mut self.sums, &owner.to_le_bytes()),
                GroupBy::Type => of_key(&mut self.sums, suffix(name.to_bytes())),
            };
            sums.files += 1;
            sums.logical_bytes += identity.size;
            sums.own_bytes += *allocated;
            if let Some(stub) = stub {
                sums.stubs += 1;
                sums.stubs_own_bytes += *allocated;
                sums.optimized_bytes += identity.size;
                if stub.flags & DIRECT != 0 {
                    sums.direct_bytes +=
                        (identity.size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
                    sums.chunks.push(stub.recipe);
                } else {
                    sums.recipes.push(stub.recipe);
                    sums.covered.push(stub.covered);
                }
            }
        }
    }
}

fn of_key<'a>(all: &'a mut HashMap<Box<[u8]>, Sums>, key: &[u8]) -> &'a mut Sums {
    if !all.contains_key(key) {
        all.insert(key.into(), Sums::default());
    }
    all.get_mut(key).expect("it was put there")
}
