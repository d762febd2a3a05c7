//! System calls and directory entries.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::support::calls::{c_string, call, os_error};
use super::support::input::pack_u64;
use crate::system::directory_entries::{self, DirectoryEntry};
use crate::system::extents::{self, Range};
use crate::system::{calls, effects, watchdog};

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
pub fn unwritten_ranges(py: Python<'_>, fd: i32, end: i64, sync: bool) -> PyResult<Vec<Range>> {
    call(py, || extents::unwritten(fd, end, sync))
}

#[pyfunction]
pub fn local_bytes(py: Python<'_>, fd: i32, end: i64, sync: bool) -> PyResult<(i64, i64)> {
    call(py, || extents::local_bytes(fd, end, sync))
}

#[pyfunction]
pub fn file_system_type(py: Python<'_>, fd: i32) -> PyResult<i64> {
    call(py, || extents::file_system_type(fd))
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
pub fn name_to_handle(py: Python<'_>, fd: i32) -> PyResult<Bound<'_, PyBytes>> {
    let handle = call(py, || calls::name_to_handle(fd))?;
    Ok(PyBytes::new(py, &handle))
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
pub fn fgetxattr<'py>(
    py: Python<'py>,
    fd: i32,
    name: &[u8],
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let name = c_string("name", name)?;
    let value = call(py, || calls::fgetxattr(fd, &name))?;
    Ok(value.map(|value| PyBytes::new(py, &value)))
}

#[pyfunction]
pub fn interrupt_reads(py: Python<'_>, fd: i32, thread: i32) -> PyResult<()> {
    watchdog::interrupt_reads(fd, thread).map_err(|error| os_error(py, &error))
}

#[pyfunction]
pub fn look_up<'py>(
    py: Python<'py>,
    dir_fd: i32,
    names: Vec<PyBackedBytes>,
) -> PyResult<Vec<Option<Bound<'py, PyTuple>>>> {
    let names = names.iter().map(|name| c_string("name", name)).collect::<PyResult<Vec<_>>>()?;
    let found =
        call(py, || names.iter().map(|name| directory_entries::look_up(dir_fd, name)).collect())?;
    let found: Vec<Option<DirectoryEntry>> = found;
    found.into_iter().map(|entry| entry.map(|entry| fields(py, &entry)).transpose()).collect()
}

fn fields<'py>(py: Python<'py>, entry: &DirectoryEntry) -> PyResult<Bound<'py, PyTuple>> {
    let status = &entry.status;
    let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    (
        (status.st_ino, status.st_dev, PyBytes::new(py, &entry.handle)),
        (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_rdev),
        (status.st_size, status.st_blksize, status.st_blocks),
        (
            ns(status.st_atime, status.st_atime_nsec),
            ns(status.st_mtime, status.st_mtime_nsec),
            ns(status.st_ctime, status.st_ctime_nsec),
        ),
    )
        .into_pyobject(py)
}

#[pyfunction]
pub fn list_names<'py>(
    py: Python<'py>,
    dir_fd: i32,
    start: i64,
    count: usize,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyBytes>)> {
    let found = call(py, || directory_entries::list(dir_fd, start, count))?;
    let names = PyList::new(py, found.iter().map(|(name, _)| PyBytes::new(py, name.to_bytes())))?;
    Ok((names, pack_u64(py, found.iter().map(|&(_, next)| next as u64))))
}
