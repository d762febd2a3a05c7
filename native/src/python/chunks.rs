//! `Chunks`, `NewChunks`, `Placed`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::support::input::{Input, pack_u32, pack_u64};
use crate::format::bytes::u64s;
use crate::format::ids::RecordId;
use crate::ingest::chunks::Chunk;
use crate::ingest::new_chunks::{self, New, Placed as Inner};

#[pyclass(frozen, module = "dedupd.native.chunker")]
pub struct Chunks {
    found: Vec<Vec<Chunk>>,
    /// The number of chunks before each segment, and of all chunks.
    firsts: Vec<usize>,
}

impl Chunks {
    pub fn new(found: Vec<Vec<Chunk>>) -> Chunks {
        let mut firsts: Vec<usize> = vec![0];
        firsts.extend(found.iter().scan(0, |sum, chunks| {
            *sum += chunks.len();
            Some(*sum)
        }));
        Chunks { found, firsts }
    }

    pub fn segments(&self) -> &[Vec<Chunk>] {
        &self.found
    }

    pub fn count(&self) -> usize {
        self.firsts.last().copied().unwrap_or_default()
    }

    /// The ids of the chunks of a segment, from the ids of all chunks.
    pub fn ids_of<'a>(&self, segment: usize, ids: &'a [u64]) -> &'a [u64] {
        &ids[self.firsts[segment]..self.firsts[segment + 1]]
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.found.iter().flatten()
    }
}

#[pymethods]
impl Chunks {
    fn __len__(&self) -> usize {
        self.count()
    }

    #[getter]
    fn ends<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        pack_u32(py, self.chunks().map(|chunk| chunk.end as u32))
    }

    #[getter]
    fn fingerprints<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let packed: Vec<u8> = self.chunks().flat_map(|chunk| chunk.fingerprint).collect();
        PyBytes::new(py, &packed)
    }

    #[getter]
    fn zero<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let zero: Vec<u8> = self.chunks().map(|chunk| chunk.zero.into()).collect();
        PyBytes::new(py, &zero)
    }

    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        pack_u32(py, self.found.iter().map(|chunks| chunks.len() as u32))
    }

    fn place(&self, py: Python<'_>, known: Input, as_is: Input) -> PyResult<Placed> {
        let known = known.u64s("known")?;
        let as_is: Vec<bool> = as_is.bytes().iter().map(|flag| *flag != 0).collect();
        if known.len() != self.count() || as_is.len() != self.found.len() {
            let message = "known must have an item for each chunk, as_is for each segment";
            return Err(PyValueError::new_err(message));
        }
        let placed = py.detach(|| new_chunks::place(&self.found, &known, &as_is));
        Placed::of(py, placed)
    }

    fn rows<'py>(&self, py: Python<'py>, segment: usize, ids: Input) -> PyResult<Vec<Row<'py>>> {
        let ids = ids.bytes();
        let chunks = self.found.get(segment).filter(|_| ids.len() == ID_BYTES * self.count());
        let chunks = chunks.ok_or_else(|| {
            PyValueError::new_err(format!("ids of all chunks, and a segment, not {segment}"))
        })?;
        let own = u64s(&ids[ID_BYTES * self.firsts[segment]..]);
        let row = |(id, chunk): (u64, &Chunk)| {
            (id, chunk.end - chunk.start, PyBytes::new(py, &chunk.fingerprint))
        };
        Ok(own.zip(chunks).map(row).collect())
    }
}

const ID_BYTES: usize = size_of::<RecordId>();

/// Id, length and fingerprint of a chunk.
type Row<'py> = (u64, usize, Bound<'py, PyBytes>);

#[pyclass(frozen, module = "dedupd.native.ingest")]
pub struct Placed {
    inner: Inner,
    #[pyo3(get)]
    new: (Py<NewChunks>, Py<NewChunks>),
}

impl Placed {
    pub fn of(py: Python<'_>, mut inner: Inner) -> PyResult<Placed> {
        let [first, second] = std::mem::take(&mut inner.new).map(|new| NewChunks::of(py, &new));
        Ok(Placed { inner, new: (Py::new(py, first)?, Py::new(py, second)?) })
    }
}

#[pymethods]
impl Placed {
    #[getter]
    fn duplicate_bytes(&self) -> usize {
        self.inner.duplicate_bytes
    }

    #[getter]
    fn zero_bytes(&self) -> usize {
        self.inner.zero_bytes
    }

    fn ids<'py>(&self, py: Python<'py>, first: u64, first_as_is: u64) -> Bound<'py, PyBytes> {
        pack_u64(py, self.inner.ids([first, first_as_is]))
    }
}

#[pyclass(frozen, module = "dedupd.native.ingest")]
pub struct NewChunks {
    length: usize,
    #[pyo3(get)]
    raw_bytes: usize,
    #[pyo3(get)]
    fingerprints: Py<PyBytes>,
    #[pyo3(get)]
    starts: Py<PyBytes>,
    #[pyo3(get)]
    lengths: Py<PyBytes>,
    #[pyo3(get)]
    hints: Py<PyBytes>,
}

impl NewChunks {
    fn of(py: Python<'_>, new: &New) -> NewChunks {
        let chunks = &new.chunks;
        let length = |chunk: &Chunk| chunk.end - chunk.start;
        let fingerprints: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.fingerprint).collect();
        NewChunks {
            length: chunks.len(),
            raw_bytes: chunks.iter().map(length).sum(),
            fingerprints: PyBytes::new(py, &fingerprints).unbind(),
            starts: pack_u32(py, chunks.iter().map(|chunk| chunk.start as u32)).unbind(),
            lengths: pack_u32(py, chunks.iter().map(|chunk| length(chunk) as u32)).unbind(),
            hints: pack_u32(py, new.hints.iter().copied()).unbind(),
        }
    }
}

#[pymethods]
impl NewChunks {
    fn __len__(&self) -> usize {
        self.length
    }
}
