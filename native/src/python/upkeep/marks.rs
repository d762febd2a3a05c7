//! `MarkSet`, `misfits`, `scan_stubs`.

use std::collections::HashMap;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::ids::{ContainerNumber, RecordId};
use crate::format::stub::{DIRECT, stub_head};
use crate::python::support::calls::c_string;
use crate::python::support::entries::{Directory, scan};
use crate::python::support::input::{Input, pack_ids, pack_u32, pack_u64, require};
use crate::python::support::output::column;
use crate::system::files::Entry;
use crate::threads::lock::{read, write};
use crate::upkeep::mark_set::{Marks, Needed, Recipes, mark_named};

/// No thread waits for the GIL with this lock.
#[pyclass(frozen, subclass, module = "dedupd_core.native.upkeep")]
pub struct MarkSet(RwLock<Marks>);

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct Followed {
    found_any: bool,
    epoch: u64,
    strays: Py<PyBytes>,
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct Leaned {
    found_any: bool,
    unknown: Py<PyBytes>,
    strays: Py<PyBytes>,
}

impl MarkSet {
    pub fn read(&self) -> RwLockReadGuard<'_, Marks> {
        read(&self.0)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Marks> {
        write(&self.0)
    }
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct NamedByLeaves {
    leaves: u64,
    rows: u64,
    left: Py<PyBytes>,
    strays: Py<PyBytes>,
}

#[pymethods]
impl MarkSet {
    #[new]
    fn new(counts: HashMap<u32, usize>) -> MarkSet {
        let mut marks = Marks::default();
        for (number, count) in counts {
            marks.add_container(ContainerNumber(number), count);
        }
        MarkSet(RwLock::new(marks))
    }

    fn numbers(&self) -> Vec<u32> {
        read(&self.0).numbers().into_iter().map(|number| number.0).collect()
    }

    fn knows(&self, record_id: u64) -> bool {
        read(&self.0).knows(RecordId(record_id))
    }

    fn __contains__(&self, record_id: u64) -> bool {
        read(&self.0).contains(RecordId(record_id))
    }

    fn mark(&self, py: Python<'_>, ids: Input) -> PyResult<Vec<u8>> {
        let ids = ids.ids("ids")?;
        let strays: Vec<RecordId> = py.detach(|| {
            let mut marks = write(&self.0);
            ids.into_iter().filter(|&id| !id.is_hole() && !marks.set(id)).collect()
        });
        Ok(pack_ids(strays))
    }

    fn merge(&self, number: u32, bits: Input) -> bool {
        write(&self.0).merge(ContainerNumber(number), bits.bytes())
    }

    fn bits<'py>(&self, py: Python<'py>, number: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, read(&self.0).bits(ContainerNumber(number)))
    }

    fn count(&self, py: Python<'_>) -> u64 {
        py.detach(|| read(&self.0).count())
    }

    fn follow(&self, py: Python<'_>, first_id: u64, table: Input) -> PyResult<Followed> {
        let entries = table.entries("table")?;
        let found = py.detach(|| write(&self.0).follow(RecordId(first_id), &entries));
        let strays = column(py, pack_ids(found.strays));
        Ok(Followed { found_any: found.any, epoch: found.epoch, strays })
    }

    fn lean(&self, py: Python<'_>, first_id: u64, table: Input) -> PyResult<Leaned> {
        let entries = table.entries("table")?;
        let found = py.detach(|| write(&self.0).lean(RecordId(first_id), &entries));
        let unknown = column(py, pack_u32(found.unknown));
        let strays = column(py, pack_ids(found.strays));
        Ok(Leaned { found_any: found.any, unknown, strays })
    }

    fn add_copies(
        &self,
        py: Python<'_>,
        first_id: u64,
        table: Input,
        of: &Bound<'_, MarkSet>,
    ) -> PyResult<u64> {
        let (entries, of) = (table.entries("table")?, of.get());
        require(!std::ptr::eq(self, of), "records are no copies of one another")?;
        Ok(py.detach(|| write(&self.0).add_copies(RecordId(first_id), &entries, &read(&of.0))))
    }

    #[pyo3(signature = (data_fd, table, *, seed, first, ordinals, ends))]
    #[expect(clippy::too_many_arguments, reason = "all but two by name")]
    fn add_named(
        &self,
        py: Python<'_>,
        data_fd: i32,
        table: Input,
        seed: u64,
        first: u32,
        ordinals: Input,
        ends: Input,
    ) -> PyResult<NamedByLeaves> {
        let (ordinals, ends) = (ordinals.u32s("ordinals")?, ends.u64s("ends")?);
        let are_even = ordinals.len() == ends.len();
        let are_right = are_even && ordinals.iter().all(|&ordinal| ordinal >= first);
        require(are_right, "ordinals begin with first, and have an end each")?;
        let needed: Vec<Needed> =
            ordinals.into_iter().zip(ends).map(|(ordinal, end)| Needed { ordinal, end }).collect();
        let entries = table.entries("table")?;
        let recipes = Recipes { data: data_fd, entries: &entries, first, seed };
        let marked = py.detach(|| mark_named(&recipes, &needed, &mut write(&self.0)));
        Ok(NamedByLeaves {
            leaves: marked.recipes,
            rows: marked.rows,
            left: column(py, pack_u32(marked.left)),
            strays: column(py, pack_ids(marked.strays)),
        })
    }
}

#[pyfunction]
pub fn misfits(py: Python<'_>, table: Input, needed: Input) -> PyResult<(Vec<u8>, u64)> {
    let (entries, needed) = (table.entries("table")?, needed.bytes());
    let (places, orphans) = py.detach(|| crate::upkeep::follow_merges::misfits(&entries, needed));
    Ok((pack_u32(places), orphans))
}

/// The records that the stubs of a directory name.
#[pyclass(frozen, extends = Directory, get_all, module = "dedupd_core.native.upkeep")]
pub struct NamedByStubs {
    file_count: u64,
    stub_count: u64,
    chunks: Py<PyBytes>,
    recipes: Py<PyBytes>,
    covered: Py<PyBytes>,
}

#[pyfunction]
#[pyo3(signature = (fd, attribute, seed, safe_point = None))]
pub fn scan_stubs(
    py: Python<'_>,
    fd: i32,
    attribute: &[u8],
    seed: u64,
    safe_point: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<NamedByStubs>> {
    let attribute = c_string("attribute", attribute)?;
    let (mut files, mut stubs) = (0u64, Vec::new());
    let left = scan(py, fd, &attribute, safe_point, |entries| {
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
    let named = NamedByStubs {
        file_count: files,
        stub_count: count,
        chunks: column(py, pack_ids(direct.into_iter().map(|stub| stub.recipe))),
        recipes: column(py, pack_ids(others.iter().map(|stub| stub.recipe))),
        covered: column(py, pack_u64(others.iter().map(|stub| stub.covered))),
    };
    Py::new(py, Directory::of(py, left, safe_point)?.with(named))
}
