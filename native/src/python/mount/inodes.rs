//! The inodes that the kernel knows.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::write_times::WriteTimes;
use super::{duplicate, ready};
use crate::format::stub::Seeds;
use crate::mount::inodes::generations::{Generations, SECRET_BYTES};
use crate::mount::inodes::handle::Handle;
use crate::mount::inodes::table;
use crate::mount::pages::client::Pages;
use crate::mount::protocol::message::Failure;
use crate::mount::requests::stubs::Store;
use crate::mount::requests::tree::Tree;
use crate::mount::reserved_blocks::{Caller, ReservedBlocks};
use crate::python::store::stub_bytes::StubBytes;
use crate::python::support::calls::{c_string, os_error};
use crate::python::support::door::Door;
use crate::stub::open_stub::StubFiles;
use crate::system::calls::name_to_handle;
use crate::system::file_user::can_become;
use crate::threads::lock::locked;

/// The inodes that the kernel knows, and their data. None after it is closed.
#[pyclass(frozen, subclass, module = "dedupd_core.native.mount")]
pub struct Inodes(Mutex<Option<Arc<Tree>>>);

impl Inodes {
    pub(super) fn tree(&self, py: Python<'_>) -> PyResult<Arc<Tree>> {
        let tree = locked(&self.0).as_ref().map(Arc::clone);
        ready(py, tree.ok_or(Failure(libc::ENOTCONN)))
    }
}

#[pymethods]
impl Inodes {
    #[new]
    fn new(
        py: Python<'_>,
        root_fd: RawFd,
        reserved: &[u8],
        base_name: &[u8],
        secret: &[u8],
        descriptors_max: usize,
        pins_max: usize,
    ) -> PyResult<Inodes> {
        let secret: [u8; SECRET_BYTES] =
            secret.try_into().map_err(|_| PyValueError::new_err("the secret has 32 bytes"))?;
        let root = duplicate(py, root_fd)?;
        let table = table::Inodes::new(root, descriptors_max, pins_max, Generations::new(secret));
        let (reserved, base_name) =
            (c_string("reserved", reserved)?, c_string("base_name", base_name)?);
        let tree = Tree::new(ready(py, table)?, reserved, base_name);
        Ok(Inodes(Mutex::new(Some(Arc::new(tree)))))
    }

