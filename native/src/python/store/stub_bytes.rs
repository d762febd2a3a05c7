//! `StubBytes`, `Unreadable`, `Held`, `RecipeLeaf`, `BrokenPart`.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::chunk_cache::{ChunkCache, Key, key};
use crate::format::ids::{ChunkKey, DIGEST_BYTES, Fingerprint, RecordId};
use crate::format::recipe::Row;
use crate::format::stub::{DIRECT, StubHead};
use crate::python::rados::ClusterContent;
use crate::python::store::bases::Bases;
use crate::python::support::calls::os_error;
use crate::python::support::input::{Input, require};
use crate::python::support::output::{NewBytes, column};
use crate::store::chunk_cache::Chunk;
use crate::store::content::{self, Containers, Content};
use crate::store::recipes::{Broken, LeafAt, Span};
use crate::store::record_reader::CacheUse;
use crate::store::stub_bytes::{self, Failure, Repaired};
use crate::store::why::{self, StorePart, Why};

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

/// A span as Python has it: offset, length, id, start of the fingerprint.
type SpanFields = (u64, u64, u64, u32);

fn span_fields(span: &Span) -> SpanFields {
    let (id, check) = span.chunk.map_or((0, 0), |key| (key.id.0, key.check.0));
    (span.start, span.end - span.start, id, check)
}

/// A leaf of a recipe at its place in a file.
#[pyclass(frozen, get_all, module = "dedupd_core.native.store")]
pub struct RecipeLeaf {
    offset: u64,
    length: u64,
    node: u64,
    above: Vec<u64>,
    content: Py<PyBytes>,
    ids: Vec<u64>,
    lengths: Vec<u64>,
    fingerprint_checks: Vec<u32>,
    offsets: Vec<u64>,
}

impl RecipeLeaf {
    fn of(py: Python<'_>, leaf: &LeafAt) -> RecipeLeaf {
        let node = &leaf.node;
        let is_hole = |row: &Row| row.id.is_hole();
        let check = |row: &Row| if is_hole(row) { 0 } else { row.fingerprint_check.0 };
        RecipeLeaf {
            offset: leaf.start,
            length: node.length,
            node: leaf.id.0,
            above: leaf.above.iter().map(|id| id.0).collect(),
            content: column(py, node.content),
            ids: node.rows().map(|(_, row)| row.id.0).collect(),
            lengths: node.rows().map(|(_, row)| row.length).collect(),
            fingerprint_checks: node.rows().map(|(_, row)| check(row)).collect(),
            offsets: node.rows().map(|(start, _)| start).collect(),
        }
    }
}

/// A part of a recipe that cannot be read.
#[pyclass(frozen, get_all, module = "dedupd_core.native.store")]
pub struct BrokenPart {
    offset: u64,
    length: u64,
    above: Vec<u64>,
    unreadable: Py<Unreadable>,
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

/// The result, or the unreadable part of it.
#[derive(IntoPyObject)]
pub enum PartResult<T> {
    Given(T),
    Unreadable(Unreadable),
}

impl<T> PartResult<T> {
    fn of(found: Result<T, why::Unreadable>) -> PartResult<T> {
        match found {
            Ok(given) => PartResult::Given(given),
            Err(unreadable) => PartResult::Unreadable(unreadable.into()),
        }
    }
}

impl<T> Answer<T> {
    pub fn of(py: Python<'_>, done: Result<T, Failure>) -> PyResult<Answer<T>> {
        match done {
            Ok(given) => Ok(Answer::Given(given)),
            Err(Failure::OfStore(unreadable)) => {
                Ok(Answer::Unreadable(unreadable.into_iter().map(Unreadable::from).collect()))
            }
            Err(Failure::OfFile(error)) => Err(os_error(py, &error)),
        }
    }
}

/// Chunks that were repaired.
pub fn chunks_of(repaired: &[(Key, Input)]) -> PyResult<HashMap<ChunkKey, Chunk>> {
    let chunks = repaired.iter().map(|(chunk, raw)| {
        require(raw.bytes().len() == chunk.1 as usize, "a chunk of another length")?;
        Ok((key(*chunk), Arc::new(raw.bytes().to_vec())))
    });
    chunks.collect()
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
        let chunks = chunks_of(&repaired)?;
        let stub = head(stub);
        let mut result = NewBytes::of(py, usize::try_from(end - start)?)?;
        let out = result.bytes_mut();
        let done = py.detach(|| {
            let reads = if waits { CacheUse::Any } else { CacheUse::CachedOnly };
            // SAFETY: it is open during this call, and -1 is used only if `own` is empty.
            let file = unsafe { BorrowedFd::borrow_raw(fd.max(0)) };
            let content = Repaired { content: &*self.content, chunks };
            let bytes = stub_bytes::StubBytes { content: &content, cache: &self.cache };
            bytes.fill(file, &stub, own, start..end, reads, out)
        });
        Answer::of(py, done.map(|()| result.finish()))
    }

    fn hold(&self, py: Python<'_>, stub: Stub) -> Answer<Option<Held>> {
        let stub = head(stub);
        match py.detach(|| self.content.hold(&stub)) {
            Ok(held) => Answer::Given(held.map(Held)),
            Err(unreadable) => Answer::Unreadable(vec![unreadable.into()]),
        }
    }

    fn described(&self, py: Python<'_>, stub: Stub) -> PartResult<(u64, u8, Py<PyBytes>)> {
        let stub = head(stub);
        let found = py.detach(|| self.content.described(&stub));
        PartResult::of(found.map(|root| (root.length, root.level, column(py, root.content))))
    }

    fn spans(
        &self,
        py: Python<'_>,
        stub: Stub,
        start: u64,
        end: u64,
    ) -> PartResult<Vec<SpanFields>> {
        let stub = head(stub);
        let found = py.detach(|| self.content.spans(&stub, &(start..end), CacheUse::Any));
        PartResult::of(found.map(|spans| spans.iter().map(span_fields).collect()))
    }

    fn leaf(&self, py: Python<'_>, stub: Stub, at: u64) -> PyResult<Py<PyAny>> {
        let stub = head(stub);
        Ok(match py.detach(|| self.content.leaf(&stub, at)) {
            Ok(leaf) => Py::new(py, RecipeLeaf::of(py, &leaf))?.into_any(),
            Err(Broken { range, above, unreadable }) => {
                let part = BrokenPart {
                    offset: range.start,
                    length: range.end - range.start,
                    above: above.iter().map(|id| id.0).collect(),
                    unreadable: Py::new(py, Unreadable::from(unreadable))?,
                };
                Py::new(py, part)?.into_any()
            }
        })
    }

    fn keep_node(&self, record_id: u64, payload: Input, fingerprint: Fingerprint) -> bool {
        self.content.keep_node(RecordId(record_id), payload.bytes(), &fingerprint)
    }

    fn keep_direct(&self, record_id: u64, length: u32, fingerprint: Fingerprint) {
        self.content.keep_direct(RecordId(record_id), length, &fingerprint);
    }
}
