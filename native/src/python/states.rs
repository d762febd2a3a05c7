//! `table_states`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::Input;

#[pyfunction]
pub fn table_states(py: Python<'_>, entries: Input, seed: u64) -> Bound<'_, PyBytes> {
    let entries = entries.bytes();
    PyBytes::new(py, &py.detach(|| crate::states::states(entries, seed)))
}
