//! `MarkSet`, `misfits`, `scan_stubs`.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::files::{found, scan};
use super::input::{Input, pack_u32, pack_u64};
use super::sys::c_string;
use crate::commits::{DIRECT, stub_head};
use crate::files::Entry;
use crate::marks::{Marks, Needed, Recipes, mark_named};

#[pyclass(frozen, module = "dedupd.native")]
pub struct MarkSet(RwLock<Marks>);

/// Nobody waits for the GIL while holding the lock.
impl MarkSet {
    fn read(&self) -> RwLockReadGuard<'_, Marks> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Marks> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

type Followed<'py> = (bool, u64, Bound<'py, PyBytes>);

type Named<'py> = (u64, u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl MarkSet {
    #[new]
    fn new() -> MarkSet {
        MarkSet(RwLock::default())
    }

    fn add_container(&self, number: u32, count: usize) {
        self.write().add_container(number, count);
    }

    fn numbers(&self) -> Vec<u32> {
        self.read().numbers()
    }

    fn knows(&self, record_id: u64) -> bool {
        self.read().knows(record_id)
    }

    fn __contains__(&self, record_id: u64) -> bool {
        self.read().contains(record_id)
    }

    fn add<'py>(&self, py: Python<'py>, ids: Input) -> PyResult<Bound<'py, PyBytes>> {
        let ids = ids.u64s("ids")?;
        let strays: Vec<u64> = py.detach(|| {
            let mut marks = self.write();
            ids.into_iter().filter(|&id| id != 0 && !marks.set(id, true)).collect()
        });
        Ok(pack_u64(py, strays))
    }

    fn merge(&self, number: u32, bits: Input) -> bool {
        self.write().merge(number, bits.bytes())
    }

    fn discard(&self, ids: Input) -> PyResult<()> {
        let mut marks = self.write();
        for id in ids.u64s("ids")? {
            marks.set(id, false);
        }
        Ok(())
    }

    fn bits<'py>(&self, py: Python<'py>, number: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.read().bits(number))
    }

    fn count(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.read().count())
    }

    fn follow<'py>(&self, py: Python<'py>, first_id: u64, table: Input) -> PyResult<Followed<'py>> {
        let entries = table.entries("table")?;
        let found = py.detach(|| self.write().follow(first_id, &entries));
        Ok((found.any, found.epoch, pack_u64(py, found.strays)))
    }

    fn add_copies(
        &self,
        py: Python<'_>,
        first_id: u64,
        table: Input,
        of: &Bound<'_, MarkSet>,
    ) -> PyResult<u64> {
        let (entries, of) = (table.entries("table")?, of.get());
        if std::ptr::eq(self, of) {
            return Err(PyValueError::new_err("records are no copies of one another"));
        }
        Ok(py.detach(|| self.write().add_copies(first_id, &entries, &of.read())))
    }

    #[pyo3(signature = (data_fd, table, *, seed, first, ordinals, ends))]
    #[expect(clippy::too_many_arguments, reason = "all but two by name")]
    fn add_named<'py>(
        &self,
        py: Python<'py>,
        data_fd: i32,
        table: Input,
        seed: u64,
        first: u32,
        ordinals: Input,
        ends: Input,
    ) -> PyResult<Named<'py>> {
        let (ordinals, ends) = (ordinals.u32s("ordinals")?, ends.u64s("ends")?);
        if ordinals.len() != ends.len() || ordinals.iter().any(|&ordinal| ordinal < first) {
            return Err(PyValueError::new_err("ordinals begin with first, and have an end each"));
        }
        let needed: Vec<Needed> =
            ordinals.into_iter().zip(ends).map(|(ordinal, end)| Needed { ordinal, end }).collect();
        let entries = table.entries("table")?;
        let recipes = Recipes { data: data_fd, entries: &entries, first, seed };
        let marked = py.detach(|| mark_named(&recipes, &needed, &mut self.write()));
        let (left, strays) = (pack_u32(py, marked.left), pack_u64(py, marked.strays));
        Ok((marked.recipes, marked.rows, left, strays))
    }
}

#[pyfunction]
pub fn misfits<'py>(
    py: Python<'py>,
    table: Input,
    needed: Input,
) -> PyResult<(Bound<'py, PyBytes>, u64)> {
    let (entries, needed) = (table.entries("table")?, needed.bytes());
    let (places, orphans) = py.detach(|| crate::follow::misfits(&entries, needed));
    Ok((pack_u32(py, places), orphans))
}

type Stubs<'py> = (
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    u64,
    u64,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

#[pyfunction]
#[pyo3(signature = (fd, attribute, seed, check = None))]
pub fn scan_stubs<'py>(
    py: Python<'py>,
    fd: i32,
    attribute: &[u8],
    seed: u64,
    check: Option<&Bound<'py, PyAny>>,
) -> PyResult<Stubs<'py>> {
    let attribute = c_string("attribute", attribute)?;
    let (mut files, mut stubs) = (0u64, Vec::new());
    let left = scan(py, fd, &attribute, check, |entries| {
        entries.retain(|entry| match entry {
            Entry::Directory { .. } => true,
            Entry::File { attribute: None, .. } => {
                files += 1;
                false
            }
            Entry::File { attribute: Some(value), .. } => {
                files += 1;
                let stub = stub_head(value, seed);
                let is_known = stub.is_some();
                stubs.extend(stub);
                !is_known
            }
        });
    })?;
    let count = stubs.len() as u64;
    let (direct, others): (Vec<_>, Vec<_>) =
        stubs.into_iter().partition(|stub| stub.flags & DIRECT != 0);
    let chunks = pack_u64(py, direct.into_iter().map(|stub| stub.recipe));
    let recipes = pack_u64(py, others.iter().map(|stub| stub.recipe));
    let covered = pack_u64(py, others.iter().map(|stub| stub.covered));
    let (directories, damaged) = found(py, left, check)?;
    Ok((directories, damaged, files, count, chunks, recipes, covered))
}
