//! `FileList`.

use std::collections::{HashMap, HashSet};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::admission::Ledger;
use super::chunks::{Chunks, Judgement};
use super::commit::CommitRequests;
use super::support::calls::c_string;
use super::support::entries::{Fields, fields_of, identity_of};
use super::support::input::{Input, pack_u64, require};
use super::support::output::{Output, flags};
use super::support::threads::check_threads;
use crate::admission::ledger::judged;
use crate::commit::requests::Request;
use crate::format::ids::{DIGEST_BYTES, RecordId};
use crate::format::suffix::suffix;
use crate::ingest::chunks::Segment;
use crate::ingest::examination::{self, Why};
use crate::ingest::file_reader;
use crate::ingest::judgement::NOT_STORED;
use crate::ingest::small_files::{PlainFile, fitting};

use crate::tree::candidates::unpacked;

#[pyclass(module = "dedupd_core.native.ingest")]
pub struct FileList(Vec<PlainFile>);

/// Top folder, suffix of the names; files, their bytes, bytes of new chunks, saved bytes.
type ClassRow = (Vec<u8>, Vec<u8>, u64, u64, u64, u64);

/// Path, identity, and whether the file must not be compressed.
type FileRow = (Vec<u8>, Fields, bool);

fn shown(file: &PlainFile) -> FileRow {
    (file.path.to_bytes().to_vec(), fields_of(file.identity), file.as_is)
}

/// Why a file is not read.
#[pyclass(frozen, get_all, module = "dedupd_core.native.ingest")]
pub struct Unread {
    why: &'static str,
    errno: i32,
    shared_bytes: i64,
}

impl From<Why> for Unread {
    fn from(why: Why) -> Unread {
        let (errno, shared_bytes) = match why {
            Why::Unopened(number) | Why::Io(number) => (number, 0),
            Why::Shared(bytes) => (0, bytes),
            _ => (0, 0),
        };
        Unread { why: why.name(), errno, shared_bytes }
    }
}

/// The number of bytes in shared blocks of a file, or why the file is not read.
#[derive(IntoPyObject)]
pub enum Examined {
    Shared(i64),
    Unread(Unread),
}

/// Checks an open file before its complete content is read, or else only its blocks.
#[pyfunction]
pub fn examine(
    py: Python<'_>,
    fd: i32,
    identity: Fields,
    is_whole: bool,
    unshared_only: bool,
) -> Examined {
    let expected = identity_of(identity);
    let result = py.detach(|| {
        if is_whole {
            examination::examine(fd, &expected, unshared_only)
        } else {
            examination::examine_blocks(fd, expected.size, unshared_only)
        }
    });
    result.map_or_else(|why| Examined::Unread(why.into()), Examined::Shared)
}

impl FileList {
    pub fn segments(&self) -> Vec<Segment> {
        self.0.iter().map(PlainFile::segment).collect()
    }

    fn were_judged(&self, found: &Chunks, judgement: &Judgement) -> bool {
        judgement.is_of(self.0.len()) && found.segments().len() == self.0.len()
    }
}

