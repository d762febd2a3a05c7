//! `sum_up`, `Usage`.

use std::sync::RwLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyAny, PyBytes, PyDict, PyList};

use crate::format::ids::{ContainerNumber, RecordId};
use crate::python::support::calls::c_string;
use crate::python::support::entries::Directory;
use crate::python::support::input::{Input, pack_ids, pack_u32, pack_u64, require};
use crate::python::support::output::column;
use crate::python::tree::Walk;
use crate::system::files::Entry;
use crate::threads::lock::{read, write};
use crate::tree::stub_usage::{self, By, Sums};
use crate::upkeep::mark_set::Recipes;
use crate::upkeep::usage::{GROUPS_MAX, Gone, Group, Named, NodeNeed, Records, Taken, each_needed};

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
        "" => By::Nothing,
        "owner" => By::Owner,
        "type" => By::Type,
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
struct GroupUsage {
    named: Named,
    chunks: Taken,
    recipes: Taken,
}

#[derive(Default)]
struct Store {
    chunks: Records,
    recipes: Records,
}

impl Store {
    fn of(&self, are_recipes: bool) -> &Records {
        if are_recipes { &self.recipes } else { &self.chunks }
    }

    fn of_mut(&mut self, are_recipes: bool) -> &mut Records {
        if are_recipes { &mut self.recipes } else { &mut self.chunks }
    }
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

/// The nodes of a container that a group needs: number, ordinals, how much of each, how often.
type Wanted = (u32, Vec<u8>, Vec<u8>, Vec<u8>);

/// No thread waits for the GIL with this lock.
#[pyclass(frozen, module = "dedupd_core.native.upkeep")]
pub struct Usage(RwLock<State>);

impl Usage {
    fn work<T: Send>(
        &self,
        py: Python<'_>,
        group: Group,
        step: impl FnOnce(&mut Store, &mut GroupUsage) -> T + Send,
    ) -> PyResult<T> {
        require(group < GROUPS_MAX, "there are too many groups")?;
        let at = group as usize;
        Ok(py.detach(|| {
            let State { store, groups } = &mut *write(&self.0);
            if at >= groups.len() {
                groups.resize_with(at + 1, GroupUsage::default);
            }
            step(store, &mut groups[at])
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
        self.work(py, group, |_, own| {
            own.named.chunks.extend(chunks.into_iter().map(|id| (id, count)));
            let nodes = nodes.into_iter().zip(ends).map(|(id, end)| NodeNeed { id, end, count });
            own.named.nodes.extend(nodes);
        })
    }

    /// Counts the records that a group names; returns the recipe nodes to read.
    fn take(&self, py: Python<'_>, group: u32, is_sharing: bool) -> PyResult<Vec<Wanted>> {
        let wanted = self.work(py, group, |store, own| {
            let (chunks, wanted) = own.named.take();
            for (id, count) in chunks {
                store.chunks.meet(id, group, count, is_sharing, &mut own.chunks);
            }
            for node in wanted.values().flatten() {
                store.recipes.meet(node.id, group, node.count, is_sharing, &mut own.recipes);
            }
            wanted
        })?;
        Ok(wanted
            .into_iter()
            .map(|(number, nodes)| {
                (
                    number.0,
                    pack_u32(nodes.iter().map(|node| node.id.ordinal())),
                    pack_u64(nodes.iter().map(|node| node.end)),
                    pack_u32(nodes.iter().map(|node| node.count)),
                )
            })
            .collect())
    }

    /// Counts the chunks of a node that Python has read.
    fn refer(
        &self,
        py: Python<'_>,
        group: u32,
        ids: Input,
        count: u32,
        is_sharing: bool,
    ) -> PyResult<()> {
        let ids = ids.ids("ids")?;
        self.work(py, group, |store, own| {
            for id in ids {
                store.chunks.meet(id, group, count, is_sharing, &mut own.chunks);
            }
        })
    }

    #[pyo3(signature = (group, data_fd, table, *, seed, first, ordinals, ends, counts, is_sharing))]
    #[expect(clippy::too_many_arguments, reason = "all but three by name")]
    fn read_leaves(
        &self,
        py: Python<'_>,
        group: u32,
        data_fd: i32,
        table: Input,
        seed: u64,
        first: u32,
        ordinals: Input,
        ends: Input,
        counts: Input,
        is_sharing: bool,
    ) -> PyResult<Vec<u8>> {
        let (ordinals, ends) = (ordinals.u32s("ordinals")?, ends.u64s("ends")?);
        let counts = counts.u32s("counts")?;
        let are_even = ordinals.len() == ends.len() && ends.len() == counts.len();
        let are_right = are_even && ordinals.iter().all(|&ordinal| ordinal >= first);
        require(are_right, "ordinals begin with first, and have an end each")?;
        let nodes: Vec<NodeNeed> = ordinals
            .into_iter()
            .zip(ends)
            .zip(counts)
            .map(|((ordinal, end), count)| {
                let id = RecordId::new(ContainerNumber(0), ordinal);
                NodeNeed { id, end, count }
            })
            .collect();
        let entries = table.entries("table")?;
        let recipes = Recipes { data: data_fd, entries: &entries, first, seed };
        let left = self.work(py, group, |store, own| {
            let (left, plain_bytes) = each_needed(&recipes, &nodes, |count, id| {
                store.chunks.meet(id, group, count, is_sharing, &mut own.chunks);
            });
            if !is_sharing {
                own.recipes.plain_bytes += plain_bytes;
            }
            left
        })?;
        Ok(pack_u32(left))
    }

    /// Restarts the iteration over the records of a group, for the shares.
    fn again(&self, py: Python<'_>, group: u32) -> PyResult<()> {
        self.work(py, group, |_, own| own.named.again())
    }

    fn taken(&self, py: Python<'_>, group: u32) -> PyResult<TakenByGroup> {
        self.work(py, group, |_, GroupUsage { chunks, recipes, .. }| TakenByGroup {
            chunks: chunks.records,
            bytes: chunks.bytes + recipes.bytes,
            first_bytes: chunks.first_bytes + recipes.first_bytes,
            share_bytes: chunks.share_bytes + recipes.share_bytes,
            strays: chunks.strays + recipes.strays,
            plain_bytes: recipes.plain_bytes,
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
