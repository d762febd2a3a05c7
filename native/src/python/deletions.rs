//! `DeletionLog`, `spans`.

use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::support::calls::c_string;
use super::support::input::{Input, pack_u32, require};
use crate::format::deletion::{Content, Log, Row};
use crate::tree::deleted::StubTree;
use crate::tree::listing::line;

#[pyclass(frozen, module = "dedupd_core.native.deletions")]
pub struct DeletionLog {
    rows: Vec<Row>,
    #[pyo3(get)]
    lost_bytes: usize,
    #[pyo3(get)]
    memory_bytes: usize,
}

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
    #[pyo3(signature = (
        below, *, number, uid, before, now_ns, keep_ns, limit, data_fd, attribute, seed
    ))]
    fn lines<'py>(
        &self,
        py: Python<'py>,
        below: &[u8],
        number: u32,
        uid: Option<u32>,
        before: u32,
        now_ns: u64,
        keep_ns: u64,
        limit: usize,
        data_fd: RawFd,
        attribute: &[u8],
        seed: u64,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, u32)> {
        require(limit > 0, "limit is 0")?;
        let attribute = c_string("attribute", attribute)?;
        let place = StubTree { data: data_fd, attribute: &attribute, seed };
        let (lines, next) = py.detach(|| {
            let end = self.rows.partition_point(|row| row.offset < before);
            let newest_first = self.rows[..end].iter().rev();
            let mut rows = newest_first
                .filter(|row| uid.is_none_or(|uid| uid == row.uid()))
                .filter(|row| row.is_below(below) && row.end_ns(keep_ns) > now_ns);
            let mut next = 0;
            let seen = rows.by_ref().take(limit).inspect(|row| next = row.offset);
            let lost = seen.filter(|row| place.lacks(row));
            let lines: Vec<String> = lost.map(|row| line(row, number, keep_ns)).collect();
            (lines, if rows.next().is_some() { next } else { 0 })
        });
        Ok((lines.iter().map(|line| PyBytes::new(py, line.as_bytes())).collect(), next))
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