#[pymethods]
impl FileList {
    #[new]
    #[pyo3(signature = (
        directory = b"".as_slice(),
        packed = b"".as_slice(),
        suffixes = None,
        as_is = HashSet::new(),
        sample = None,
        sizes = None
    ))]
    fn new(
        directory: &[u8],
        packed: &[u8],
        suffixes: Option<HashSet<Vec<u8>>>,
        as_is: HashSet<Vec<u8>>,
        sample: Option<(u64, u64, bool)>,
        sizes: Option<(i64, i64)>,
    ) -> PyResult<FileList> {
        require(sample.is_none_or(|(of, ..)| of > 0), "sample: one in 0 files is none")?;
        let is_in =
            |inode: u64| sample.is_none_or(|(of, rest, is_it)| (inode % of == rest) == is_it);
        let files = unpacked(packed)
            .ok_or_else(|| PyValueError::new_err("these are no files that were packed"))?;
        let is_wanted = |end: &[u8]| suffixes.as_ref().is_none_or(|wanted| wanted.contains(end));
        let is_as_is = |end: &[u8]| as_is.contains(end);
        let named =
            |(identity, name)| PlainFile::named(directory, name, identity, is_wanted, is_as_is);
        let has_size = |size: i64| sizes.is_none_or(|(start, end)| (start..end).contains(&size));
        let files = files
            .into_iter()
            .filter(|(identity, _)| is_in(identity.inode) && has_size(identity.size));
        Ok(FileList(files.filter_map(named).collect()))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, at: usize) -> PyResult<FileRow> {
        let none = || PyIndexError::new_err(format!("there is no file {at}"));
        self.0.get(at).map(shown).ok_or_else(none)
    }

    #[getter]
    fn size_bytes(&self) -> usize {
        self.0.iter().map(PlainFile::size).sum()
    }

    #[getter]
    fn as_is(&self) -> Vec<u8> {
        flags(self.0.iter().map(|file| file.as_is))
    }

    fn add(&mut self, path: &[u8], identity: Fields, as_is: bool) -> PyResult<()> {
        self.0.push(PlainFile::new(c_string("path", path)?, identity_of(identity), as_is));
        Ok(())
    }

    fn take(
        &mut self,
        source: PyRef<'_, FileList>,
        at: usize,
        size_max: usize,
        room: usize,
        count_max: usize,
    ) -> usize {
        let rest = source.0.get(at..).unwrap_or_default();
        let count = fitting(rest, size_max, room, count_max);
        self.0.extend_from_slice(&rest[..count]);
        count
    }

    #[getter]
    fn read_bytes(&self) -> u64 {
        self.0.iter().map(PlainFile::read_bytes).sum()
    }

    #[pyo3(signature = (dir_fd, out, offset, threads = 1, unshared_only = true))]
    fn read(
        &mut self,
        py: Python<'_>,
        dir_fd: i32,
        mut out: Output,
        offset: usize,
        threads: usize,
        unshared_only: bool,
    ) -> PyResult<Vec<(FileRow, Unread)>> {
        let (threads, size, list) = (check_threads(threads)?, self.size_bytes(), &mut self.0);
        let unread = py.detach(|| {
            let out = (out.bytes_mut(), offset);
            file_reader::read_files(dir_fd, list, unshared_only, out, threads)
        });
        let message = || format!("out is too short: it has no {size} bytes at {offset}");
        let unread = unread.ok_or_else(|| PyValueError::new_err(message()))?;
        Ok(unread.into_iter().map(|(file, why)| (shown(&file), why.into())).collect())
    }

    fn freed_bytes(&self, block_bytes: u64) -> PyResult<Vec<u8>> {
        require(block_bytes > 0, "block_bytes must be positive")?;
        Ok(pack_u64(self.0.iter().map(|file| file.freed_bytes(block_bytes))))
    }

    fn shared_bytes(&self, judgement: &Judgement) -> i64 {
        let taken = self.0.iter().enumerate().filter(|(number, _)| judgement.is_taken(*number));
        taken.map(|(_, file)| file.read.shared_bytes).sum()
    }

    fn single(
        &self,
        found: &Chunks,
        ids: Input,
        judgement: &Judgement,
        mut into: PyRefMut<'_, CommitRequests>,
    ) -> PyResult<Vec<usize>> {
        let ids = ids.u64s("ids")?;
        let are_right = self.were_judged(found, judgement) && found.count() == ids.len();
        require(are_right, "these are not the chunks of these files, and ids")?;
        let mut others = Vec::new();
        for (number, (file, chunks)) in self.0.iter().zip(found.segments()).enumerate() {
            if !judgement.is_taken(number) {
                continue;
            }
            match (&chunks[..], found.ids_of(number, &ids)) {
                ([chunk], &[recipe]) if !chunk.zero => {
                    let is_stored = recipe != NOT_STORED;
                    require(is_stored, "a stub may not name a chunk that is not stored")?;
                    let mut digest = [0; DIGEST_BYTES];
                    digest.copy_from_slice(&chunk.fingerprint[..DIGEST_BYTES]);
                    let (path, expected) = (file.path.clone(), file.identity);
                    let recipe = RecordId(recipe);
                    let (direct, previous, in_parts) = (true, None, false);
                    let request =
                        Request { path, expected, recipe, digest, direct, previous, in_parts };
                    into.0.push(request);
                }
                _ => others.push(number),
            }
        }
        Ok(others)
    }

    fn tally(&self, judgement: &Judgement) -> PyResult<Vec<ClassRow>> {
        require(judgement.is_of(self.0.len()), "these are not the files that were judged")?;
        let mut sums: HashMap<(&[u8], &[u8]), [u64; 4]> = HashMap::new();
        for (number, file) in self.0.iter().enumerate() {
            let path = file.path.to_bytes();
            let top = path.iter().position(|&byte| byte == b'/').map_or(&[][..], |at| &path[..at]);
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            let sum = sums.entry((top, suffix(name))).or_default();
            let (new, saved) = judgement.spent_and_saved(number);
            for (sum, more) in sum.iter_mut().zip([1, file.size() as u64, new, saved]) {
                *sum += more;
            }
        }
        let row = |((top, suffix), [files, size, new, saved]): ((&[u8], &[u8]), [u64; 4])| {
            (top.to_vec(), suffix.to_vec(), files, size, new, saved)
        };
        Ok(sums.into_iter().map(row).collect())
    }

    fn leave(
        &self,
        found: &Chunks,
        judgement: &Judgement,
        ledger: &Ledger,
        saving_min: f64,
        again: bool,
    ) -> PyResult<(u64, u64)> {
        let are_right = self.were_judged(found, judgement);
        require(are_right, "these are not the chunks of these files")?;
        let (mut files, mut bytes) = (0, 0);
        for (number, file) in self.0.iter().enumerate() {
            if judgement.is_taken(number) {
                continue;
            }
            files += 1;
            bytes += file.size() as u64;
            let (gain, missing) = judgement.verdict(number, saving_min);
            let row = judged(&file.identity, gain, missing);
            if again {
                ledger.0.leave_again(row);
            } else {
                ledger.0.leave(row, judgement.prefixes_of(found.range(number)));
            }
        }
        Ok((files, bytes))
    }
}
