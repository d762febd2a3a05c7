//! `CommitRequests`, `CommitBatch`, `begin`, `finish`.

use std::os::fd::IntoRawFd;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::support::calls::c_string;
use super::support::door::Door;
use super::support::entries::{Fields, fields_of, identity_of, seeds_of};
use super::support::input::{pack_u64, require};
use super::support::output::flags;
use super::support::threads::check_threads;
use crate::commit::batch::{self, Commit, Refusals, Tree};
use crate::commit::requests::{self, Request};
use crate::commit::steps::{Space, Why};
use crate::format::ids::{DIGEST_BYTES, RecordId};
use crate::threads::lock::locked;

#[pyclass(module = "dedupd_core.native.commit")]
#[derive(Default)]
pub struct CommitRequests(pub Vec<Request>);

/// A recipe: id, digest, and whether it is a chunk.
type Recipe<'a> = (u64, &'a [u8], bool);

/// A file: path, identity, recipe, previous attribute, whether it was offered in parts.
type CommitRow = (Vec<u8>, Fields, (u64, [u8; DIGEST_BYTES], bool), Option<Vec<u8>>, bool);

fn request_of(
    path: &[u8],
    identity: Fields,
    recipe: Recipe<'_>,
    previous: Option<Vec<u8>>,
) -> PyResult<Request> {
    let (recipe, digest, direct) = recipe;
    let digest = <[u8; DIGEST_BYTES]>::try_from(digest)
        .map_err(|_| PyValueError::new_err("a digest has not 16 bytes"))?;
    let (path, expected) = (c_string("path", path)?, identity_of(identity));
    let (recipe, in_parts) = (RecordId(recipe), false);
    Ok(Request { path, expected, recipe, digest, direct, previous, in_parts })
}

/// Why a file does not become a stub.
#[pyclass(frozen, get_all, module = "dedupd_core.native.commit")]
pub struct Refusal {
    why: &'static str,
    errno: i32,
}

impl From<Why> for Refusal {
    fn from(why: Why) -> Refusal {
        Refusal { why: why.name(), errno: why.errno() }
    }
}

/// Refusals by position.
type Refused = Vec<(usize, Refusal)>;

fn refused(refusals: Refusals) -> Refused {
    refusals.into_iter().map(|(at, why)| (at, why.into())).collect()
}

/// A result, or why there is none.
#[derive(IntoPyObject)]
pub enum Answer<T> {
    Done(T),
    Refused(Refusal),
}

impl<T> From<Result<T, Why>> for Answer<T> {
    fn from(result: Result<T, Why>) -> Answer<T> {
        result.map_or_else(|why| Answer::Refused(why.into()), Answer::Done)
    }
}

#[pymethods]
impl CommitRequests {
    #[new]
    fn new() -> CommitRequests {
        CommitRequests::default()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, at: usize) -> PyResult<CommitRow> {
        let request = self.0.get(at).ok_or_else(|| no_request(at))?;
        let recipe = (request.recipe.0, request.digest, request.direct);
        let (path, identity) = (request.path.to_bytes().to_vec(), fields_of(request.expected));
        Ok((path, identity, recipe, request.previous.clone(), request.in_parts))
    }

    #[getter]
    fn size_bytes(&self) -> i64 {
        self.0.iter().map(|request| request.expected.size).sum()
    }

    #[getter]
    fn paths(&self) -> Vec<&[u8]> {
        self.0.iter().map(|request| request.path.to_bytes()).collect()
    }

    #[pyo3(signature = (path, identity, recipe, previous = None, in_parts = false))]
    fn add(
        &mut self,
        path: &[u8],
        identity: Fields,
        recipe: Recipe<'_>,
        previous: Option<Vec<u8>>,
        in_parts: bool,
    ) -> PyResult<()> {
        let fits = previous.as_ref().is_none_or(|value| value.len() <= usize::from(u16::MAX));
        require(fits, "an attribute of a stub is shorter")?;
        self.0.push(Request { in_parts, ..request_of(path, identity, recipe, previous)? });
        Ok(())
    }

    fn take(&mut self, mut source: PyRefMut<'_, CommitRequests>) {
        self.0.append(&mut source.0);
    }

    #[getter]
    fn inodes(&self) -> Vec<u8> {
        pack_u64(self.0.iter().map(|request| request.expected.inode))
    }

    #[getter]
    fn are_plain(&self) -> Vec<u8> {
        flags(self.0.iter().map(Request::is_plain))
    }

