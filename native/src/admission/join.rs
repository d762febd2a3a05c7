//! Finds skipped files that share chunks with each other, or with the store.

use std::collections::{HashMap, HashSet};
use std::io::Result;

use super::ledger::JudgedFiles;
use super::notes::Notes;

/// Files to read again, and the chunks that are the reason.
#[derive(Debug, Default)]
pub struct Recall {
    pub inodes: HashSet<u64>,
    /// First bytes of fingerprints: chunks that several of the files have, or the store and a file.
    pub wanted: HashSet<u64>,
    /// True if there was no memory for more.
    pub is_cut: bool,
}

/// The chunks that a file shares with others.
#[derive(Clone, Copy, Default)]
struct Common {
    chunks: u32,
    /// True if any of them is new since the last join.
    is_new: bool,
}

/// Recalls a file if it shares at least half as many chunks with others as it lacks, and one of
/// them was noted or stored since the last join. `notes` returns all notes, and is called twice.
/// `entries_max` limits the memory.
pub fn join(
    mut notes: impl FnMut() -> Result<Notes>,
    kept: &JudgedFiles,
    entries_max: usize,
) -> Result<Recall> {
    let mut recall = Recall::default();
    let mut common: HashMap<u64, Common> = HashMap::new();
    each_chunk(notes()?, |chunk| {
        if !chunk.is_repeated() {
            return;
        }
        for &inode in &chunk.inodes {
            if common.len() >= entries_max && !common.contains_key(&inode) {
                recall.is_cut = true;
                continue;
            }
            let one = common.entry(inode).or_default();
            one.chunks += 1;
            one.is_new |= chunk.is_new;
        }
    })?;
    recall.inodes = common
        .into_iter()
        .filter(|(inode, one)| {
            let missing = kept.get(*inode).map_or(0, |row| u32::from(row.missing));
            one.is_new && one.chunks >= missing.div_ceil(2)
        })
        .map(|(inode, _)| inode)
        .collect();
    if recall.inodes.is_empty() {
        return Ok(recall);
    }
    let Recall { inodes, wanted, is_cut } = &mut recall;
    each_chunk(notes()?, |chunk| {
        chunk.inodes.retain(|inode| inodes.contains(inode));
        if !chunk.is_repeated() {
            return;
        }
        if wanted.len() < entries_max {
            wanted.insert(chunk.prefix);
        } else {
            *is_cut = true;
        }
    })?;
    Ok(recall)
}

/// All notes of a chunk.
#[derive(Default)]
struct Noted {
    prefix: u64,
    inodes: Vec<u64>,
    is_stored: bool,
    is_new: bool,
}

impl Noted {
    /// Returns whether several files, or a file and the store, have the chunk.
    fn is_repeated(&self) -> bool {
        self.inodes.len() > 1 || (self.is_stored && !self.inodes.is_empty())
    }
}

fn each_chunk(mut notes: Notes, mut visit: impl FnMut(&mut Noted)) -> Result<()> {
    let mut chunk = Noted::default();
    while let Some(note) = notes.read()? {
        if note.prefix != chunk.prefix {
            visit(&mut chunk);
            chunk = Noted { prefix: note.prefix, ..Noted::default() };
        }
        chunk.is_new |= note.is_new();
        match note.inode() {
            None => chunk.is_stored = true,
            Some(inode) if chunk.inodes.last() != Some(&inode) => chunk.inodes.push(inode),
            Some(_) => {}
        }
    }
    visit(&mut chunk);
    Ok(())
}
