//! `scan_directory`, `find_candidates` with its `Rules`, `StubCounter`.

use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex};

use pyo3::PyClass;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyAny, PyBytes, PyDict, PyList};

use super::admission::{Ledger, Recall};
use super::store::bases::Bases;
use super::support::calls::c_string;
use super::support::entries::{Directory, Fields, Unreadable, identity_of, scan, seeds_of};
use super::support::output::column;
use super::upkeep::needs::KnownRecords;
use crate::format::stub::Seeds;
use crate::system::files::Entry;
use crate::threads::lock::{locked, unlocked};
use crate::tree::candidates::{self, BySuffix, Candidates, Passed, Reason};
use crate::tree::stub_references::{Listed, Store};
use crate::tree::walk::look_at;

#[pyfunction]
#[pyo3(signature = (fd, attribute, safe_point = None))]
pub fn scan_directory(
    py: Python<'_>,
    fd: i32,
    attribute: &[u8],
    safe_point: Option<&Bound<'_, PyAny>>,
) -> PyResult<Directory> {
    let attribute = c_string("attribute", attribute)?;
    Directory::of(py, scan(py, fd, &attribute, safe_point, |_| {})?, safe_point)
}

#[pyclass(frozen, module = "dedupd_core.native.tree")]
pub struct Rules(candidates::Rules);

#[pymethods]
impl Rules {
    #[new]
    #[pyo3(signature = (*, seed, size_min, newest_ns, chunk_bytes, ledger = None, recall = None, by_owner = false))]
    fn new(
        seed: u64,
        size_min: i64,
        newest_ns: i64,
        chunk_bytes: i64,
        ledger: Option<&Ledger>,
        recall: Option<&Recall>,
        by_owner: bool,
    ) -> PyResult<Rules> {
        if chunk_bytes <= 0 {
            let message = format!("chunk_bytes must be positive: {chunk_bytes}");
            return Err(PyValueError::new_err(message));
        }
        let ledger = ledger.map(|ledger| Arc::clone(&ledger.0));
        let recalled = recall.map(|recall| recall.0.inodes.clone());
        Ok(Rules(candidates::Rules {
            seed,
            size_min,
            newest_ns,
            chunk_bytes,
            ledger,
            recalled,
            by_owner,
        }))
    }

    fn is_young(&self, identity: Fields) -> bool {
        self.0.is_young(&identity_of(identity))
    }

    fn reason(&self, identity: Fields) -> Option<&'static str> {
        self.0.reason(&identity_of(identity)).map(Reason::name)
    }
}

/// The work of an optimize job in a directory.
#[pyclass(frozen, extends = Directory, get_all, module = "dedupd_core.native.tree")]
pub struct DirectoryCandidates {
    /// Files and bytes, by reason.
    passed: Py<PyDict>,
    plain: Py<PyList>,
    /// Names of files that may keep the directory plain.
    markers: Py<PyList>,
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.tree")]
pub struct PackedFiles {
    packed: Py<PyBytes>,
    count: usize,
    size_bytes: i64,
    owner: u32,
    chunks: Py<PyList>,
    files: Py<PyList>,
}

#[pyfunction]
#[pyo3(signature = (root, directories, attribute, threads, safe_point, rules))]
pub fn find_candidates<'py>(
    py: Python<'py>,
    root: i32,
    directories: Vec<Vec<u8>>,
    attribute: &[u8],
    threads: usize,
    safe_point: Py<PyAny>,
    rules: Py<Rules>,
) -> PyResult<Bound<'py, PyList>> {
    let attribute = c_string("attribute", attribute)?;
    let rules = &rules.get().0;
    let count = |entries: &mut Vec<Entry>, candidates: &mut Candidates, (): &mut ()| {
        candidates.sort_out(entries, rules);
    };
    let walk = Walk { root, directories: &directories, threads, safe_point: &safe_point };
    walk.look(py, (&attribute, false), count, |mut here| {
        let packed = py.detach(|| here.packed(rules));
        let passed = here.passed().map(|(why, Passed { count, size })| (why.name(), (count, size)));
        let passed = passed.into_py_dict(py)?.unbind();
        let plain = PyList::empty(py);
        for one in packed {
            let files = PackedFiles {
                packed: column(py, one.bytes),
                count: one.count,
                size_bytes: one.size,
                owner: one.owner,
                chunks: summed(py, one.chunks)?,
                files: summed(py, one.files)?,
            };
            plain.append(Py::new(py, files)?)?;
        }
        let markers: Vec<_> = here.markers().map(|name| name.to_bytes()).collect();
        let markers = PyList::new(py, markers)?.unbind();
        let found = DirectoryCandidates { passed, plain: plain.unbind(), markers };
        Ok(Directory::of(py, here.left, None)?.with(found))
    })
}