    #[getter]
    fn by_handle(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.by_handle)
    }

    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.tree(py)?.inodes.device)
    }

    #[getter]
    fn descriptors(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tree(py)?.inodes.descriptors())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tree(py)?.inodes.count())
    }

    fn number(&self, py: Python<'_>, ino: u64) -> PyResult<u64> {
        Ok(self.tree(py)?.inodes.number(ino))
    }

    fn fd(&self, py: Python<'_>, ino: u64) -> PyResult<RawFd> {
        let inodes = &self.tree(py)?.inodes;
        Ok(inodes.given.number(ready(py, inodes.path(ino))?))
    }

    /// Takes ownership of `fd`.
    fn remember(&self, py: Python<'_>, ino: u64, fd: RawFd) -> PyResult<u64> {
        // SAFETY: the caller transfers the descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let tree = self.tree(py)?;
        if !tree.inodes.by_handle {
            return Ok(tree.inodes.remember(ino, Handle::new(&[]), Some(fd)));
        }
        let handle = name_to_handle(fd.as_raw_fd()).map_err(|error| os_error(py, &error))?;
        Ok(tree.inodes.remember(ino, Handle::new(&handle), None))
    }

    fn may_keep_open(&self, py: Python<'_>, uid: u32) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.may_pin(uid))
    }

    /// Takes ownership of `fd`.
    fn keep_open(&self, py: Python<'_>, ino: u64, fd: RawFd, uid: u32) -> PyResult<()> {
        // SAFETY: the caller transfers the descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        self.tree(py)?.inodes.pin(ino, fd, uid);
        Ok(())
    }

    fn pinned(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.tree(py)?.inodes.pinned())
    }

    fn knows(&self, py: Python<'_>, ino: u64) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.knows(ino))
    }

    fn forget(&self, py: Python<'_>, ino: u64, lookups: u64) -> PyResult<()> {
        self.tree(py)?.inodes.forget(ino, lookups);
        Ok(())
    }

    /// Where the content of stubs is: native code reads and writes them from then on. `seeds`: of
    /// attributes.
    fn read_stubs(
        &self,
        py: Python<'_>,
        stub_bytes: &Bound<'_, StubBytes>,
        seeds: (u64, u64),
        block_bytes: u64,
        door: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let (StubBytes { content, cache }, tree) = (stub_bytes.get(), self.tree(py)?);
        let seeds = Seeds { attribute: seeds.0, instance: seeds.1 };
        let (content, cache) = (Arc::clone(content), Arc::clone(cache));
        let (attribute, block_bytes) = (tree.reserved.clone(), block_bytes.max(1));
        let files = StubFiles { attribute, seed: seeds.attribute, block_bytes };
        let effects = Door::new(door).effects;
        // A second call has no effect.
        let _ = tree.store.set(Arc::new(Store { content, cache, seeds, files, effects }));
        Ok(())
    }

    /// Sets the command that starts the page worker, and the worker's environment.
    fn ask_for_pages(
        &self,
        py: Python<'_>,
        command: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
    ) -> PyResult<()> {
        // A second call has no effect.
        let _ = self.tree(py)?.pages.set(Arc::new(Pages::new(command, environment)));
        Ok(())
    }

    fn first_newer(&self, py: Python<'_>, ino: u64, start: u64, end: u64) -> PyResult<Option<u64>> {
        let inode = ready(py, self.tree(py)?.in_mount(ino))?;
        Ok(py.detach(|| inode.first_newer(&(start..end))))
    }

    fn lend(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        self.tree(py)?.inodes.lent.lend(ino);
        Ok(())
    }

    fn take_back(&self, py: Python<'_>, ino: u64) -> PyResult<bool> {
        let tree = self.tree(py)?;
        tree.inodes.watch(ino);
        Ok(tree.inodes.lent.take_back(ino))
    }

    fn was_used(&self, py: Python<'_>, ino: u64) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.lent.was_used(ino))
    }

    fn note_writes(&self, py: Python<'_>, times: &Bound<'_, WriteTimes>) -> PyResult<()> {
        // A second call has no effect.
        let _ = self.tree(py)?.write_times.set(Arc::clone(&times.get().0));
        Ok(())
    }

    fn watch(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        self.tree(py)?.inodes.watch(ino);
        Ok(())
    }

    fn unwatch(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        self.tree(py)?.inodes.unwatch(ino);
        Ok(())
    }

    fn close_idle(&self, py: Python<'_>) -> PyResult<()> {
        self.tree(py)?.inodes.close_idle();
        Ok(())
    }

    fn let_go(&self, py: Python<'_>) -> PyResult<()> {
        self.tree(py)?.inodes.let_go();
        Ok(())
    }

    fn delay_files(&self, py: Python<'_>, are_delayed: bool) -> PyResult<()> {
        self.tree(py)?.files_are_delayed.store(are_delayed, Ordering::Relaxed);
        Ok(())
    }

    fn allow_writes(&self, py: Python<'_>, size_bytes: Option<i64>) -> PyResult<()> {
        let bound = size_bytes.unwrap_or(i64::MAX);
        self.tree(py)?.allowed_bytes.store(bound, Ordering::Relaxed);
        Ok(())
    }

    /// From now on, changes of users use no block that the file system reserves for root, `user`
    /// and `group`. `other` is a user without a right to them. Returns false if that is impossible.
    fn keep_reserved_blocks(
        &self,
        py: Python<'_>,
        user: u32,
        group: u32,
        other: u32,
    ) -> PyResult<bool> {
        let can = can_become(other);
        if can {
            let _ = self.tree(py)?.reserved_blocks.set(ReservedBlocks { user, group, other });
        }
        Ok(can)
    }

    /// Returns whether a caller may use these blocks. The caller is a user's thread, or the kernel,
    /// if it writes the changes of a mapping of the inode `mapped`.
    #[pyo3(signature = (uid, pid, mapped = None))]
    fn may_have_reserved(
        &self,
        py: Python<'_>,
        uid: u32,
        pid: u32,
        mapped: Option<u64>,
    ) -> PyResult<bool> {
        let tree = self.tree(py)?;
        let caller = mapped.map_or(Caller::Thread(pid, uid), |node| tree.mapping_of(node));
        Ok(tree.reserved_blocks.get().is_some_and(|blocks| blocks.are_for(caller)))
    }

    fn note_names(&self, py: Python<'_>, are_noted: bool) -> PyResult<()> {
        self.tree(py)?.names_are_noted.store(are_noted, Ordering::Relaxed);
        Ok(())
    }

    fn ignore_case(&self, py: Python<'_>) -> PyResult<()> {
        self.tree(py)?.ignores_case.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Closes all descriptors below, so that the file system may be unmounted.
    fn close(&self) {
        locked(&self.0).take();
    }
}
