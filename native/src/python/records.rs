//! `read_chunks`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::output::uninitialised;
use crate::records::{Files, Row, Wanted};

#[pyfunction]
pub fn read_chunks(
    py: Python<'_>,
    data_fd: i32,
    table_fd: i32,
    seed: u64,
    wanted: Vec<Row>,
    cached_only: bool,
    threads: usize,
) -> PyResult<Vec<Option<Py<PyBytes>>>> {
    let files = Files { data: data_fd, table: table_fd, seed, cached_only };
    let results = wanted
        .iter()
        .map(|&(_, length, _)| uninitialised(py, length))
        .collect::<PyResult<Vec<_>>>()?;
    let chunks: Vec<Wanted<'_>> = wanted
        .iter()
        .zip(&results)
        .map(|(&(ordinal, length, check), result)| {
            let start = result.bind(py).as_bytes().as_ptr().cast_mut();
            // SAFETY: the object is new, and nobody else has it before this function returns.
            Wanted { ordinal, check, out: unsafe { std::slice::from_raw_parts_mut(start, length) } }
        })
        .collect();
    let found = py.detach(|| files.read_all(chunks, threads));
    Ok(results.into_iter().zip(found).map(|(bytes, found)| found.then_some(bytes)).collect())
}
