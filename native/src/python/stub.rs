//! `OpenStub`, `uncounted_bytes`.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::store::chunk_cache::Key;
use super::store::stub_bytes::{Answer, StubBytes, chunks_of};
use super::support::calls::{c_string, call};
use super::support::door::Door;
use super::support::input::{Input, require};
use super::support::output::NewBytes;
use crate::format::ids::DIGEST_BYTES;
use crate::format::stub::{StubHead, WRITTEN, stub_head};
use crate::store::record_reader::CacheUse;
use crate::store::stub_bytes::{self, Repaired};
use crate::stub::blocks::{self, TRANSIENT};
use crate::stub::open_stub::{self, Done, State, StubFiles};
use crate::stub::ranges::Step;
use crate::system::extents::has_data;
use crate::system::files::status_of;
use crate::threads::lock::locked;

/// The source of the store's bytes: its reader, whether reads may wait for the disk, and repaired
/// chunks.
type Source<'py> = (Bound<'py, StubBytes>, bool, Vec<(Key, Input)>);

fn head_of(value: &[u8], seed: u64) -> PyResult<StubHead> {
    let no_stub = || PyValueError::new_err("these bytes are no attribute of a stub");
    stub_head(value, seed).ok_or_else(no_stub)
}

/// The result, or the unreadable parts of the store.
type StubResult<T> = PyResult<Answer<T>>;

#[pyclass(frozen, subclass, module = "dedupd_core.native.stub")]
pub struct OpenStub {
    files: StubFiles,
    door: Door,
    /// Never locked for longer than it takes to copy it.
    state: Mutex<(RawFd, State)>,
}

