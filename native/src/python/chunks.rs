//! `Chunks`, `NewChunks`, `Placed`, `Judgement`.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::admission::{Ledger, Recall, thousandths};
use super::support::input::{Input, pack_u32, pack_u64, require};
use super::support::output::{column, flags};
use crate::format::bytes::{u32s, u64s};
use crate::format::ids::{Fingerprint, RecordId};
use crate::ingest::chunks::Chunk;
use crate::ingest::judgement::{self, Encoded, Mode, NOT_STORED, Part, judge};
use crate::ingest::new_chunks::{self, New, Placed as Inner};

#[pyclass(frozen, module = "dedupd_core.native.chunker")]
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

    /// The numbers of the chunks of a segment.
    pub fn range(&self, segment: usize) -> Range<usize> {
        self.firsts[segment]..self.firsts[segment + 1]
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
    fn ends(&self) -> Vec<u8> {
        pack_u32(self.chunks().map(|chunk| chunk.end as u32))
    }

    #[getter]
    fn fingerprints(&self) -> Vec<u8> {
        self.chunks().flat_map(|chunk| chunk.fingerprint).collect()
    }

    #[getter]
    fn zero(&self) -> Vec<u8> {
        flags(self.chunks().map(|chunk| chunk.zero))
    }

    fn end(&self, segment: usize) -> Option<usize> {
        self.found.get(segment)?.last().map(|chunk| chunk.end)
    }

    #[getter]
    fn counts(&self) -> Vec<u8> {
        pack_u32(self.found.iter().map(|chunks| chunks.len() as u32))
    }

    fn place(&self, py: Python<'_>, known: Input, as_is: Input) -> PyResult<Placed> {
        let known = known.u64s("known")?;
        let as_is: Vec<bool> = as_is.bytes().iter().map(|flag| *flag != 0).collect();
        let are_right = known.len() == self.count() && as_is.len() == self.found.len();
        require(are_right, "known must have an item for each chunk, as_is for each segment")?;
        let placed = py.detach(|| new_chunks::place(&self.found, &known, &as_is));
        Placed::of(py, placed)
    }

    fn rows(&self, segment: usize, ids: Input) -> PyResult<Vec<Row>> {
        let ids = ids.bytes();
        let chunks = self.found.get(segment).filter(|_| ids.len() == ID_BYTES * self.count());
        let chunks = chunks.ok_or_else(|| {
            PyValueError::new_err(format!("ids of all chunks, and a segment, not {segment}"))
        })?;
        let own = || u64s(&ids[ID_BYTES * self.firsts[segment]..]).take(chunks.len());
        let are_stored = own().all(|id| id != NOT_STORED);
        require(are_stored, "a recipe may not name a chunk that is not stored")?;
        let row = |(id, chunk): (u64, &Chunk)| (id, chunk.end - chunk.start, chunk.fingerprint);
        Ok(own().zip(chunks).map(row).collect())
    }
}

const ID_BYTES: usize = size_of::<RecordId>();

/// Id, length and fingerprint of a chunk.
type Row = (u64, usize, Fingerprint);

#[pyclass(frozen, module = "dedupd_core.native.ingest")]
pub struct Placed {
    inner: Inner,
    #[pyo3(get)]
    new: (Py<NewChunks>, Py<NewChunks>),
}

impl Placed {
    pub fn of(py: Python<'_>, inner: Inner) -> PyResult<Placed> {
        let [first, second] = inner.new.each_ref().map(|new| NewChunks::of(py, new));
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

    fn ids(&self, first: u64, first_as_is: u64) -> Vec<u8> {
        pack_u64(self.inner.ids([first, first_as_is]))
    }

    #[pyo3(signature = (later, stored_lengths, modes, freed, recall, saving_min, *, salt = 0))]
    #[allow(clippy::too_many_arguments)]
    fn judge(
        this: Bound<'_, Placed>,
        later: (Input, Input),
        stored_lengths: (Input, Input),
        modes: Input,
        freed: Input,
        recall: &Recall,
        saving_min: f64,
        salt: u64,
    ) -> PyResult<Judgement> {
        let later = [later.0.u64s("later")?, later.1.u64s("later")?];
        let stored =
            [stored_lengths.0.u32s("stored_lengths")?, stored_lengths.1.u32s("stored_lengths")?];
        let freed = freed.u64s("freed")?;
        let parts: Option<Vec<Part>> = modes
            .bytes()
            .iter()
            .zip(&freed)
            .map(|(&mode, &freed)| Mode::of(mode).map(|mode| Part { mode, freed }))
            .collect();
        let encoded = Encoded {
            later: later.each_ref().map(Vec::as_slice),
            stored: stored.each_ref().map(Vec::as_slice),
        };
        let placed = &this.get().inner;
        let inner = parts
            .filter(|parts| parts.len() == modes.bytes().len() && parts.len() == freed.len())
            .and_then(|parts| judge(placed, &parts, &encoded, &recall.0.wanted, salt, saving_min))
            .ok_or_else(|| PyValueError::new_err("these are not the columns of these chunks"))?;
        Ok(Judgement { inner, placed: this.unbind(), freed })
    }
}

/// The decision about the new chunks of a buffer.
#[pyclass(frozen, module = "dedupd_core.native.ingest")]
pub struct Judgement {
    inner: judgement::Judgement,
    placed: Py<Placed>,
    freed: Vec<u64>,
}

impl Judgement {
    /// Returns whether it has this number of parts.
    pub fn is_of(&self, parts: usize) -> bool {
        self.inner.taken.len() == parts
    }

