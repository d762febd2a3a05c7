//! `Marks`, `Needs`, `misfits`, `scan_stubs`.

use std::collections::HashMap;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::format::ids::{ContainerNumber, Fingerprint, RecordId};
use crate::format::stub::{DIRECT, stub_head};
use crate::python::store::bases::Bases;
use crate::python::store::stub_bytes::Unreadable;
use crate::python::support::calls::c_string;
use crate::python::support::entries::{Directory, scan};
use crate::python::support::input::{Input, pack_ids, pack_u32, pack_u64, require};
use crate::python::support::output::column;
use crate::system::files::Entry;
use crate::threads::lock::{read, write};
use crate::upkeep::file_needs::{self, Needed};
use crate::upkeep::mark_set;

/// No thread waits for the GIL with this lock.
#[pyclass(frozen, subclass, module = "dedupd_core.native.upkeep")]
pub struct Marks(RwLock<mark_set::Marks>);

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct Followed {
    found_any: bool,
    epoch: u64,
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct Leaned {
    found_any: bool,
    unknown: Py<PyBytes>,
}

/// Container → how many records it has.
type Counts = HashMap<u32, usize>;

fn numbered(counts: Counts) -> impl Iterator<Item = (ContainerNumber, usize)> {
    counts.into_iter().map(|(number, count)| (ContainerNumber(number), count))
}

impl Marks {
    pub fn read(&self) -> RwLockReadGuard<'_, mark_set::Marks> {
        read(&self.0)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, mark_set::Marks> {
        write(&self.0)
    }
}

#[pymethods]
impl Marks {
    #[new]
    fn new(counts: Counts) -> Marks {
        Marks(RwLock::new(mark_set::Marks::of(numbered(counts))))
    }

    #[getter]
    fn strays(&self) -> Vec<u64> {
        self.read().strays().map(|id| id.0).collect()
    }

    fn knows(&self, record_id: u64) -> bool {
        self.read().knows(RecordId(record_id))
    }

    fn __contains__(&self, record_id: u64) -> bool {
        self.read().contains(RecordId(record_id))
    }

    fn add(&self, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        for id in ids.try_iter()? {
            self.write().mark(RecordId(id?.extract()?));
        }
        Ok(())
    }

    fn add_packed(&self, py: Python<'_>, ids: Input) -> PyResult<()> {
        let ids = ids.ids("ids")?;
        py.detach(|| {
            let mut marks = self.write();
            for id in ids {
                marks.mark(id);
            }
        });
        Ok(())
    }

    fn include(&self, other: &Bound<'_, Marks>) -> PyResult<()> {
        require(!std::ptr::eq(self, other.get()), "a set includes itself")?;
        self.write().include(&other.get().read());
        Ok(())
    }

    fn merge(&self, number: u32, bits: Input) -> bool {
        self.write().merge(ContainerNumber(number), bits.bytes())
    }

    fn bits<'py>(&self, py: Python<'py>, number: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.read().bits(ContainerNumber(number)))
    }

    fn count(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.read().count())
    }

    fn digest(&self, py: Python<'_>) -> Fingerprint {
        py.detach(|| self.read().digest())
    }

    fn follow(&self, py: Python<'_>, first_id: u64, table: Input) -> PyResult<Followed> {
        let entries = table.entries("table")?;
        let found = py.detach(|| self.write().follow(RecordId(first_id), &entries));
        Ok(Followed { found_any: found.any, epoch: found.epoch })
    }

    fn lean(&self, py: Python<'_>, first_id: u64, table: Input) -> PyResult<Leaned> {
        let entries = table.entries("table")?;
        let found = py.detach(|| self.write().lean(RecordId(first_id), &entries));
        Ok(Leaned { found_any: found.any, unknown: column(py, pack_u32(found.unknown)) })
    }

    fn add_copies(
        &self,
        py: Python<'_>,
        first_id: u64,
        table: Input,
        of: &Bound<'_, Marks>,
    ) -> PyResult<u64> {
        let (entries, of) = (table.entries("table")?, of.get());
        require(!std::ptr::eq(self, of), "records are no copies of one another")?;
        Ok(py.detach(|| self.write().add_copies(RecordId(first_id), &entries, &of.read())))
    }
}

/// The marks are those of the base class.
#[pyclass(frozen, extends = Marks, module = "dedupd_core.native.upkeep")]
pub struct Needs(RwLock<file_needs::Needs>);

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct NodesRead {
    taken: usize,
    nodes: usize,
    rows: usize,
    unreadable: Py<PyList>,
}