impl OpenStub {
    /// Makes a change, and keeps the new state of the stub.
    fn change<T: Send>(
        &self,
        source: Source<'_>,
        step: impl FnOnce(&mut open_stub::OpenStub<'_>) -> Done<T> + Send,
    ) -> StubResult<T> {
        let py = source.0.py();
        let (done, state) = self.with(source, step)?;
        locked(&self.state).1 = state;
        self.door.check()?;
        Answer::of(py, done)
    }

    fn with<T: Send>(
        &self,
        (bytes, waits, repaired): Source<'_>,
        step: impl FnOnce(&mut open_stub::OpenStub<'_>) -> Done<T> + Send,
    ) -> PyResult<(Done<T>, State)> {
        let py = bytes.py();
        let (bytes, chunks) = (bytes.get(), chunks_of(&repaired)?);
        let reads = if waits { CacheUse::Any } else { CacheUse::CachedOnly };
        let (fd, state) = locked(&self.state).clone();
        Ok(py.detach(|| {
            let content = Repaired { content: &*bytes.content, chunks };
            let mut stub = open_stub::OpenStub {
                // SAFETY: it is open as long as this call lasts.
                fd: unsafe { BorrowedFd::borrow_raw(fd) },
                state,
                files: &self.files,
                effects: &*self.door.effects,
                bytes: stub_bytes::StubBytes { content: &content, cache: &bytes.cache },
                reads,
            };
            (step(&mut stub), stub.state)
        }))
    }
}

#[pymethods]
impl OpenStub {
    #[new]
    fn new(
        fd: RawFd,
        value: &[u8],
        name: &[u8],
        seed: u64,
        block_bytes: u64,
        door: Option<Py<PyAny>>,
    ) -> PyResult<OpenStub> {
        require(block_bytes > 0, "block_bytes must not be 0")?;
        let files = StubFiles { attribute: c_string("name", name)?, seed, block_bytes };
        let state = State::of(head_of(value, seed)?, has_data(fd, &(0..i64::MAX as u64))?);
        Ok(OpenStub { files, door: Door::new(door), state: Mutex::new((fd, state)) })
    }

    #[getter]
    fn fd(&self) -> RawFd {
        locked(&self.state).0
    }

    #[setter]
    fn set_fd(&self, fd: RawFd) {
        locked(&self.state).0 = fd;
    }

    #[getter]
    fn block_bytes(&self) -> u64 {
        self.files.block_bytes
    }

    #[getter]
    fn has_unwritten(&self) -> bool {
        locked(&self.state).1.has_unwritten
    }

    #[setter]
    fn set_has_unwritten(&self, has_unwritten: bool) {
        locked(&self.state).1.has_unwritten = has_unwritten;
    }

    #[getter]
    fn is_at_rest(&self) -> bool {
        let state = &locked(&self.state).1;
        !(state.has_unwritten || state.is_stale || state.head.flags & TRANSIENT != 0)
    }

    #[getter]
    fn fields(&self) -> (u64, [u8; DIGEST_BYTES], u64, i64, u8, u64) {
        let head = &locked(&self.state).1.head;
        (head.recipe.0, head.digest, head.covered, head.mtime_ns, head.flags, head.local)
    }

    fn note_local(&self) {
        let state = &mut locked(&self.state).1;
        state.may_be_local |= state.head.flags & WRITTEN != 0;
    }

    fn missing(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<Vec<(u64, u64)>> {
        let (fd, state) = locked(&self.state).clone();
        let missing = call(py, || state.missing(fd, start..end))?;
        Ok(missing.into_iter().map(|part| (part.start, part.end)).collect())
    }

    fn read_by(&self, source: Source<'_>, start: u64, end: u64) -> StubResult<Py<PyBytes>> {
        let end = end.min(status_of(self.fd())?.st_size as u64).max(start);
        let py = source.0.py();
        let mut result = NewBytes::of(py, (end - start) as usize)?;
        let out = result.bytes_mut();
        let (done, _) = self.with(source, |stub| stub.read(start..end, out))?;
        Answer::of(py, done.map(|()| result.finish()))
    }

    fn write_by(&self, source: Source<'_>, offset: u64, data: Input) -> StubResult<usize> {
        self.change(source, |stub| stub.write(offset, data.bytes()))
    }

    fn truncate_by(&self, source: Source<'_>, size: u64) -> StubResult<bool> {
        self.change(source, |stub| stub.truncate(size))
    }

    fn allocate_by(
        &self,
        source: Source<'_>,
        start: u64,
        end: u64,
        keeps_size: bool,
    ) -> StubResult<Step> {
        self.change(source, |stub| stub.allocate(start..end, keeps_size))
    }

    fn zero_by(&self, source: Source<'_>, start: u64, end: u64) -> StubResult<Step> {
        self.change(source, |stub| stub.zero(start, end))
    }

    fn fill_by(
        &self,
        source: Source<'_>,
        loaded: Vec<(u64, Input)>,
        end: u64,
        is_next: &Bound<'_, PyAny>,
    ) -> StubResult<usize> {
        let (fd, state) = locked(&self.state).clone();
        let loaded: Vec<_> = loaded.iter().map(|(start, data)| (*start, data.bytes())).collect();
        let block_bytes = self.files.block_bytes;
        let pieces = call(is_next.py(), || state.missing_pieces(fd, &loaded, end, block_bytes))?;
        let bytes = pieces.iter().map(|(_, data)| data.len()).sum();
        if bytes == 0 {
            return Ok(Answer::Given(0));
        }
        is_next.call1((bytes,))?;
        self.change(source, |stub| stub.fill(&pieces).map(|()| bytes))
    }

    fn take_back_by(
        &self,
        source: Source<'_>,
        start: u64,
        end: u64,
        is_whole: bool,
    ) -> StubResult<()> {
        self.change(source, |stub| stub.take_back(start..end, is_whole))
    }

    fn punch_equal_by(&self, source: Source<'_>, end: u64) -> StubResult<bool> {
        self.change(source, |stub| stub.punch_equal(0..end))
    }

    fn seal_by(&self, source: Source<'_>) -> StubResult<bool> {
        self.change(source, |stub| stub.seal())
    }
}

#[pyfunction]
pub fn uncounted_bytes(
    py: Python<'_>,
    fd: RawFd,
    value: &[u8],
    seed: u64,
    block_bytes: u64,
) -> PyResult<i64> {
    let head = head_of(value, seed)?;
    call(py, || blocks::uncounted_bytes(fd, &head, block_bytes))
}
