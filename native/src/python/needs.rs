//! `more_than`, `longest`, `digest_needed`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::Input;
use crate::needs;

#[pyfunction]
pub fn more_than<'py>(py: Python<'py>, now: Input, before: Input) -> Bound<'py, PyBytes> {
    let (now, before) = (now.bytes(), before.bytes());
    PyBytes::new(py, &py.detach(|| needs::more_than(now, before)))
}

#[pyfunction]
pub fn longest<'py>(py: Python<'py>, one: Input, other: Input) -> Bound<'py, PyBytes> {
    let (one, other) = (one.bytes(), other.bytes());
    PyBytes::new(py, &py.detach(|| needs::longest(one, other)))
}

#[pyfunction]
pub fn digest_needed(py: Python<'_>, entries: Input, lengths: Input, seed: u64) -> u64 {
    let (entries, lengths) = (entries.bytes(), lengths.bytes());
    py.detach(|| needs::digest_needed(entries, lengths, seed))
}
