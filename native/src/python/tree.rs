//! `scan_directory`, `find_candidates`, `stub_sizes`, `StubCounter`.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::sync::Mutex;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes, PyList};

use super::support::calls::c_string;
use super::support::entries::{Found, found, scan};
use super::upkeep::KnownRecords;
use crate::format::ids::ContainerNumber;
use crate::store::record_reader::Files;
use crate::system::files::Entry;
use crate::threads::lock::{locked, unlocked};
use crate::tree::candidates::{Candidates, Passed, Rules};
use crate::tree::stub_references::{Listed, Scratch, Store, Tables};
use crate::tree::stub_sizes::{BySuffix, Sizes};
use crate::tree::walk::look_at;

#[pyfunction]
#[pyo3(signature = (fd, attribute, check = None))]
pub fn scan_directory<'py>(
    py: Python<'py>,
    fd: i32,
    attribute: &[u8],
    check: Option<&Bound<'py, PyAny>>,
) -> PyResult<Found<'py>> {
    let attribute = c_string("attribute", attribute)?;
    found(py, scan(py, fd, &attribute, check, |_| {})?, check)
}

#[pyfunction]
#[pyo3(signature = (
    root, directories, attribute, threads, check, *, seed, size_min, newest_ns, chunk_bytes
))]
#[expect(clippy::too_many_arguments)]
pub fn find_candidates<'py>(
    py: Python<'py>,
    root: i32,
    directories: Vec<Vec<u8>>,
    attribute: &[u8],
    threads: usize,
    check: Py<PyAny>,
    seed: u64,
    size_min: i64,
    newest_ns: i64,
    chunk_bytes: i64,
) -> PyResult<Bound<'py, PyList>> {
    if chunk_bytes <= 0 {
        return Err(PyValueError::new_err(format!("chunk_bytes must be positive: {chunk_bytes}")));
    }
    let attribute = c_string("attribute", attribute)?;
    let rules = Rules { seed, size_min, newest_ns, chunk_bytes };
    let count = |entries: &mut Vec<Entry>, candidates: &mut Candidates, (): &mut ()| {
        candidates.sort_out(entries, &rules);
    };
    let results = looked_at(py, root, &directories, &attribute, threads, &check, count)?;
    let shown = |passed: Passed| (passed.count, passed.bytes);
    listed(py, results, |mut here| {
        let packed = py.detach(|| here.packed(&rules));
        let (directories, left) = found(py, here.left, None)?;
        let passed = [here.optimised, here.empty, here.small, here.young].map(shown);
        let plain = PyList::empty(py);
        for one in packed {
            let bytes = PyBytes::new(py, &one.bytes);
            plain.append((bytes, one.count, one.size, summed(py, one.chunks)?))?;
        }
        (directories, left, passed, plain).into_bound_py_any(py)
    })
}

#[pyfunction]
#[pyo3(signature = (root, directories, attribute, threads, check))]
pub fn stub_sizes<'py>(
    py: Python<'py>,
    root: i32,
    directories: Vec<Vec<u8>>,
    attribute: &[u8],
    threads: usize,
    check: Py<PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let attribute = c_string("attribute", attribute)?;
    let count = |entries: &mut Vec<Entry>, sizes: &mut Sizes, (): &mut ()| sizes.sort_out(entries);
    let results = looked_at(py, root, &directories, &attribute, threads, &check, count)?;
    listed(py, results, |sizes| {
        let (directories, files) = found(py, sizes.left, None)?;
        (directories, files, summed(py, sizes.bytes)?).into_bound_py_any(py)
    })
}

/// Pairs of what names end in, and a number.
fn summed<'py>(py: Python<'py>, sums: BySuffix) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (suffix, sum) in sums.0 {
        list.append((PyBytes::new(py, &suffix), sum))?;
    }
    Ok(list)
}

/// [`look_at`] without the GIL, which it takes for each `check`; what that raises ends it.
pub fn looked_at<L: Default + Send, S: Default>(
    py: Python<'_>,
    root: i32,
    directories: &[Vec<u8>],
    attribute: &CStr,
    threads: usize,
    check: &Py<PyAny>,
    count: impl Fn(&mut Vec<Entry>, &mut L, &mut S) + Send + Sync,
) -> PyResult<Vec<io::Result<L>>> {
    let paths: Vec<CString> =
        directories.iter().map(|path| c_string("path", path)).collect::<PyResult<_>>()?;
    let raised = Mutex::new(None);
    let go_on = || match Python::attach(|py| check.call0(py)) {
        Ok(_) => true,
        Err(error) => {
            *locked(&raised) = Some(error);
            false
        }
    };
    let results = py.detach(|| look_at(root, &paths, attribute, threads, count, go_on));
    match unlocked(raised) {
        Some(error) => Err(error),
        None => Ok(results),
    }
}

/// A list with the number of the error, or with what was found, of each directory.
pub fn listed<'py, L>(
    py: Python<'py>,
    results: Vec<io::Result<L>>,
    mut shown: impl FnMut(L) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for result in results {
        list.append(match result {
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO).into_bound_py_any(py)?,
            Ok(listed) => shown(listed)?,
        })?;
    }
    Ok(list)
}

#[pyclass(frozen, module = "dedupd.native.tree")]
pub struct StubCounter {
    chunks: Py<KnownRecords>,
    nodes: Py<KnownRecords>,
    streams: HashMap<ContainerNumber, Files>,
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
                (ContainerNumber(number), Files { data, table, seed, cached_only: false })
            })
            .collect();
        let attribute = c_string("attribute", attribute)?;
        let tables = tables
            .map(|(directory, names)| {
                let named = |(number, name, seed): (u32, Vec<u8>, u64)| {
                    Ok((ContainerNumber(number), (c_string("table", &name)?, seed)))
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
            let (chunks, nodes) = (self.chunks.get().census(), self.nodes.get().census());
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
