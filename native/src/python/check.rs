//! `check_records`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{Input, pack_u32};
use crate::check::Place;
use crate::fingerprint::Algorithm;

#[pyclass(frozen, get_all, module = "dedupd.native")]
pub struct CheckedRecords {
    consumed: usize,
    is_lost: bool,
    ordinals: Py<PyBytes>,
    next_ordinals: Py<PyBytes>,
    kinds: Py<PyBytes>,
    statuses: Py<PyBytes>,
    entries: Py<PyBytes>,
    raw_bytes: u64,
}

#[pyfunction]
#[pyo3(signature = (data, *, seed, offset, algorithm, threads))]
pub fn check_records(
    py: Python<'_>,
    data: Input,
    seed: u64,
    offset: u64,
    algorithm: &str,
    threads: usize,
) -> PyResult<CheckedRecords> {
    let algorithm = Algorithm::from_name(algorithm).ok_or_else(|| {
        PyValueError::new_err(format!("algorithm must be blake3 or sha256, not {algorithm:?}"))
    })?;
    let data = data.bytes();
    let place = Place { seed, offset, algorithm, threads };
    let found = py.detach(|| crate::check::check(data, &place));
    Ok(CheckedRecords {
        consumed: found.consumed,
        is_lost: found.is_lost,
        ordinals: pack_u32(py, found.ordinals).unbind(),
        next_ordinals: pack_u32(py, found.next_ordinals).unbind(),
        kinds: PyBytes::new(py, &found.kinds).unbind(),
        statuses: PyBytes::new(py, &found.statuses).unbind(),
        entries: PyBytes::new(py, &found.entries).unbind(),
        raw_bytes: found.raw_bytes,
    })
}
