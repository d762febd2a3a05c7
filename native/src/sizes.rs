//! What the stubs of a tree stand for, by the type of their files.

use std::collections::HashMap;

use crate::files::Entry;

/// What a directory holds. `left` are directories, and files of several names.
#[derive(Default)]
pub struct Sizes {
    pub left: Vec<Entry>,
    /// Bytes of stubs, by what follows the last dot of their names.
    pub bytes: HashMap<Box<[u8]>, i64>,
}

impl Sizes {
    /// Sums stubs up; what is left may be one, and be counted already.
    pub fn sort_out(&mut self, entries: &mut Vec<Entry>) {
        for entry in entries.drain(..) {
            match &entry {
                Entry::File { links: 1, attribute: None, .. } => {}
                Entry::File { links: 1, attribute: Some(_), identity, name, .. } => {
                    let suffix = suffix(name.to_bytes());
                    match self.bytes.get_mut(suffix) {
                        Some(sum) => *sum += identity.size,
                        None => drop(self.bytes.insert(suffix.into(), identity.size)),
                    }
                }
                _ => self.left.push(entry),
            }
        }
    }
}

/// What follows the last dot of a name; empty where that is its first byte, or there is none. In
/// lower case it is what `extension_of` in `dedupd/policy.py` gives.
pub fn suffix(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&byte| byte == b'.') {
        None | Some(0) => &[],
        Some(at) => &name[at + 1..],
    }
}
