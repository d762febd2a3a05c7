//! `Chunker`, `Followers`.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::chunks::Chunks;
use super::hashing::algorithm_named;
use super::ingest::FileList;
use super::support::input::{Input, require};
use super::support::threads::check_threads;
use crate::chunker::{self, Parameters};
use crate::fingerprint::Algorithm;
use crate::ingest::chunks::{Segment, process};

#[pyclass(frozen, module = "dedupd_core.native.chunker")]
pub struct Followers {
    pub inner: Arc<chunker::Followers>,
}

#[pymethods]
impl Followers {
    #[new]
    fn new() -> Followers {
        Followers { inner: Arc::default() }
    }
}

#[pyclass(frozen, module = "dedupd_core.native.chunker")]
pub struct Chunker {
    pub inner: chunker::Chunker,
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

    #[pyo3(signature = (data, segments, threads = 1, followers = None))]
    fn process(
        &self,
        py: Python<'_>,
        data: Input,
        segments: Vec<(usize, usize, bool)>,
        threads: usize,
        followers: Option<PyRef<'_, Followers>>,
    ) -> PyResult<Chunks> {
        let data = data.bytes_u32("data")?;
        let segments = segments.into_iter().map(|(start, end, last)| Segment { start, end, last });
        self.process_all(py, data, segments.collect(), threads, followers)
    }

    #[pyo3(signature = (data, files, threads = 1, followers = None))]
    fn process_files(
        &self,
        py: Python<'_>,
        data: Input,
        files: PyRef<'_, FileList>,
        threads: usize,
        followers: Option<PyRef<'_, Followers>>,
    ) -> PyResult<Chunks> {
        self.process_all(py, data.bytes_u32("data")?, files.segments(), threads, followers)
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
        let are_even = [ends.len(), finals.len()] == [starts.len(); 2];
        require(are_even, "starts, ends and finals have not the same number of items")?;
        let offset = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let segments = starts.into_iter().zip(ends).zip(finals).map(|((start, end), last)| {
            Segment { start: offset(start), end: offset(end), last: *last != 0 }
        });
        self.process_all(py, data, segments.collect(), 1, None)
    }
}

impl Chunker {
    fn process_all(
        &self,
        py: Python<'_>,
        data: &[u8],
        segments: Vec<Segment>,
        threads: usize,
        followers: Option<PyRef<'_, Followers>>,
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
        let followers = followers.map(|followers| followers.inner.clone());
        let followers = followers.as_deref();
        let work = || process(&self.inner, self.algorithm, data, &segments, threads, followers);
        let found = py.detach(work);
        Ok(Chunks::new(found))
    }
}
