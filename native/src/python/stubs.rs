//! `StubCounter`.

use std::collections::HashMap;
use std::ffi::CString;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList};

use super::files::found;
use super::known::KnownRecords;
use super::sys::c_string;
use super::tree::{listed, looked_at};
use crate::files::Entry;
use crate::records::Files;
use crate::stubs::{Listed, Scratch, Store, Tables};

#[pyclass(frozen, module = "dedupd.native")]
pub struct StubCounter {
    chunks: Py<KnownRecords>,
    nodes: Py<KnownRecords>,
    streams: HashMap<u32, Files>,
    attribute: CString,
    seed: u64,
    tables: Option<Tables>,
}

type NamedTables = (i32, Vec<(u32, Vec<u8>, u64)>);

#[pymethods]
impl StubCounter {
    #[new]
    #[pyo3(signature = (chunks, nodes, streams, *, attribute, seed, tables))]
    fn new(
        chunks: Py<KnownRecords>,
        nodes: Py<KnownRecords>,
        streams: Vec<(u32, i32, i32, u64)>,
        attribute: &[u8],
        seed: u64,
        tables: Option<NamedTables>,
    ) -> PyResult<StubCounter> {
        let streams = streams
            .into_iter()
            .map(|(number, data, table, seed)| {
                (number, Files { data, table, seed, cached_only: false })
            })
            .collect();
        let attribute = c_string("attribute", attribute)?;
        let tables = tables
            .map(|(directory, names)| {
                let named = |(number, name, seed): (u32, Vec<u8>, u64)| {
                    Ok((number, (c_string("table", &name)?, seed)))
                };
                let names = names.into_iter().map(named).collect::<PyResult<_>>()?;
                PyResult::Ok(Tables { directory, names })
            })
            .transpose()?;
        Ok(StubCounter { chunks, nodes, streams, attribute, seed, tables })
    }

    #[pyo3(signature = (root, directories, threads, check))]
    fn look_at<'py>(
        &self,
        py: Python<'py>,
        root: i32,
        directories: Vec<Vec<u8>>,
        threads: usize,
        check: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let count = |entries: &mut Vec<Entry>, listed: &mut Listed, scratch: &mut Scratch| {
            // Let go of before anybody waits for the GIL.
            let (chunks, nodes) = (self.chunks.get().read(), self.nodes.get().read());
            let store = Store {
                chunks: &chunks,
                nodes: &nodes,
                streams: &self.streams,
                seed: self.seed,
                tables: self.tables.as_ref(),
            };
            store.sort_out(entries, listed, scratch);
        };
        let results = looked_at(py, root, &directories, &self.attribute, threads, &check, count)?;
        listed(py, results, |listed| {
            let (directories, files) = found(py, listed.left, None)?;
            let counts = (listed.stubs, listed.plain, listed.logical_bytes);
            (directories, files, counts.0, counts.1, counts.2).into_bound_py_any(py)
        })
    }
}
