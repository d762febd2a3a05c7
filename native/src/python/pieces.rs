//! `pass_records`, `headers_agree`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::input::Input;
use crate::fingerprint::Algorithm;
use crate::pieces::{Container, Position};

type Passed = (usize, u64, u64, u64, u64);

#[pyfunction]
#[pyo3(signature = (fd, table, *, seed, ordinal, offset, end, bytes_max, algorithm, threads))]
#[expect(clippy::too_many_arguments, reason = "all but two by name")]
pub fn pass_records(
    py: Python<'_>,
    fd: i32,
    table: Input,
    seed: u64,
    ordinal: usize,
    offset: u64,
    end: u64,
    bytes_max: u64,
    algorithm: &str,
    threads: usize,
) -> PyResult<Passed> {
    let algorithm = Algorithm::from_name(algorithm).ok_or_else(|| {
        PyValueError::new_err(format!("algorithm must be blake3 or sha256, not {algorithm:?}"))
    })?;
    let container = Container { data: fd, entries: &table.entries("table")?, seed };
    let from = Position { ordinal, offset };
    let passed = py.detach(|| container.pass(from, end, bytes_max, algorithm, threads));
    let to = passed.to;
    Ok((to.ordinal, to.offset, passed.records, passed.raw_bytes, passed.read_bytes))
}

#[pyfunction]
#[pyo3(signature = (fd, table, *, seed))]
pub fn headers_agree(py: Python<'_>, fd: i32, table: Input, seed: u64) -> PyResult<bool> {
    let container = Container { data: fd, entries: &table.entries("table")?, seed };
    Ok(py.detach(|| container.headers_agree()))
}