/// Pairs of suffixes and numbers.
fn summed(py: Python<'_>, sums: BySuffix) -> PyResult<Py<PyList>> {
    let pairs = sums.0.into_iter().map(|(suffix, sum)| (suffix.into_vec(), sum));
    Ok(PyList::new(py, pairs)?.unbind())
}

/// Directories to scan, as passed to every call for many directories.
pub struct Walk<'a> {
    pub root: i32,
    pub directories: &'a [Vec<u8>],
    pub threads: usize,
    pub safe_point: &'a Py<PyAny>,
}

impl Walk<'_> {
    /// [`look_at`] without the GIL, which it takes for each `safe_point`; an exception there ends
    /// it. Returns a list with the result of `shown` for each directory, or why it cannot be read.
    pub fn look<'py, L: Default + Send, S: Default, T: PyClass<BaseType = Directory>>(
        &self,
        py: Python<'py>,
        attribute: (&CStr, bool),
        count: impl Fn(&mut Vec<Entry>, &mut L, &mut S) + Send + Sync,
        mut shown: impl FnMut(L) -> PyResult<PyClassInitializer<T>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let &Walk { root, directories, threads, safe_point } = self;
        let paths: Vec<CString> =
            directories.iter().map(|path| c_string("path", path)).collect::<PyResult<_>>()?;
        let raised = Mutex::new(None);
        let go_on = || match Python::attach(|py| safe_point.call0(py)) {
            Ok(_) => true,
            Err(error) => {
                *locked(&raised) = Some(error);
                false
            }
        };
        let results = py.detach(|| look_at(root, &paths, attribute, threads, count, go_on));
        if let Some(error) = unlocked(raised) {
            return Err(error);
        }
        let list = PyList::empty(py);
        for result in results {
            match result {
                Err(error) => list.append(Py::new(py, Unreadable::from(error))?)?,
                Ok(listed) => list.append(Py::new(py, shown(listed)?)?)?,
            }
        }
        Ok(list)
    }
}

/// The counts of a directory.
#[pyclass(frozen, extends = Directory, get_all, module = "dedupd_core.native.tree")]
pub struct CountedStubs {
    stubs: u64,
    plain_files: u64,
    logical_bytes: i64,
}

#[pyclass(frozen, module = "dedupd_core.native.tree")]
pub struct StubCounter {
    chunks: Py<KnownRecords>,
    nodes: Py<KnownRecords>,
    chunk_records: Py<Bases>,
    recipes: Py<Bases>,
    attribute: CString,
    seeds: Seeds,
    is_exact: bool,
}

#[pymethods]
impl StubCounter {
    #[new]
    #[pyo3(signature = (chunks, nodes, chunk_records, recipes, *, attribute, seeds, is_exact))]
    fn new(
        chunks: Py<KnownRecords>,
        nodes: Py<KnownRecords>,
        chunk_records: Py<Bases>,
        recipes: Py<Bases>,
        attribute: &[u8],
        seeds: (u64, u64),
        is_exact: bool,
    ) -> PyResult<StubCounter> {
        let (attribute, seeds) = (c_string("attribute", attribute)?, seeds_of(seeds));
        Ok(StubCounter { chunks, nodes, chunk_records, recipes, attribute, seeds, is_exact })
    }

    #[pyo3(signature = (root, directories, threads, safe_point))]
    fn look_at<'py>(
        &self,
        py: Python<'py>,
        root: i32,
        directories: Vec<Vec<u8>>,
        threads: usize,
        safe_point: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let count = |entries: &mut Vec<Entry>, listed: &mut Listed, (): &mut ()| {
            // Released before any thread waits for the GIL.
            let (chunks, nodes) = (self.chunks.get().census(), self.nodes.get().census());
            let store = Store {
                chunks: &chunks,
                nodes: &nodes,
                chunk_records: &self.chunk_records.get().0,
                recipes: &self.recipes.get().0,
                seeds: self.seeds,
                is_exact: self.is_exact,
            };
            store.sort_out(entries, listed);
        };
        let attribute = (self.attribute.as_c_str(), true);
        let walk = Walk { root, directories: &directories, threads, safe_point: &safe_point };
        walk.look(py, attribute, count, |listed| {
            let counted = CountedStubs {
                stubs: listed.stubs,
                plain_files: listed.plain,
                logical_bytes: listed.logical_bytes,
            };
            Ok(Directory::of(py, listed.left, None)?.with(counted))
        })
    }
}
