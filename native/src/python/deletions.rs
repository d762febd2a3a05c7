//! `DeletionLog`, `spans`.

use std::os::fd::RawFd;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::support::calls::c_string;
use super::support::input::{Input, pack_u32, require};
use crate::format::deletion::{Content, Log, Row};
use crate::tree::deleted::Place;

#[pyclass(frozen, module = "dedupd.native.deletions")]
pub struct DeletionLog {
    rows: Vec<Row>,
    #[pyo3(get)]
    lost_bytes: usize,
    #[pyo3(get)]
    memory_bytes: usize,
}

/// Offset, fields, path, and names of attributes.
type Found<'py> = (u32, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl DeletionLog {
    #[new]
    #[pyo3(signature = (data, *, seed, is_proven, uid, first))]
    fn new(
        py: Python<'_>,
        data: Input,
        seed: u64,
        is_proven: bool,
        uid: Option<u32>,
        first: usize,
    ) -> PyResult<DeletionLog> {
        let data = data.bytes_u32("data")?.get(first..).unwrap_or_default();
        let log = Log { data, base: first, seed, is_proven, uid };
        let Content { rows, lost_bytes } = py.detach(|| log.content());
        let memory_bytes = rows.iter().map(Row::bytes).sum();
        Ok(DeletionLog { rows, lost_bytes, memory_bytes })
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }

    #[expect(clippy::too_many_arguments, reason = "all but one of them by name")]
    #[pyo3(signature = (below, *, uid, before, now_ns, keep_ns, limit))]
    fn newest<'py>(
        &self,
        py: Python<'py>,
        below: &[u8],
        uid: Option<u32>,
        before: u32,
        now_ns: u64,
        keep_ns: u64,
        limit: usize,
    ) -> PyResult<Vec<Found<'py>>> {
        require(limit > 0, "limit is 0")?;
        let found: Vec<&Row> = py.detach(|| {
            let end = self.rows.partition_point(|row| row.offset < before);
            let newest_first = self.rows[..end].iter().rev();
            newest_first
                .filter(|row| uid.is_none_or(|uid| uid == row.uid()))
                .filter(|row| row.is_below(below) && row.end_ns(keep_ns) > now_ns)
                .take(limit)
                .collect()
        });
        let bytes = |value: &[u8]| PyBytes::new(py, value);
        let found = found
            .iter()
            .map(|row| (row.offset, bytes(&row.fields), bytes(&row.path), bytes(&row.names)));
        Ok(found.collect())
    }

    fn lost(
        &self,
        py: Python<'_>,
        offsets: Vec<u32>,
        data_fd: RawFd,
        attribute: &[u8],
        seed: u64,
    ) -> PyResult<Vec<bool>> {
        let attribute = c_string("attribute", attribute)?;
        let place = Place { data: data_fd, attribute: &attribute, seed };
        let row = |offset| {
            let at = self.rows.binary_search_by_key(&offset, |row| row.offset);
            at.map(|at| &self.rows[at]).map_err(|_| PyKeyError::new_err(offset))
        };
        let rows = offsets.into_iter().map(row).collect::<PyResult<Vec<_>>>()?;
        Ok(py.detach(|| rows.into_iter().map(|row| place.lacks(row)).collect()))
    }
}

#[pyfunction]
#[pyo3(signature = (data, *, seed, is_proven, base))]
pub fn spans<'py>(
    py: Python<'py>,
    data: Input,
    seed: u64,
    is_proven: bool,
    base: usize,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let log = Log { data: data.bytes_u32("data")?, base, seed, is_proven, uid: None };
    let found: Vec<(u32, u32)> = py
        .detach(|| log.spans().map(|(start, end)| (start as u32, (end - start) as u32)).collect());
    let starts = pack_u32(found.iter().map(|span| span.0));
    let lengths = pack_u32(found.iter().map(|span| span.1));
    Ok((PyBytes::new(py, &starts), PyBytes::new(py, &lengths)))
}