impl Needs {
    fn of(marks: mark_set::Marks, needs: file_needs::Needs) -> PyClassInitializer<Needs> {
        let base = PyClassInitializer::from(Marks(RwLock::new(marks)));
        base.add_subclass(Needs(RwLock::new(needs)))
    }

    /// Runs a step on the needs, without the GIL.
    fn work<T: Send>(
        slf: &Bound<'_, Needs>,
        chunks: &Bound<'_, Marks>,
        step: impl FnOnce(&mut Needed<'_>) -> T + Send,
    ) -> PyResult<T> {
        let (own, marks, chunks) = (slf.get(), slf.as_super().get(), chunks.get());
        require(!std::ptr::eq(marks, chunks), "nodes are no chunks")?;
        Ok(slf.py().detach(|| {
            let (nodes, chunks) = (&mut *marks.write(), &mut *chunks.write());
            step(&mut Needed { nodes, needs: &mut write(&own.0), chunks })
        }))
    }
}

#[pymethods]
impl Needs {
    #[classattr]
    const WHOLE: u64 = u64::MAX;

    #[new]
    fn new(counts: Counts) -> PyClassInitializer<Needs> {
        let counts: Vec<_> = numbered(counts).collect();
        let marks = mark_set::Marks::of(counts.iter().copied());
        Needs::of(marks, file_needs::Needs::of(counts))
    }

    fn copy(slf: &Bound<'_, Needs>) -> PyResult<Py<Needs>> {
        let marks = slf.as_super().get().read().clone();
        Py::new(slf.py(), Needs::of(marks, read(&slf.get().0).clone()))
    }

    fn need(slf: &Bound<'_, Needs>, record_id: u64, length: u64) {
        slf.as_super().get().write().mark(RecordId(record_id));
        write(&slf.get().0).need(RecordId(record_id), length);
    }

    fn need_packed(slf: &Bound<'_, Needs>, ids: Input, lengths: Input) -> PyResult<()> {
        let (ids, lengths) = (ids.ids("ids")?, lengths.u64s("lengths")?);
        require(ids.len() == lengths.len(), "each id has a length")?;
        let (mut marks, mut needs) = (slf.as_super().get().write(), write(&slf.get().0));
        for (id, length) in ids.into_iter().zip(lengths) {
            marks.mark(id);
            needs.need(id, length);
        }
        Ok(())
    }

    fn lengths(&self, number: u32) -> Vec<u8> {
        pack_u64(read(&self.0).lengths(ContainerNumber(number)).iter().copied())
    }

    fn fresh<'py>(&self, py: Python<'py>, number: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, read(&self.0).fresh(ContainerNumber(number)))
    }

    fn digest(slf: &Bound<'_, Needs>) -> Vec<u8> {
        let mut parts = slf.as_super().get().read().digest().to_vec();
        parts.extend(read(&slf.get().0).digest());
        parts
    }

    fn resume(
        slf: &Bound<'_, Needs>,
        number: u32,
        wanted: Input,
        needed: Input,
        fresh: Input,
    ) -> bool {
        let (number, mut needs) = (ContainerNumber(number), write(&slf.get().0));
        let is_taken = needs.resume(number, wanted.bytes(), needed.bytes(), fresh.bytes());
        let mut marks = slf.as_super().get().write();
        for (ordinal, _) in (0..).zip(needs.lengths(number)).filter(|(_, length)| **length > 0) {
            marks.set(RecordId::new(number, ordinal));
        }
        is_taken
    }

    fn read_fresh(
        slf: &Bound<'_, Needs>,
        recipes: &Bound<'_, Bases>,
        chunks: &Bound<'_, Marks>,
        most: usize,
    ) -> PyResult<NodesRead> {
        let recipes = &recipes.get().0;
        let read = Needs::work(slf, chunks, |needed| needed.read_fresh(recipes, most))?;
        let unreadable = read.unreadable.into_iter().map(Unreadable::from);
        let unreadable = PyList::new(slf.py(), unreadable.collect::<Vec<_>>())?.unbind();
        Ok(NodesRead { taken: read.taken, nodes: read.nodes, rows: read.rows, unreadable })
    }

    fn add_node(
        slf: &Bound<'_, Needs>,
        record_id: u64,
        payload: Input,
        chunks: &Bound<'_, Marks>,
    ) -> PyResult<Option<usize>> {
        let payload = payload.bytes();
        Needs::work(slf, chunks, |needed| needed.add_node(RecordId(record_id), payload))
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
