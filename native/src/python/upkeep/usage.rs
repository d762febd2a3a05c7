//! `sum_up`, `Usage`.

use std::sync::RwLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyAny, PyBytes, PyDict, PyList};

use crate::format::ids::{ContainerNumber, RecordId};
use crate::python::store::bases::Bases;
use crate::python::store::stub_bytes::Unreadable;
use crate::python::support::calls::c_string;
use crate::python::support::entries::Directory;
use crate::python::support::input::{Input, pack_ids, pack_u64, require};
use crate::python::support::output::column;
use crate::python::tree::Walk;
use crate::system::files::Entry;
use crate::threads::lock::{read, write};
use crate::tree::stub_usage::{self, GroupBy, Sums};
use crate::upkeep::usage::{GROUPS_MAX, Gone, Group, GroupUsage, NodeNeed, Store, Taking};

/// The files of a directory.
#[pyclass(frozen, extends = Directory, get_all, module = "dedupd_core.native.tree")]
pub struct StubUsage {
    /// Sums by key.
    sums: Py<PyDict>,
}

/// Files of one key.
#[pyclass(frozen, get_all, module = "dedupd_core.native.tree")]
pub struct UsageSums {
    files: u64,
    stubs: u64,
    logical_bytes: i64,
    own_bytes: i64,
    stubs_own_bytes: i64,
    optimized_bytes: i64,
    direct_bytes: i64,
    chunks: Py<PyBytes>,
    recipes: Py<PyBytes>,
    covered: Py<PyBytes>,
}

impl UsageSums {
    fn of(py: Python<'_>, sums: Sums) -> UsageSums {
        UsageSums {
            files: sums.files,
            stubs: sums.stubs,
            logical_bytes: sums.logical_bytes,
            own_bytes: sums.own_bytes,
            stubs_own_bytes: sums.stubs_own_bytes,
            optimized_bytes: sums.optimized_bytes,
            direct_bytes: sums.direct_bytes,
            chunks: column(py, pack_ids(sums.chunks)),
            recipes: column(py, pack_ids(sums.recipes)),
            covered: column(py, pack_u64(sums.covered)),
        }
    }
}

#[pyfunction]
#[pyo3(signature = (root, directories, attribute, threads, safe_point, *, seed, by))]
#[expect(clippy::too_many_arguments, reason = "those of all walks, and two by name")]
pub fn sum_up<'py>(
    py: Python<'py>,
    root: i32,
    directories: Vec<Vec<u8>>,
    attribute: &[u8],
    threads: usize,
    safe_point: Py<PyAny>,
    seed: u64,
    by: &str,
) -> PyResult<Bound<'py, PyList>> {
    let attribute = c_string("attribute", attribute)?;
    let by = match by {
        "" => GroupBy::Nothing,
        "owner" => GroupBy::Owner,
        "type" => GroupBy::Type,
        _ => return Err(PyValueError::new_err(format!("files cannot be grouped by {by}"))),
    };
    let count = |entries: &mut Vec<Entry>, usage: &mut stub_usage::Usage, (): &mut ()| {
        usage.sort_out(entries, by, seed);
    };
    let walk = Walk { root, directories: &directories, threads, safe_point: &safe_point };
    walk.look(py, (&attribute, false), count, |usage| {
        let sums = usage.sums.into_iter();
        let sums = sums.map(|(key, one)| (key.into_vec(), UsageSums::of(py, one)));
        let sums = sums.into_py_dict(py)?.unbind();
        Ok(Directory::of(py, usage.left, None)?.with(StubUsage { sums }))
    })
}

#[derive(Default)]
struct State {
    store: Store,
    groups: Vec<GroupUsage>,
}

/// The records of a store that a group needs.
#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct TakenByGroup {
    chunks: u64,
    bytes: u64,
    first_bytes: u64,
    share_bytes: f64,
    strays: u64,
    plain_bytes: u64,
}

/// Recipes that are read by one call: a run stops within the time that this takes.
const NODES_AT_ONCE: usize = 1024;

/// No thread waits for the GIL with this lock.
#[pyclass(frozen, module = "dedupd_core.native.upkeep")]
pub struct Usage(RwLock<State>);

impl Usage {
    fn work<T: Send>(
        &self,
        py: Python<'_>,
        group: Group,
        is_sharing: bool,
        step: impl FnOnce(&mut Taking<'_>) -> T + Send,
    ) -> PyResult<T> {
        require(group < GROUPS_MAX, "there are too many groups")?;
        let at = group as usize;
        Ok(py.detach(|| {
            let State { store, groups } = &mut *write(&self.0);
            if at >= groups.len() {
                groups.resize_with(at + 1, GroupUsage::default);
            }
            step(&mut Taking { store, group, own: &mut groups[at], is_sharing })
        }))
    }
}

#[pymethods]
impl Usage {
    #[new]
    fn new() -> Usage {
        Usage(RwLock::default())
    }

