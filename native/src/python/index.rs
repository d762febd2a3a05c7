//! `TableIndex`.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{Input, pack_u64};
use super::sys::call;
use crate::index::chunks::{ABSENT, ChunkIndex};
use crate::index::log::Log;
use crate::index::snapshot::{self, Owner};
use crate::index::table::Table;

#[pyclass(frozen, module = "dedupd.native")]
pub struct TableIndex {
    index: Mutex<ChunkIndex<Table>>,
    owner: Owner,
}

/// The lock is only ever taken with the GIL released, and no Python code runs under it.
impl TableIndex {
    fn lock(&self) -> MutexGuard<'_, ChunkIndex<Table>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl TableIndex {
    #[new]
    #[pyo3(signature = (dir_fd, volume, kind, *, capacity, page_entries, cache_entries))]
    fn new(
        dir_fd: RawFd,
        volume: &[u8],
        kind: u8,
        capacity: usize,
        page_entries: usize,
        cache_entries: usize,
    ) -> PyResult<TableIndex> {
        let volume = *volume
            .first_chunk()
            .filter(|_| volume.len() == 16)
            .ok_or_else(|| PyValueError::new_err("volume must have 16 bytes"))?;
        if u32::try_from(capacity).is_err() || page_entries == 0 {
            return Err(PyValueError::new_err("capacity or page_entries is out of range"));
        }
        let log = Log::new(dir_fd, volume, page_entries, cache_entries);
        let index = Mutex::new(ChunkIndex::new(log, Table::with_capacity(capacity)));
        Ok(TableIndex { index, owner: Owner { volume, kind } })
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().len())
    }

    fn load(&self, py: Python<'_>, container: u32, generation: u32) -> PyResult<()> {
        call(py, || self.lock().load(container, generation))
    }

    fn lookup<'py>(&self, py: Python<'py>, fingerprints: Input) -> PyResult<Bound<'py, PyBytes>> {
        let keys = fingerprints.fingerprints("fingerprints")?;
        Ok(pack_u64(py, call(py, || self.lock().lookup(&keys))?))
    }

    fn insert(&self, py: Python<'_>, fingerprints: Input, ids: Input) -> PyResult<usize> {
        let keys = fingerprints.fingerprints("fingerprints")?;
        let ids = ids.u64s("ids")?;
        if keys.len() != ids.len() {
            return Err(PyValueError::new_err(format!(
                "ids has {} items, fingerprints has {}",
                ids.len(),
                keys.len()
            )));
        }
        if ids.contains(&ABSENT) {
            return Err(PyValueError::new_err("ids: 0 stands for an absent entry"));
        }
        let rows: Vec<_> = keys.into_iter().zip(ids).collect();
        call(py, || self.lock().insert(&rows))
    }

    fn take_found_orphans<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let found = py.detach(|| self.lock().take_found_orphans());
        pack_u64(py, found)
    }

    /// Look-ups, hits, false positives, disk reads.
    fn counters(&self, py: Python<'_>) -> (u64, u64, u64, u64) {
        py.detach(|| {
            let index = self.lock();
            let counters = index.counters;
            (counters.lookups, counters.hits, counters.false_positives, index.reads())
        })
    }

    /// Entries of the table, how many of them no snapshot has, RAM in bytes, load factor.
    fn figures(&self, py: Python<'_>) -> (usize, usize, usize, f64) {
        py.detach(|| {
            let index = self.lock();
            (index.suggest.len(), index.added, index.bytes(), index.suggest.load())
        })
    }

    fn rebuild(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || self.lock().rebuild())
    }

    fn begin_snapshot(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || self.lock().restamp())
    }

    fn snapshot_part<'py>(&self, py: Python<'py>, part: usize) -> Option<Bound<'py, PyBytes>> {
        let data = py.detach(|| snapshot::part(&self.lock(), &self.owner, part))?;
        Some(PyBytes::new(py, &data))
    }

    fn restore(&self, py: Python<'_>, fd: RawFd) -> PyResult<bool> {
        // SAFETY: takes no pointers; the descriptor that comes back is nobody else's.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if own < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: as above.
        let file = unsafe { File::from_raw_fd(own) };
        Ok(py.detach(|| self.lock().restore(&file, &self.owner)))
    }
}
