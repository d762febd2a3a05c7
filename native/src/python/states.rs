//! `table_states`, `weigh_table`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::Input;

#[pyfunction]
pub fn table_states(py: Python<'_>, entries: Input, seed: u64) -> Bound<'_, PyBytes> {
    let entries = entries.bytes();
    PyBytes::new(py, &py.detach(|| crate::states::states(entries, seed)))
}

#[pyfunction]
pub fn weigh_table(py: Python<'_>, entries: Input, seed: u64) -> (u64, u64, u64, u64, u64) {
    let entries = entries.bytes();
    let weight = py.detach(|| crate::states::weigh(entries, seed));
    let (orphaned, quarantined) = (weight.orphaned, weight.quarantined);
    (weight.kept, weight.kept_bytes, orphaned, weight.orphaned_bytes, quarantined)
}