    fn add_table(&self, py: Python<'_>, recipes: bool, number: u32, table: Input, seed: u64) {
        let table = table.bytes();
        py.detach(|| {
            let mut state = write(&self.0);
            state.store.of_mut(recipes).add_table(ContainerNumber(number), table, seed);
        });
    }

    fn add_copies(&self, py: Python<'_>, recipes: bool, table: Input, seed: u64) {
        let table = table.bytes();
        py.detach(|| write(&self.0).store.of_mut(recipes).add_copies(table, seed));
    }

    #[pyo3(signature = (group, chunks, recipes, covered, count = 1))]
    fn name(
        &self,
        py: Python<'_>,
        group: u32,
        chunks: Input,
        recipes: Input,
        covered: Input,
        count: u32,
    ) -> PyResult<()> {
        let (chunks, nodes) = (chunks.ids("chunks")?, recipes.ids("recipes")?);
        let ends = covered.u64s("covered")?;
        require(nodes.len() == ends.len(), "each recipe has an end")?;
        self.work(py, group, false, |taking| {
            let own = &mut taking.own.references;
            own.chunks.extend(chunks.into_iter().map(|id| (id, count)));
            let nodes = nodes.into_iter().zip(ends);
            own.nodes.extend(nodes.map(|(id, end)| NodeNeed { id, end, count, depth: 0 }));
        })
    }

    /// Takes what a group names into account, with what its recipes name. Returns the nodes that
    /// cannot be read.
    fn read(
        &self,
        py: Python<'_>,
        group: u32,
        recipes: &Bound<'_, Bases>,
        is_sharing: bool,
        safe_point: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Unreadable>> {
        let recipes = &recipes.get().0;
        loop {
            let wanted = self.work(py, group, is_sharing, |taking| taking.take())?;
            let mut unreadable = Vec::new();
            for (&number, nodes) in &wanted {
                for part in nodes.chunks(NODES_AT_ONCE) {
                    safe_point.call0()?;
                    let read = |taking: &mut Taking<'_>| taking.read(recipes, number, part);
                    unreadable.extend(self.work(py, group, is_sharing, read)?);
                }
            }
            if wanted.is_empty() || !unreadable.is_empty() {
                return Ok(unreadable.into_iter().map(Unreadable::from).collect());
            }
        }
    }

    /// Takes in a node that could not be read.
    fn add_node(
        &self,
        py: Python<'_>,
        group: u32,
        record_id: u64,
        payload: Input,
        is_sharing: bool,
    ) -> PyResult<bool> {
        let payload = payload.bytes();
        self.work(py, group, is_sharing, |taking| taking.add_node(RecordId(record_id), payload))
    }

    /// Restarts the iteration over the records of a group, for the shares.
    fn again(&self, py: Python<'_>, group: u32) -> PyResult<()> {
        self.work(py, group, false, |taking| taking.own.references.again())
    }

    fn taken(&self, py: Python<'_>, group: u32) -> PyResult<TakenByGroup> {
        self.work(py, group, false, |taking| {
            let GroupUsage { chunks, recipes, .. } = &*taking.own;
            TakenByGroup {
                chunks: chunks.records,
                bytes: chunks.bytes + recipes.bytes,
                first_bytes: chunks.first_bytes + recipes.first_bytes,
                share_bytes: chunks.share_bytes + recipes.share_bytes,
                strays: chunks.strays + recipes.strays,
                plain_bytes: recipes.plain_bytes,
            }
        })
    }

    #[pyo3(signature = (recipes, number, table, seed, *, of_copies, gone = None, rest = None))]
    #[expect(clippy::too_many_arguments, reason = "three by name")]
    fn collected(
        &self,
        py: Python<'_>,
        recipes: bool,
        number: u32,
        table: Input,
        seed: u64,
        of_copies: bool,
        gone: Option<u32>,
        rest: Option<u32>,
    ) -> Vec<u8> {
        let table = table.bytes();
        let gone = match (gone, rest) {
            (Some(group), _) => Gone::One(group),
            (None, Some(rest)) => Gone::AllBut(rest),
            (None, None) => Gone::Nothing,
        };
        let number = ContainerNumber(number);
        py.detach(|| {
            read(&self.0).store.of(recipes).collected(number, table, seed, of_copies, gone)
        })
    }

    #[pyo3(signature = (recipes, number, copies = None))]
    fn sole_groups(&self, recipes: bool, number: u32, copies: Option<Input>) -> Vec<u32> {
        let copies = copies.as_ref().map(Input::bytes);
        let found = read(&self.0).store.of(recipes).sole_groups(ContainerNumber(number), copies);
        found.into_iter().collect()
    }

    fn referred_more_than(
        &self,
        py: Python<'_>,
        count: u32,
        number: u32,
        table: Input,
    ) -> (u64, u64) {
        let (number, table) = (ContainerNumber(number), table.bytes());
        py.detach(|| read(&self.0).store.chunks.referred_more_than(count, number, table))
    }
}
