//! `TableIndex`, `BloomIndex`, `HookIndex`, and the `Figures` of all.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::chunker::Followers;
use super::support::calls::call;
use super::support::door::Door;
use super::support::input::{Input, pack_ids, pairs, require};
use crate::format::ids::ContainerNumber;
use crate::format::saved_index::Owner;
use crate::index::bloom::Bloom;
use crate::index::chunks::{ChunkIndex, Counters};
use crate::index::hooks::Hooks;
use crate::index::log::Log;
use crate::index::snapshot;
use crate::index::suggest::Suggest;
use crate::index::table::Table;
use crate::system::files::duplicate;
use crate::system::room::Room;
use crate::threads::lock::locked;

/// The common part of all indexes. Locked only with the GIL released: with the lock, the door may
/// take the GIL.
pub struct Shared<S> {
    index: Mutex<ChunkIndex<S>>,
    owner: Owner,
    /// None if the index changes nothing on a disk.
    door: Option<Door>,
}

impl<S: Suggest + Send> Shared<S> {
    fn new(log: Log, suggest: S, volume_id: [u8; 16], kind: u8, door: Option<Door>) -> Shared<S> {
        let index = Mutex::new(ChunkIndex::new(log, suggest));
        Shared { index, owner: Owner { volume_id, kind }, door }
    }

    /// Work that may change the index's file.
    pub fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Fn(&mut ChunkIndex<S>) -> io::Result<T> + Sync,
    ) -> PyResult<T> {
        let done = call(py, || work(&mut self.lock()));
        self.door.as_ref().map_or(Ok(()), Door::check)?;
        done
    }

    pub fn lock(&self) -> MutexGuard<'_, ChunkIndex<S>> {
        locked(&self.index)
    }
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.index")]
pub struct Figures {
    lookups: u64,
    hits: u64,
    false_positives: u64,
    disk_reads: u64,
    entries: usize,
    added: usize,
    memory_bytes: usize,
    is_lossy: bool,
}

impl Figures {
    fn of<S: Suggest>(index: &ChunkIndex<S>) -> Figures {
        let Counters { lookups, hits, false_positives } = index.counters;
        Figures {
            lookups,
            hits,
            false_positives,
            disk_reads: index.reads(),
            entries: index.suggest.len(),
            added: index.added,
            memory_bytes: index.bytes(),
            is_lossy: index.suggest.is_lossy(),
        }
    }
}

/// The redirection tables below an index.
fn log_of(
    dir_fd: RawFd,
    volume_id: &[u8],
    capacity: usize,
    page_entries: usize,
    cache_entries: usize,
) -> PyResult<(Log, [u8; 16])> {
    let volume_id = *volume_id
        .first_chunk()
        .filter(|_| volume_id.len() == 16)
        .ok_or_else(|| PyValueError::new_err("volume_id must have 16 bytes"))?;
    let are_right = u32::try_from(capacity).is_ok() && page_entries > 0;
    require(are_right, "capacity or page_entries is out of range")?;
    Ok((Log::new(dir_fd, volume_id, page_entries, cache_entries), volume_id))
}

/// The methods of an index: its own methods, and those that both have.
macro_rules! methods {
    ($index:ident { $($own:tt)* }) => {
        #[pymethods]
        impl $index {
            $($own)*

            fn __len__(&self, py: Python<'_>) -> usize {
                py.detach(|| self.0.lock().len())
            }

            fn load(
                &self,
                py: Python<'_>,
                container: u32,
                generation: u32,
                count: u32,
            ) -> PyResult<()> {
                self.0.call(py, |index| index.load(ContainerNumber(container), generation, count))
            }

            fn lookup(&self, py: Python<'_>, fingerprints: Input) -> PyResult<Vec<u8>> {
                let keys = fingerprints.fingerprints("fingerprints")?;
                Ok(pack_ids(self.0.call(py, |index| index.lookup(&keys))?))
            }

            fn insert(&self, py: Python<'_>, fingerprints: Input, ids: Input) -> PyResult<usize> {
                let rows = pairs(&fingerprints, &ids)?;
                self.0.call(py, |index| index.insert(&rows))
            }

            fn use_followers(&self, py: Python<'_>, followers: PyRef<'_, Followers>) {
                let followers = followers.inner.clone();
                py.detach(|| self.0.lock().use_followers(followers));
            }

            fn take_found_orphans(&self, py: Python<'_>) -> Vec<u8> {
                pack_ids(py.detach(|| self.0.lock().take_found_orphans()))
            }

            fn figures(&self, py: Python<'_>) -> Figures {
                py.detach(|| Figures::of(&self.0.lock()))
            }
        }
    };
}