    fn to_bytes(&self) -> Vec<u8> {
        requests::to_bytes(&self.0)
    }

    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<CommitRequests> {
        let invalid = || PyValueError::new_err("these bytes are no requests to commit files");
        requests::from_bytes(data).map(CommitRequests).ok_or_else(invalid)
    }

    fn pick(&self, positions: Vec<usize>) -> PyResult<CommitRequests> {
        let one = |at| self.0.get(at).cloned().ok_or_else(|| no_request(at));
        Ok(CommitRequests(positions.into_iter().map(one).collect::<PyResult<_>>()?))
    }

    fn part(&self, first: usize, end: usize) -> CommitRequests {
        let end = end.min(self.0.len());
        CommitRequests(self.0[first.min(end)..end].to_vec())
    }
}

fn no_request(at: usize) -> PyErr {
    PyIndexError::new_err(format!("there is no request {at}"))
}

#[pyclass(frozen, module = "dedupd_core.native.commit")]
pub struct CommitBatch {
    tree: Tree,
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
        let door = Door::new(door);
        let space = space_of(attribute, seeds, block_bytes, &door)?;
        let threads = check_threads(threads)?;
        let tree = Tree { data: data_fd, space, is_shared };
        Ok(CommitBatch { tree, threads, door, files: Mutex::default() })
    }

    fn begin(&self, py: Python<'_>, requests: PyRef<'_, CommitRequests>) -> PyResult<Refused> {
        let requests = requests.0.clone();
        let refusals = py.detach(|| {
            let mut files = self.files();
            *files = requests.into_iter().map(|request| (request, None)).collect();
            batch::begin_all(&self.tree, &mut files, self.threads)
        });
        self.door.check()?;
        Ok(refused(refusals))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<(Refused, i64)> {
        let (refusals, freed) =
            py.detach(|| batch::finish_all(&self.tree, &mut self.files(), self.threads));
        self.door.check()?;
        Ok((refused(refusals), freed))
    }

    fn take(&self, py: Python<'_>, at: usize) -> Option<(i32, Fields)> {
        let taken = py.detach(|| self.files().get_mut(at).and_then(|(_, begun)| begun.take()));
        taken.map(|begun| (begun.file.into_raw_fd(), fields_of(begun.identity)))
    }

    fn revert(&self, py: Python<'_>) -> PyResult<usize> {
        let failed = py.detach(|| batch::revert_all(&self.tree, &mut self.files()));
        self.door.check()?;
        Ok(failed)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.files().clear());
    }
}

fn space_of(attribute: &[u8], seeds: (u64, u64), block_bytes: i64, door: &Door) -> PyResult<Space> {
    require(block_bytes > 0, "block_bytes must be positive")?;
    let (attribute, effects) = (c_string("attribute", attribute)?, door.effects.clone());
    Ok(Space { attribute, seeds: seeds_of(seeds), block_bytes, effects })
}

/// Attribute, seeds and size of a block of a volume.
type SpaceFields<'a> = (&'a [u8], (u64, u64), i64);

/// A file: its identity when it was read, its recipe, and its current attribute.
type FileFields<'a> = (Fields, Recipe<'a>, Option<Vec<u8>>);

/// One step of one file, which is open.
fn step<T: Send>(
    py: Python<'_>,
    (identity, recipe, previous): FileFields<'_>,
    (attribute, seeds, block_bytes): SpaceFields<'_>,
    door: Option<Py<PyAny>>,
    step: impl Fn(&Space, &Request) -> Result<T, Why> + Sync,
) -> PyResult<Answer<T>> {
    let (request, door) = (request_of(b"", identity, recipe, previous)?, Door::new(door));
    let space = space_of(attribute, seeds, block_bytes, &door)?;
    let result = py.detach(|| step(&space, &request));
    door.check()?;
    Ok(result.into())
}

#[pyfunction]
pub fn begin(
    py: Python<'_>,
    fd: i32,
    file: FileFields<'_>,
    space: SpaceFields<'_>,
    door: Option<Py<PyAny>>,
) -> PyResult<Answer<Fields>> {
    step(py, file, space, door, |space, request| space.begin(fd, request).map(fields_of))
}

#[pyfunction]
pub fn finish(
    py: Python<'_>,
    fd: i32,
    begun: Fields,
    file: FileFields<'_>,
    space: SpaceFields<'_>,
    door: Option<Py<PyAny>>,
) -> PyResult<Answer<i64>> {
    step(py, file, space, door, |space, request| space.finish(fd, request, identity_of(begun)))
}
