//! System calls.

use std::time::Duration;

use caps::Capability;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::support::calls::{c_string, call, os_error};
use super::support::input::Input;
use super::support::output::Output;
use crate::format::lmdb_pages;
use crate::system::extents::{self, Range};
use crate::system::file_systems::{FILE_SYSTEMS, FileSystemRow, row_of};
use crate::system::file_user::become_user;
use crate::system::{calls, confinement, effects, handle_forms, open_guard, reads};

#[pyfunction]
pub fn punch_hole(py: Python<'_>, fd: i32, offset: i64, length: i64) -> PyResult<()> {
    call(py, || effects::punch_hole(fd, offset, length))
}

#[pyfunction]
pub fn fallocate_keep_size(py: Python<'_>, fd: i32, offset: i64, length: i64) -> PyResult<()> {
    call(py, || effects::fallocate_keep_size(fd, offset, length))
}

#[pyfunction]
pub fn present_ranges(py: Python<'_>, fd: i32, start: i64, end: i64) -> PyResult<Vec<Range>> {
    call(py, || extents::present(fd, start, end))
}

#[pyfunction]
pub fn written_ranges(py: Python<'_>, fd: i32, end: i64) -> PyResult<Vec<Range>> {
    call(py, || extents::written(fd, 0, end))
}

#[pyfunction]
pub fn unwritten_ranges(py: Python<'_>, fd: i32, end: i64, sync: bool) -> PyResult<Vec<Range>> {
    call(py, || extents::unwritten(fd, end, sync))
}

#[pyfunction]
pub fn local_bytes(py: Python<'_>, fd: i32, end: i64, sync: bool) -> PyResult<(i64, i64)> {
    call(py, || extents::local_bytes(fd, end, sync))
}

#[pyfunction]
pub fn has_large_units(py: Python<'_>, fd: i32) -> PyResult<bool> {
    call(py, || extents::has_large_units(fd))
}

#[pyfunction]
pub fn read_uncached(py: Python<'_>, fd: i32, mut view: Output, offset: u64) -> PyResult<usize> {
    let room = view.bytes_mut();
    py.detach(|| reads::read_uncached(fd, offset, room)).map_err(|error| os_error(py, &error))
}

/// A file system, for Python.
#[pyclass(frozen, module = "dedupd_core.native.system")]
pub struct FileSystemKind(FileSystemRow);

#[pymethods]
impl FileSystemKind {
    #[getter]
    fn name(&self) -> &str {
        self.0.name
    }

    #[getter]
    fn title(&self) -> &str {
        self.0.title
    }

    #[getter]
    fn magic(&self) -> i64 {
        self.0.magic
    }

    #[getter]
    fn is_supported(&self) -> bool {
        self.0.is_supported
    }

    #[getter]
    fn punching_frees(&self) -> bool {
        self.0.punching_frees
    }

    #[getter]
    fn opens_any_generation(&self) -> bool {
        self.0.opens_any_generation
    }

    #[getter]
    fn has_random_generations(&self) -> bool {
        self.0.has_random_generations
    }
}

#[pyfunction]
pub fn file_systems() -> Vec<FileSystemKind> {
    FILE_SYSTEMS.iter().copied().map(FileSystemKind).collect()
}

#[pyfunction]
pub fn file_system_kind(py: Python<'_>, fd: i32) -> PyResult<FileSystemKind> {
    call(py, || row_of(fd)).map(FileSystemKind)
}

#[pyfunction]
pub fn shared_bytes(py: Python<'_>, fd: i32, end: i64) -> PyResult<i64> {
    call(py, || extents::shared_bytes(fd, end))
}

#[pyfunction]
pub fn syncfs(py: Python<'_>, fd: i32) -> PyResult<()> {
    call(py, || effects::syncfs(fd))
}

#[pyfunction]
pub fn renameat2(
    py: Python<'_>,
    old_dir_fd: i32,
    old: &[u8],
    new_dir_fd: i32,
    new: &[u8],
    flags: u32,
) -> PyResult<()> {
    let (old, new) = (c_string("old", old)?, c_string("new", new)?);
    call(py, || effects::renameat2(old_dir_fd, &old, new_dir_fd, &new, flags))
}

#[pyfunction]
pub fn name_to_handle(py: Python<'_>, fd: i32) -> PyResult<Vec<u8>> {
    call(py, || calls::name_to_handle(fd))
}

#[pyfunction]
pub fn handle_of(sample: &[u8], inode: u64, generation: u32) -> Option<Vec<u8>> {
    handle_forms::handle_of(sample, inode, generation)
}

#[pyfunction]
pub fn generation(py: Python<'_>, fd: i32) -> PyResult<u32> {
    call(py, || calls::generation_of(fd))
}

#[pyfunction]
pub fn open_by_handle(py: Python<'_>, mount_fd: i32, handle: &[u8], flags: i32) -> PyResult<i32> {
    call(py, || calls::open_by_handle(mount_fd, handle, flags))
}

#[pyfunction]
pub fn become_file_user(uid: u32) {
    become_user(uid);
}

#[pyfunction]
pub fn give_up_capability(py: Python<'_>, name: &str) -> PyResult<()> {
    let capability = capability(name)?;
    call(py, || confinement::give_up_capability(capability))
}

#[pyfunction]
pub fn bound_capabilities(py: Python<'_>, kept: Vec<String>) -> PyResult<bool> {
    let kept = kept.iter().map(|name| capability(name)).collect::<PyResult<_>>()?;
    call(py, || confinement::bound_capabilities(&kept))
}

fn capability(name: &str) -> PyResult<Capability> {
    name.parse().map_err(|_| PyValueError::new_err(format!("{name}: no such capability")))
}

#[pyfunction]
pub fn deny_calls(py: Python<'_>) -> PyResult<()> {
    call(py, confinement::deny_calls)
}

#[pyfunction]
pub fn fgetxattr(py: Python<'_>, fd: i32, name: &[u8]) -> PyResult<Option<Vec<u8>>> {
    let name = c_string("name", name)?;
    call(py, || calls::fgetxattr(fd, &name))
}

#[pyfunction]
pub fn lmdb_is_sound(py: Python<'_>, data: Input) -> bool {
    let data = data.bytes();
    py.detach(|| lmdb_pages::is_sound(data))
}

#[pyclass(frozen, module = "dedupd_core.native.system")]
pub struct OpenGuard(open_guard::OpenGuard);

/// Process, user, program name and path.
type Refusal<'py> = (i32, u32, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl OpenGuard {
    #[new]
    fn new(
        py: Python<'_>,
        directory_fd: i32,
        exempt_fds: Vec<i32>,
        register: Vec<u8>,
    ) -> PyResult<Self> {
        let start =
            || open_guard::OpenGuard::start(directory_fd, &exempt_fds, register.clone()).map(Self);
        call(py, start)
    }

    fn take<'py>(&self, py: Python<'py>, seconds: f64) -> (Vec<Refusal<'py>>, u64) {
        let (found, count) = py.detach(|| self.0.take(Duration::from_secs_f64(seconds.max(0.0))));
        let found = found.iter().map(|one| {
            let (program, path) = (&one.program, &one.path);
            (one.pid, one.uid, PyBytes::new(py, program), PyBytes::new(py, path))
        });
        (found.collect(), count)
    }

    #[getter]
    fn is_open(&self) -> bool {
        self.0.is_open()
    }
}
