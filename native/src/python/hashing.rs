//! The fingerprint functions.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::support::input::Input;
use super::support::threads::check_threads;
use crate::fingerprint::{Algorithm, FINGERPRINT_BYTES, Fingerprint, digest_all};

pub fn algorithm_named(parameter: &str, name: &str) -> PyResult<Algorithm> {
    Algorithm::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!("{parameter} must be blake3 or sha256, not {name:?}"))
    })
}

#[pyfunction]
#[pyo3(signature = (data, algorithm = "blake3"))]
pub fn fingerprint(py: Python<'_>, data: Input, algorithm: &str) -> PyResult<Fingerprint> {
    let algorithm = algorithm_named("algorithm", algorithm)?;
    let data = data.bytes();
    Ok(py.detach(|| algorithm.digest(data)))
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
    PyBytes::new_with(py, digests.len() * FINGERPRINT_BYTES, |out| {
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