#[pyclass(frozen, module = "dedupd_core.native.index")]
pub struct TableIndex(pub Shared<Table>);

methods!(TableIndex {
    #[new]
    #[pyo3(signature = (dir_fd, volume_id, kind, *, capacity, page_entries, cache_entries))]
    fn new(
        dir_fd: RawFd,
        volume_id: &[u8],
        kind: u8,
        capacity: usize,
        page_entries: usize,
        cache_entries: usize,
    ) -> PyResult<TableIndex> {
        let (log, volume_id) = log_of(dir_fd, volume_id, capacity, page_entries, cache_entries)?;
        let table = Table::with_capacity(capacity);
        Ok(TableIndex(Shared::new(log, table, volume_id, kind, None)))
    }

    fn begin_snapshot(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call(py, |index| index.restamp())
    }

    fn snapshot_part(&self, py: Python<'_>, part: usize) -> Option<Vec<u8>> {
        py.detach(|| snapshot::part(&self.0.lock(), &self.0.owner, part))
    }

    fn restore(&self, py: Python<'_>, fd: RawFd, capacity: usize) -> PyResult<bool> {
        let file = duplicate(fd)?.into();
        Ok(py.detach(|| self.0.lock().restore(&file, &self.0.owner, capacity)))
    }
});

#[pyclass(frozen, module = "dedupd_core.native.index")]
pub struct BloomIndex(pub Shared<Bloom>);

methods!(BloomIndex {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "four of them by name")]
    #[pyo3(signature = (dir_fd, volume_id, kind, fd, door, *, reserve_bytes, capacity, page_entries, cache_entries))]
    fn new(
        dir_fd: RawFd,
        volume_id: &[u8],
        kind: u8,
        fd: RawFd,
        door: Option<Py<PyAny>>,
        reserve_bytes: u64,
        capacity: usize,
        page_entries: usize,
        cache_entries: usize,
    ) -> PyResult<BloomIndex> {
        let (log, volume_id) = log_of(dir_fd, volume_id, capacity, page_entries, cache_entries)?;
        let door = Door::new(door);
        let (file, room) = (duplicate(fd)?.into(), Room { reserve_bytes });
        let bloom = Bloom::new(file, room, door.effects.clone(), capacity);
        Ok(BloomIndex(Shared::new(log.searchable(), bloom, volume_id, kind, Some(door))))
    }

    fn restore(&self, py: Python<'_>, capacity: usize) -> PyResult<bool> {
        self.0.call(py, |index| index.restore(&self.0.owner, capacity))
    }

    fn write_lists(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call(py, |index| {
            index.restamp()?;
            index.write_lists()
        })
    }

    fn write_header(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call(py, |index| index.write_header(&self.0.owner))
    }
});

/// An index of chunks of other partitions; nothing is inserted.
#[pyclass(frozen, module = "dedupd_core.native.index")]
pub struct HookIndex(Shared<Hooks>);

#[pymethods]
impl HookIndex {
    #[new]
    #[pyo3(signature = (dir_fd, volume_id, kind, *, capacity, zeros, page_entries, cache_entries))]
    fn new(
        dir_fd: RawFd,
        volume_id: &[u8],
        kind: u8,
        capacity: usize,
        zeros: u32,
        page_entries: usize,
        cache_entries: usize,
    ) -> PyResult<HookIndex> {
        require(zeros <= 32, "zeros is out of range")?;
        let (log, volume_id) = log_of(dir_fd, volume_id, capacity, page_entries, cache_entries)?;
        let hooks = Hooks::with_capacity(capacity, zeros);
        Ok(HookIndex(Shared::new(log.searchable(), hooks, volume_id, kind, None)))
    }

    fn load(&self, py: Python<'_>, container: u32, generation: u32, count: u32) -> PyResult<()> {
        self.0.call(py, |index| index.load(ContainerNumber(container), generation, count))
    }

    fn find_absent(&self, py: Python<'_>, fingerprints: Input, ids: Input) -> PyResult<Vec<u8>> {
        let keys = fingerprints.fingerprints("fingerprints")?;
        let known = ids.ids("ids")?;
        require(keys.len() == known.len(), "fingerprints and ids differ in number")?;
        Ok(pack_ids(self.0.call(py, |index| index.find_absent(&keys, known.clone()))?))
    }

    fn take_found_orphans(&self, py: Python<'_>) -> Vec<u8> {
        pack_ids(py.detach(|| self.0.lock().take_found_orphans()))
    }

    fn figures(&self, py: Python<'_>) -> Figures {
        py.detach(|| Figures::of(&self.0.lock()))
    }
}
