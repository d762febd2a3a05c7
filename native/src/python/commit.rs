//! `PlainRequests`, `CommitBatch`, `exchange_attribute`, `punch_and_settle`.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::support::calls::{c_string, call};
use super::support::door::Door;
use super::support::entries::{Fields, fields_of, identity_of, seeds_of};
use super::support::input::pack_u64;
use super::support::output::flags;
use super::support::threads::check_threads;
use crate::commit::batch::{self, Begun, Commit, Volume};
use crate::commit::requests::{self, Request};
use crate::commit::steps;
use crate::format::ids::{DIGEST_BYTES, RecordId};
use crate::threads::lock::locked;

#[pyclass(module = "dedupd_core.native.commit")]
#[derive(Default)]
pub struct PlainRequests(pub Vec<Request>);

/// Path, identity and recipe of a file: id, digest, and whether the id is that of a chunk.
type One = (Vec<u8>, Fields, (u64, [u8; DIGEST_BYTES], bool));

#[pymethods]
impl PlainRequests {
    #[new]
    fn new() -> PlainRequests {
        PlainRequests::default()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, at: usize) -> PyResult<One> {
        let request = self.0.get(at).ok_or_else(|| no_request(at))?;
        let recipe = (request.recipe.0, request.digest, request.direct);
        Ok((request.path.to_bytes().to_vec(), fields_of(request.expected), recipe))
    }

    #[getter]
    fn size_bytes(&self) -> i64 {
        self.0.iter().map(|request| request.expected.size).sum()
    }

    #[getter]
    fn paths(&self) -> Vec<u8> {
        let paths = self.0.iter().map(|request| request.path.to_bytes_with_nul());
        paths.collect::<Vec<_>>().concat()
    }

    fn add(&mut self, path: &[u8], identity: Fields, recipe: (u64, &[u8], bool)) -> PyResult<()> {
        let (recipe, digest, direct) = recipe;
        let digest = <[u8; DIGEST_BYTES]>::try_from(digest)
            .map_err(|_| PyValueError::new_err("a digest has not 16 bytes"))?;
        let (path, expected) = (c_string("path", path)?, identity_of(identity));
        let recipe = RecordId(recipe);
        self.0.push(Request { path, expected, recipe, digest, direct });
        Ok(())
    }

    fn take(&mut self, mut source: PyRefMut<'_, PlainRequests>) {
        self.0.append(&mut source.0);
    }

    #[getter]
    fn inodes(&self) -> Vec<u8> {
        pack_u64(self.0.iter().map(|request| request.expected.inode))
    }

    fn to_bytes(&self) -> Vec<u8> {
        requests::to_bytes(&self.0)
    }

    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<PlainRequests> {
        let invalid = || PyValueError::new_err("these bytes are no requests to commit files");
        requests::from_bytes(data).map(PlainRequests).ok_or_else(invalid)
    }

    fn pick(&self, positions: Vec<usize>) -> PyResult<PlainRequests> {
        let one = |at| self.0.get(at).cloned().ok_or_else(|| no_request(at));
        Ok(PlainRequests(positions.into_iter().map(one).collect::<PyResult<_>>()?))
    }

    fn part(&self, first: usize, end: usize) -> PlainRequests {
        let end = end.min(self.0.len());
        PlainRequests(self.0[first.min(end)..end].to_vec())
    }
}

fn no_request(at: usize) -> PyErr {
    PyIndexError::new_err(format!("there is no request {at}"))
}

#[pyclass(frozen, module = "dedupd_core.native.commit")]
pub struct CommitBatch {
    volume: Volume,
    threads: usize,
    door: Door,
    /// Locked only with the GIL released, because the door may take the GIL.
    files: Mutex<Vec<Commit>>,
}

impl CommitBatch {
    fn files(&self) -> MutexGuard<'_, Vec<Commit>> {
        locked(&self.files)
    }
}

#[pymethods]
impl CommitBatch {
    #[new]
    fn new(
        data_fd: i32,
        attribute: &[u8],
        seeds: (u64, u64),
        block_bytes: i64,
        threads: usize,
        is_shared: bool,
        door: Option<Py<PyAny>>,
    ) -> PyResult<CommitBatch> {
        if block_bytes < 1 {
            return Err(PyValueError::new_err(format!("block_bytes must not be {block_bytes}")));
        }
        let attribute = c_string("attribute", attribute)?;
        let door = Door::new(door);
        let effects = door.effects.clone();
        let seeds = seeds_of(seeds);
        let volume = Volume { data: data_fd, attribute, seeds, block_bytes, effects, is_shared };
        let threads = check_threads(threads)?;
        Ok(CommitBatch { volume, threads, door, files: Mutex::default() })
    }

    fn begin(&self, py: Python<'_>, requests: PyRef<'_, PlainRequests>) -> PyResult<Vec<u8>> {
        let requests = requests.0.clone();
        let begun = py.detach(|| {
            let mut files = self.files();
            let first = files.len();
            files.extend(requests.into_iter().map(|request| (request, None)));
            batch::begin_all(&self.volume, &mut files[first..], self.threads);
            flags(files[first..].iter().map(|(_, begun)| begun.is_some()))
        });
        self.door.check()?;
        Ok(begun)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<(Vec<u8>, i64)> {
        let (done, freed) =
            py.detach(|| batch::finish_all(&self.volume, &mut self.files(), self.threads));
        self.door.check()?;
        Ok((flags(done), freed))
    }

    fn begun(&self, py: Python<'_>, at: usize) -> PyResult<Option<(i32, Fields)>> {
        let fields = |begun: &Begun| (begun.file.as_raw_fd(), fields_of(begun.identity));
        let found = py.detach(|| self.files().get(at).map(|(_, begun)| begun.as_ref().map(fields)));
        found.ok_or_else(|| no_request(at))
    }

    fn take(&self, py: Python<'_>, at: usize) -> Option<(i32, Fields)> {
        let taken = py.detach(|| self.files().get_mut(at).and_then(|(_, begun)| begun.take()));
        taken.map(|begun| (begun.file.into_raw_fd(), fields_of(begun.identity)))
    }

    fn revert(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let failed = py.detach(|| batch::revert_all(&self.volume, &mut self.files()));
        self.door.check()?;
        Ok(flags(failed))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.files().clear());
    }
}

#[pyfunction]
pub fn exchange_attribute(
    py: Python<'_>,
    fd: i32,
    identity: Fields,
    name: &[u8],
    previous: Option<&[u8]>,
    value: &[u8],
    door: Option<Py<PyAny>>,
) -> PyResult<Option<Fields>> {
    let (name, door) = (c_string("name", name)?, Door::new(door));
    let (expected, effects) = (identity_of(identity), &*door.effects);
    let after =
        call(py, || steps::exchange_attribute(effects, fd, expected, &name, previous, value));
    door.check()?;
    Ok(after?.map(fields_of))
}

/// Times in ns: of last access, of last modification.
type Times = (i128, i64);

#[pyfunction]
pub fn punch_and_settle(
    py: Python<'_>,
    fd: i32,
    length: i64,
    times_ns: Times,
    name: &[u8],
    value: &[u8],
    door: Option<Py<PyAny>>,
) -> PyResult<i64> {
    let (name, door) = (c_string("name", name)?, Door::new(door));
    let ((atime_ns, mtime_ns), effects) = (times_ns, &*door.effects);
    let done =
        call(py, || steps::punch_and_settle(effects, fd, length, atime_ns, mtime_ns, &name, value));
    door.check()?;
    done
}
