//! `StubBytes`, `Unreadable`, `Held`.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::chunk_cache::{ChunkCache, Key, key};
use crate::format::ids::{DIGEST_BYTES, Fingerprint, RecordId};
use crate::format::stub::{DIRECT, StubHead};
use crate::python::rados::ClusterContent;
use crate::python::support::calls::os_error;
use crate::python::support::input::{Input, require};
use crate::python::support::output::NewBytes;
use crate::python::upkeep::refine::Bases;
use crate::store::chunk_cache::Chunk;
use crate::store::content::{self, Containers, Content};
use crate::store::record_reader::Reads;
use crate::store::stub_bytes::{self, AT_ONCE_BYTES, Failure, Repaired, filled, pieces_of};
use crate::store::why::{self, StorePart, Why};
use crate::system::reads::{read_all, read_cached};

/// A part of a stub that cannot be read, and the reason.
#[pyclass(frozen, get_all, module = "dedupd_core.native.store")]
pub struct Unreadable {
    part: &'static str,
    id: u64,
    length: u32,
    check: u32,
    why: &'static str,
    errno: i32,
}

impl From<why::Unreadable> for Unreadable {
    fn from(unreadable: why::Unreadable) -> Unreadable {
        let (part, id, length, check) = match unreadable.part {
            StorePart::Chunk(key) => ("chunk", key.id.0, key.length, key.check.0),
            StorePart::Direct(id) => ("direct", id.0, 0, 0),
            StorePart::Node(id) => ("node", id.0, 0, 0),
            StorePart::Recipe => ("recipe", 0, 0, 0),
        };
        let (why, errno) = match unreadable.why {
            Why::NotInMemory => ("not in memory", 0),
            Why::NotOpen => ("not open", 0),
            Why::Merged => ("merged", 0),
            Why::NotLive => ("not live", 0),
            Why::Quarantined => ("quarantined", 0),
            Why::Damaged => ("damaged", 0),
            Why::NotMeant => ("not meant", 0),
            Why::TooLong => ("too long", 0),
            Why::Io(errno) => ("errno", errno),
        };
        Unreadable { part, id, length, check, why, errno }
    }
}

/// Keeps a recipe in memory while a stub is read.
#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct Held(#[expect(dead_code, reason = "it is kept as long as this")] content::Held);

/// The result, or the parts of it that cannot be read.
#[derive(IntoPyObject)]
pub enum Answer<T> {
    Given(T),
    Unreadable(Vec<Unreadable>),
}

/// The name of a stub in Python: its recipe, the recipe's digest, whether it is a chunk, and the
/// covered length.
type Stub = (u64, [u8; DIGEST_BYTES], bool, u64);

fn head((recipe, digest, is_direct, covered): Stub) -> StubHead {
    let flags = if is_direct { DIRECT } else { 0 };
    let recipe = RecordId(recipe);
    StubHead { flags, recipe, digest, covered, mtime_ns: 0, binding: 0, local: 0 }
}

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct StubBytes {
    pub content: Arc<dyn Content>,
    pub cache: Arc<crate::store::chunk_cache::ChunkCache>,
}

#[pymethods]
impl StubBytes {
    #[new]
    fn new(
        chunks: &Bound<'_, Bases>,
        streams: &Bound<'_, Bases>,
        cache: &Bound<'_, ChunkCache>,
        threads: usize,
    ) -> StubBytes {
        let (chunks, streams) = (Arc::clone(&chunks.get().0), Arc::clone(&streams.get().0));
        let content = Arc::new(Containers::new(chunks, streams, threads.saturating_sub(1)));
        StubBytes { content, cache: Arc::clone(&cache.get().0) }
    }

    #[staticmethod]
    fn of_cluster(content: &Bound<'_, ClusterContent>, cache: &Bound<'_, ChunkCache>) -> StubBytes {
        StubBytes { content: content.get().0.clone(), cache: Arc::clone(&cache.get().0) }
    }

    #[pyo3(signature = (fd, stub, own, start, end, *, waits, repaired = Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "a stub, and what of it")]
    fn read(
        &self,
        py: Python<'_>,
        fd: RawFd,
        stub: Stub,
        own: Vec<(u64, u64)>,
        start: u64,
        end: u64,
        waits: bool,
        repaired: Vec<(Key, Input)>,
    ) -> PyResult<Answer<Py<PyBytes>>> {
        require(start <= end, "start > end")?;
        let chunks = repaired.iter().map(|(chunk, raw)| {
            require(raw.bytes().len() == chunk.1 as usize, "a chunk of another length")?;
            Ok((key(*chunk), Arc::new(raw.bytes().to_vec())))
        });
        let chunks: HashMap<_, Chunk> = chunks.collect::<PyResult<_>>()?;
        let stub = head(stub);
        let length = usize::try_from(end - start)?;
        let mut result = NewBytes::of(py, length)?;
        let out = result.bytes_mut();
        let done = py.detach(|| {
            let reads = if waits { Reads::Any } else { Reads::CachedOnly };
            // SAFETY: it is open during this call, and -1 is used only if `own` is empty.
            let file = unsafe { BorrowedFd::borrow_raw(fd.max(0)) };
            // If the file was truncated at the same time, zeros follow its end.
            let pieces = pieces_of(&stub, own, start..end, |at, bytes| match waits {
                true => read_all(file, at, bytes).map(drop).map_err(Failure::OfFile),
                false => match read_cached(file, at, bytes) {
                    Some(_) => Ok(()),
                    None => Err(vec![why::Unreadable::NOT_IN_MEMORY].into()),
                },
            })?;
            let content = Repaired { content: &*self.content, chunks };
            let bytes = stub_bytes::StubBytes { content: &content, cache: &self.cache };
            let parts = bytes.parts(&stub, &pieces, reads, end - start <= AT_ONCE_BYTES)?;
            Ok(filled(&parts, out))
        });
        match done {
            Ok(done) if done == Some(length) => Ok(Answer::Given(result.finish())),
            Ok(_) => Err(PyValueError::new_err("the recipe has other chunks than it says")),
            Err(Failure::OfStore(unreadable)) => {
                let unreadable = unreadable.into_iter().map(Unreadable::from);
                Ok(Answer::Unreadable(unreadable.collect()))
            }
            Err(Failure::OfFile(errno)) => Err(os_error(py, &io::Error::from(errno))),
        }
    }

    fn hold(&self, py: Python<'_>, stub: Stub) -> Answer<Option<Held>> {
        let stub = head(stub);
        match py.detach(|| self.content.hold(&stub)) {
            Ok(held) => Answer::Given(held.map(Held)),
            Err(unreadable) => Answer::Unreadable(vec![unreadable.into()]),
        }
    }

    fn keep_node(&self, record_id: u64, payload: Input, fingerprint: Fingerprint) {
        self.content.keep_node(RecordId(record_id), payload.bytes(), &fingerprint);
    }

    fn keep_direct(&self, record_id: u64, length: u32, fingerprint: Fingerprint) {
        self.content.keep_direct(RecordId(record_id), length, &fingerprint);
    }
}
