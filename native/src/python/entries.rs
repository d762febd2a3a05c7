//! `look_up`, `list_names`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::input::pack_u64;
use super::sys::{c_string, call};
use crate::entries::{self, Entry};

#[pyfunction]
pub fn look_up<'py>(
    py: Python<'py>,
    dir_fd: i32,
    names: Vec<PyBackedBytes>,
) -> PyResult<Vec<Option<Bound<'py, PyTuple>>>> {
    let names = names.iter().map(|name| c_string("name", name)).collect::<PyResult<Vec<_>>>()?;
    let found = call(py, || names.iter().map(|name| entries::look_up(dir_fd, name)).collect())?;
    let found: Vec<Option<Entry>> = found;
    found.into_iter().map(|entry| entry.map(|entry| fields(py, &entry)).transpose()).collect()
}

fn fields<'py>(py: Python<'py>, entry: &Entry) -> PyResult<Bound<'py, PyTuple>> {
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
    let found = call(py, || entries::list(dir_fd, start, count))?;
    let names = PyList::new(py, found.iter().map(|(name, _)| PyBytes::new(py, name.to_bytes())))?;
    Ok((names, pack_u64(py, found.iter().map(|&(_, next)| next as u64))))
}
