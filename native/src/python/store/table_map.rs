//! Maps of tables that omit the entries of collected records.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::format::table_map;
use crate::python::support::input::{Input, require};

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct TableMap(table_map::TableMap);

#[pymethods]
impl TableMap {
    #[new]
    fn new(lines: Input, seed: u64) -> PyResult<TableMap> {
        let map = table_map::TableMap::of(lines.bytes(), seed);
        map.map(TableMap).ok_or_else(|| PyValueError::new_err("the map of the table is damaged"))
    }

    #[staticmethod]
    fn without(rows: Vec<(u32, u32)>, seed: u64) -> PyResult<TableMap> {
        let ends = [0].into_iter().chain(rows.iter().map(|&(_, end)| end));
        let mut rows_after = ends.zip(&rows);
        let ascend = rows_after.all(|(before, &(first, end))| before <= first && first < end);
        require(ascend, "rows do not ascend")?;
        Ok(TableMap(table_map::TableMap::without(&rows, seed)))
    }

    fn lines(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    #[getter]
    fn left_out(&self) -> u32 {
        self.0.left_out()
    }

    fn offset(&self, ordinal: u32) -> Option<u64> {
        self.0.place(ordinal).map(|place| self.0.offset(place))
    }

    fn offset_below(&self, end: u32) -> u64 {
        self.0.offset(self.0.places_below(end))
    }

    fn expand(&self, py: Python<'_>, entries: Input, first: u32, end: u32) -> PyResult<Vec<u8>> {
        require(first <= end, "first > end")?;
        let entries = entries.bytes();
        Ok(py.detach(|| self.0.expand(entries, first, end)))
    }
}
