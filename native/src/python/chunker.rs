//! `Chunker`, `Chunks` and the fingerprint functions.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::filelist::FileList;
use super::input::{Input, pack_u32};
use super::place::Placed;
use crate::check::u64_at;
use crate::chunker::{self, Parameters, Scratch, available_paths};
use crate::fingerprint::{Algorithm, HASH_BYTES, digest_all};
use crate::place;
use crate::process::{self, Chunk, Segment};

#[pyfunction]
pub fn simd_paths() -> Vec<&'static str> {
    available_paths().iter().map(|path| path.name()).collect()
}

fn algorithm_named(parameter: &str, name: &str) -> PyResult<Algorithm> {
    Algorithm::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!("{parameter} must be blake3 or sha256, not {name:?}"))
    })
}

/// More would only be a mistake in the unit.
const THREADS_MAX: usize = 1024;

pub fn check_threads(threads: usize) -> PyResult<usize> {
    if (1..=THREADS_MAX).contains(&threads) {
        Ok(threads)
    } else {
        Err(PyValueError::new_err(format!("threads must be 1 to {THREADS_MAX}, not {threads}")))
    }
}

#[pyclass(frozen, module = "dedupd.native")]
pub struct Chunker {
    inner: chunker::Chunker,
    algorithm: Algorithm,
}

#[pymethods]
impl Chunker {
    #[new]
    #[pyo3(signature = (*, polynomial, bits, pattern, regression, min_bytes, max_bytes,
                        fingerprint = "blake3", path = None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        polynomial: i64,
        bits: i64,
        pattern: i64,
        regression: i64,
        min_bytes: i64,
        max_bytes: i64,
        fingerprint: &str,
        path: Option<&str>,
    ) -> PyResult<Chunker> {
        let unsigned = |name: &str, value: i64| {
            u32::try_from(value).map_err(|_| {
                PyValueError::new_err(format!("{name} must be 0 to 4294967295, not {value}"))
            })
        };
        let parameters = Parameters {
            polynomial: unsigned("polynomial", polynomial)?,
            bits: unsigned("bits", bits)?,
            pattern: unsigned("pattern", pattern)?,
            regression: unsigned("regression", regression)?,
            min_bytes: unsigned("min_bytes", min_bytes)? as usize,
            max_bytes: unsigned("max_bytes", max_bytes)? as usize,
        };
        let algorithm = algorithm_named("fingerprint", fingerprint)?;
        let inner = chunker::Chunker::new(parameters, path).map_err(PyValueError::new_err)?;
        Ok(Chunker { inner, algorithm })
    }

    #[getter]
    fn path(&self) -> &'static str {
        self.inner.path().name()
    }

    #[pyo3(signature = (data, r#final = true))]
    fn cut<'py>(
        &self,
        py: Python<'py>,
        data: Input,
        r#final: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let data = data.bytes_u32("data")?;
        let ends = py.detach(|| {
            let mut scratch = Scratch::default();
            let mut ends = Vec::new();
            let mut start = 0;
            while let Some(end) = self.inner.next_cut(data, start, r#final, &mut scratch) {
                ends.push(end as u32);
                start = end;
            }
            ends
        });
        Ok(pack_u32(py, ends))
    }

    fn candidates<'py>(&self, py: Python<'py>, data: Input) -> PyResult<Bound<'py, PyBytes>> {
        let data = data.bytes_u32("data")?;
        let found = py.detach(|| self.inner.candidates(data));
        Ok(pack_u32(py, found.into_iter().flat_map(|(end, bits)| [end as u32, bits])))
    }

    #[pyo3(signature = (data, segments, threads = 1))]
    fn process(
        &self,
        py: Python<'_>,
        data: Input,
        segments: Vec<(usize, usize, bool)>,
        threads: usize,
    ) -> PyResult<Chunks> {
        let data = data.bytes_u32("data")?;
        let segments = segments.into_iter().map(|(start, end, last)| Segment { start, end, last });
        self.process_all(py, data, segments.collect(), threads)
    }

    #[pyo3(signature = (data, files, threads = 1))]
    fn process_files(
        &self,
        py: Python<'_>,
        data: Input,
        files: PyRef<'_, FileList>,
        threads: usize,
    ) -> PyResult<Chunks> {
        self.process_all(py, data.bytes_u32("data")?, files.segments(), threads)
    }

    fn process_packed(
        &self,
        py: Python<'_>,
        data: Input,
        starts: Input,
        ends: Input,
        finals: Input,
    ) -> PyResult<Chunks> {
        let data = data.bytes_u32("data")?;
        let (starts, ends) = (starts.u64s("starts")?, ends.u64s("ends")?);
        let finals = finals.bytes();
        if starts.len() != ends.len() || starts.len() != finals.len() {
            let message = "starts, ends and finals have not the same number of items";
            return Err(PyValueError::new_err(message));
        }
        let offset = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let segments = starts.into_iter().zip(ends).zip(finals).map(|((start, end), last)| {
            Segment { start: offset(start), end: offset(end), last: *last != 0 }
        });
        self.process_all(py, data, segments.collect(), 1)
    }
}

