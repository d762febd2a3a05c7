//! The notes of several runs, merged in order: those of a file, and those of this run.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::vec::IntoIter;

use super::ledger::JudgedFiles;
use crate::format::saved_notes::{Note, note, rows};

const READ_BYTES: usize = 1 << 18;
const _: () = assert!(READ_BYTES % note::BYTES == 0);

/// The notes of a range of a file.
struct Saved {
    file: Option<File>,
    range: Range<u64>,
    read: IntoIter<Note>,
}

impl Saved {
    fn next(&mut self) -> Result<Option<Note>> {
        if let Some(note) = self.read.next() {
            return Ok(Some(note));
        }
        let Some(file) = &self.file else { return Ok(None) };
        let left = self.range.end.saturating_sub(self.range.start);
        if left == 0 {
            return Ok(None);
        }
        let mut buffer = vec![0; READ_BYTES.min(usize::try_from(left).unwrap_or(READ_BYTES))];
        file.read_exact_at(&mut buffer, self.range.start)?;
        self.range.start += buffer.len() as u64;
        let notes: Vec<Note> = rows(&buffer, Note::from_bytes).collect();
        if !notes.is_sorted() {
            return Err(Error::from(ErrorKind::InvalidData));
        }
        self.read = notes.into_iter();
        Ok(self.read.next())
    }
}

/// The valid notes, in order: of files that remain judged, and of stored chunks.
pub struct Notes {
    saved: Saved,
    of_file: Option<Note>,
    run: Arc<Vec<Note>>,
    at: usize,
    kept: Arc<JudgedFiles>,
}

impl Notes {
    /// `run` has the notes of this run, in order. Errors in reading `file` end the notes.
    pub fn new(
        file: Option<File>,
        range: Range<u64>,
        run: Arc<Vec<Note>>,
        kept: Arc<JudgedFiles>,
    ) -> Result<Notes> {
        let mut saved = Saved { file, range, read: Vec::new().into_iter() };
        let of_file = saved.next()?;
        Ok(Notes { saved, of_file, run, at: 0, kept })
    }

    /// The next valid note.
    pub fn read(&mut self) -> Result<Option<Note>> {
        loop {
            let of_run = self.run.get(self.at).copied();
            let note = match (self.of_file, of_run) {
                (None, None) => return Ok(None),
                (Some(note), other) if other.is_none_or(|other| note <= other) => {
                    self.of_file = self.saved.next()?;
                    Some(note).filter(|note| !self.is_outdated(*note))
                }
                (_, other) => {
                    self.at += 1;
                    other
                }
            };
            if let Some(note) = note.filter(|note| self.counts(*note)) {
                return Ok(Some(note));
            }
        }
    }

    /// The bytes of up to `count` notes; those of a file in the state after a join if `joined`.
    pub fn block(&mut self, count: usize, joined: bool) -> Result<Vec<u8>> {
        let mut block = Vec::new();
        let mut before = None;
        while block.len() < count * note::BYTES {
            let Some(note) = self.read()? else { break };
            let note = match note.inode() {
                None if joined => continue,
                _ if joined => note.joined(),
                _ => note,
            };
            if before != Some(note) {
                block.extend_from_slice(&note.to_bytes());
                before = Some(note);
            }
        }
        Ok(block)
    }

    /// Returns whether an earlier run noted it for a file with new notes of this run.
    fn is_outdated(&self, note: Note) -> bool {
        let renewed = |inode| self.kept.renewed.binary_search(&inode).is_ok();
        !note.is_new() && note.inode().is_some_and(renewed)
    }

    fn counts(&self, note: Note) -> bool {
        note.inode().is_none_or(|inode| self.kept.has(inode))
    }
}
