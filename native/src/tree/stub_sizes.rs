//! What the stubs of a tree stand for, by the type of their files.

use std::collections::HashMap;

use crate::format::suffix::suffix;
use crate::system::files::Entry;

/// What a directory holds. `left` are directories, and files of several names.
#[derive(Default)]
pub struct Sizes {
    pub left: Vec<Entry>,
    /// Bytes of stubs.
    pub bytes: BySuffix,
}

/// Sums, by what follows the last dot of names.
#[derive(Default)]
pub struct BySuffix(pub HashMap<Box<[u8]>, i64>);

impl BySuffix {
    pub fn add(&mut self, name: &[u8], amount: i64) {
        let suffix = suffix(name);
        match self.0.get_mut(suffix) {
            Some(sum) => *sum += amount,
            None => drop(self.0.insert(suffix.into(), amount)),
        }
    }
}

impl Sizes {
    /// Sums stubs up; what is left may be one, and be counted already.
    pub fn sort_out(&mut self, entries: &mut Vec<Entry>) {
        for entry in entries.drain(..) {
            match &entry {
                Entry::File { links: 1, attribute: None, .. } => {}
                Entry::File { links: 1, attribute: Some(_), identity, name, .. } => {
                    self.bytes.add(name.to_bytes(), identity.size);
                }
                _ => self.left.push(entry),
            }
        }
    }
}