impl Chunker {
    fn process_all(
        &self,
        py: Python<'_>,
        data: &[u8],
        segments: Vec<Segment>,
        threads: usize,
    ) -> PyResult<Chunks> {
        check_threads(threads)?;
        for &Segment { start, end, .. } in &segments {
            if start > end || end > data.len() {
                return Err(PyValueError::new_err(format!(
                    "segments: {start} to {end} is not a range within {} bytes of data",
                    data.len()
                )));
            }
        }
        let work = || process::process(&self.inner, self.algorithm, data, &segments, threads);
        let found = py.detach(work);
        let mut firsts: Vec<usize> = vec![0];
        firsts.extend(found.iter().scan(0, |sum, chunks| {
            *sum += chunks.len();
            Some(*sum)
        }));
        Ok(Chunks { found, firsts })
    }
}

#[pyclass(frozen, module = "dedupd.native")]
pub struct Chunks {
    found: Vec<Vec<Chunk>>,
    /// How many chunks there are before each segment, and in all.
    firsts: Vec<usize>,
}

impl Chunks {
    pub fn segments(&self) -> &[Vec<Chunk>] {
        &self.found
    }

    pub fn count(&self) -> usize {
        self.firsts.last().copied().unwrap_or_default()
    }

    /// Those of a segment, of the ids of all chunks.
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
        let placed = py.detach(|| place::place(&self.found, &known, &as_is));
        Placed::of(py, placed)
    }

    fn rows<'py>(&self, py: Python<'py>, segment: usize, ids: Input) -> PyResult<Vec<Row<'py>>> {
        let ids = ids.bytes();
        let chunks = self.found.get(segment).filter(|_| ids.len() == ID_BYTES * self.count());
        let chunks = chunks.ok_or_else(|| {
            PyValueError::new_err(format!("ids of all chunks, and a segment, not {segment}"))
        })?;
        let own = &ids[ID_BYTES * self.firsts[segment]..];
        let row = |(at, chunk): (usize, &Chunk)| {
            let fingerprint = PyBytes::new(py, &chunk.fingerprint);
            (u64_at(own, ID_BYTES * at), chunk.end - chunk.start, fingerprint)
        };
        Ok(chunks.iter().enumerate().map(row).collect())
    }
}

const ID_BYTES: usize = 8;

/// Id, length and fingerprint of a chunk.
type Row<'py> = (u64, usize, Bound<'py, PyBytes>);

#[pyfunction]
#[pyo3(signature = (data, algorithm = "blake3"))]
pub fn fingerprint<'py>(
    py: Python<'py>,
    data: Input,
    algorithm: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let algorithm = algorithm_named("algorithm", algorithm)?;
    let data = data.bytes();
    let digest = py.detach(|| algorithm.digest(data));
    Ok(PyBytes::new(py, &digest))
}

#[pyfunction]
#[pyo3(signature = (data, ends, algorithm = "blake3", threads = 1))]
pub fn fingerprints<'py>(
    py: Python<'py>,
    data: Input,
    ends: Input,
    algorithm: &str,
    threads: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let algorithm = algorithm_named("algorithm", algorithm)?;
    check_threads(threads)?;
    let data = data.bytes();
    let mut ranges = Vec::new();
    let mut start = 0;
    for end in ends.u32s("ends")? {
        let end = end as usize;
        if end < start || end > data.len() {
            return Err(PyValueError::new_err(format!(
                "ends: {end} is not between the end before it, {start}, and that of data, {}",
                data.len()
            )));
        }
        ranges.push((start, end));
        start = end;
    }
    let digests = py.detach(|| digest_all(data, &ranges, algorithm, threads));
    PyBytes::new_with(py, digests.len() * HASH_BYTES, |out| {
        out.copy_from_slice(digests.as_flattened());
        Ok(())
    })
}

#[pyfunction]
#[pyo3(signature = (data, seed = 0))]
pub fn xxh3_64(py: Python<'_>, data: Input, seed: u64) -> u64 {
    let data = data.bytes();
    py.detach(|| xxhash_rust::xxh3::xxh3_64_with_seed(data, seed))
}

#[pyfunction]
pub fn is_zero(py: Python<'_>, data: Input) -> bool {
    let data = data.bytes();
    py.detach(|| crate::fingerprint::is_zero(data))
}
