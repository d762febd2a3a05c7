//! System calls and directory entries.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use super::support::calls::{c_string, call};
use super::support::input::{Input, pack_u64};
use crate::format::lmdb_pages;
use crate::system::directory_entries;
use crate::system::extents::{self, Range};
use crate::system::{calls, effects};

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

/// A name of a directory, with the attributes that `os.stat_result` has under these names.
#[pyclass(frozen, get_all, module = "dedupd.native.system")]
pub struct DirectoryEntry {
    handle: Py<PyBytes>,
    st_ino: u64,
    st_dev: u64,
    st_mode: u32,
    st_nlink: u64,
    st_uid: u32,
    st_gid: u32,
    st_rdev: u64,
    st_size: i64,
    st_blksize: i64,
    st_blocks: i64,
    st_atime_ns: i128,
    st_mtime_ns: i128,
    st_ctime_ns: i128,
}

impl DirectoryEntry {
    fn of(py: Python<'_>, entry: &directory_entries::DirectoryEntry) -> DirectoryEntry {
        let status = &entry.status;
        let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        DirectoryEntry {
            handle: PyBytes::new(py, &entry.handle).unbind(),
            st_ino: status.st_ino,
            st_dev: status.st_dev,
            st_mode: status.st_mode,
            st_nlink: status.st_nlink,
            st_uid: status.st_uid,
            st_gid: status.st_gid,
            st_rdev: status.st_rdev,
            st_size: status.st_size,
            st_blksize: status.st_blksize,
            st_blocks: status.st_blocks,
            st_atime_ns: ns(status.st_atime, status.st_atime_nsec),
            st_mtime_ns: ns(status.st_mtime, status.st_mtime_nsec),
            st_ctime_ns: ns(status.st_ctime, status.st_ctime_nsec),
        }
    }
}

#[pyfunction]
pub fn look_up(
    py: Python<'_>,
    dir_fd: i32,
    names: Vec<PyBackedBytes>,
) -> PyResult<Vec<Option<DirectoryEntry>>> {
    let names = names.iter().map(|name| c_string("name", name)).collect::<PyResult<Vec<_>>>()?;
    let found: Vec<_> =
        call(py, || names.iter().map(|name| directory_entries::look_up(dir_fd, name)).collect())?;
    Ok(found.iter().map(|entry| Some(DirectoryEntry::of(py, entry.as_ref()?))).collect())
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

#[pyfunction]
pub fn lmdb_is_sound(py: Python<'_>, data: Input) -> bool {
    let data = data.bytes();
    py.detach(|| lmdb_pages::is_sound(data))
}