    pub fn is_taken(&self, part: usize) -> bool {
        self.inner.taken[part]
    }

    /// The entry of a part in a ledger: the thousandths that it would save, and the number of
    /// missing chunks.
    pub fn verdict(&self, part: usize, saving_min: f64) -> (u16, u16) {
        let (freed, cost) = (self.freed[part], self.inner.costs[part]);
        let unique = self.inner.unique[part];
        let (saving, missing) = judgement::verdict(freed, cost, unique, saving_min);
        (thousandths(saving), missing)
    }

    /// The bytes of chunks that only this part has, and the bytes of its blocks minus the growth of
    /// the store.
    pub fn spent_and_saved(&self, part: usize) -> (u64, u64) {
        let saved = self.freed[part].saturating_sub(self.inner.costs[part]);
        (self.inner.fresh[part], if self.inner.taken[part] { saved } else { 0 })
    }

    pub fn prefixes_of(&self, chunks: Range<usize>) -> impl Iterator<Item = u64> {
        self.inner.prefixes(&self.placed.get().inner, chunks)
    }
}

#[pymethods]
impl Judgement {
    #[getter]
    fn taken(&self) -> Vec<u8> {
        flags(self.inner.taken.iter().copied())
    }

    #[getter]
    fn costs(&self) -> Vec<u64> {
        self.inner.costs.clone()
    }

    #[getter]
    fn unique(&self) -> Vec<u32> {
        self.inner.unique.clone()
    }

    #[getter]
    fn solid(&self) -> Vec<u64> {
        self.inner.solid.clone()
    }

    #[getter]
    fn fresh(&self) -> Vec<u64> {
        self.inner.fresh.clone()
    }

    #[getter]
    fn later_bytes(&self) -> u64 {
        self.inner.later_bytes
    }

    #[getter]
    fn kept(&self) -> (Vec<u8>, Vec<u8>) {
        let [kept, kept_as_is] = &self.inner.kept;
        (flags(kept.iter().copied()), flags(kept_as_is.iter().copied()))
    }

    fn ids(&self, first: u64, first_as_is: u64) -> Vec<u8> {
        pack_u64(self.inner.ids(&self.placed.get().inner, [first, first_as_is]))
    }

    fn note_stored(&self, ledger: &Ledger) {
        ledger.0.note_stored(self.inner.stored(&self.placed.get().inner));
    }

    fn prefixes(&self, part: usize, found: &Chunks) -> PyResult<Vec<u8>> {
        let is_part = self.is_of(found.segments().len()) && part < found.segments().len();
        require(is_part, "these are not the chunks that were judged")?;
        Ok(pack_u64(self.prefixes_of(found.range(part))))
    }
}

/// The items of a column whose flags in `kept` are set.
pub fn retained(py: Python<'_>, column: &Py<PyBytes>, kept: &[u8]) -> Py<PyBytes> {
    let bytes = column.as_bytes(py);
    let items = bytes.chunks_exact((bytes.len() / kept.len().max(1)).max(1));
    let items: Vec<u8> = items
        .zip(kept)
        .filter(|(_, flag)| **flag != 0)
        .flat_map(|(item, _)| item)
        .copied()
        .collect();
    PyBytes::new(py, &items).unbind()
}

#[pyclass(frozen, module = "dedupd_core.native.ingest")]
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
            fingerprints: column(py, fingerprints),
            starts: column(py, pack_u32(chunks.iter().map(|chunk| chunk.start as u32))),
            lengths: column(py, pack_u32(chunks.iter().map(|chunk| length(chunk) as u32))),
            hints: column(py, pack_u32(new.hints.iter().copied())),
        }
    }
}

#[pymethods]
impl NewChunks {
    fn __len__(&self) -> usize {
        self.length
    }

    fn retained(&self, py: Python<'_>, kept: Input) -> PyResult<NewChunks> {
        let kept = kept.bytes();
        require(kept.len() == self.length, "kept must have an item for each chunk")?;
        let column = |bytes: &Py<PyBytes>| retained(py, bytes, kept);
        let lengths = column(&self.lengths);
        Ok(NewChunks {
            length: kept.iter().filter(|&&flag| flag != 0).count(),
            raw_bytes: u32s(lengths.as_bytes(py)).map(|length| length as usize).sum(),
            fingerprints: column(&self.fingerprints),
            starts: column(&self.starts),
            lengths,
            hints: column(&self.hints),
        })
    }
}
