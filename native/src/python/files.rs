//! `scan_directory`, `scan_unsettled`, `read_files`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use super::output::Output;
use super::sys::{c_string, call};
use crate::commits::is_settled_stub;
use crate::files::{self, Entry, Identity};

/// Inode, size, mtime and ctime in nanoseconds, as Python has them.
pub type Fields = (u64, i64, i64, i64);

pub fn identity_of((inode, size, mtime_ns, ctime_ns): Fields) -> Identity {
    Identity { inode, size, mtime_ns, ctime_ns }
}

/// Names of directories, and files.
pub type Found<'py> = (Bound<'py, PyList>, Bound<'py, PyList>);

#[pyfunction]
pub fn scan_directory<'py>(py: Python<'py>, fd: i32, attribute: &[u8]) -> PyResult<Found<'py>> {
    let attribute = c_string("attribute", attribute)?;
    found(py, call(py, || files::scan_directory(fd, &attribute))?)
}

#[pyfunction]
pub fn scan_unsettled<'py>(
    py: Python<'py>,
    fd: i32,
    attribute: &[u8],
    seed: u64,
) -> PyResult<(Found<'py>, u64, i64)> {
    let attribute = c_string("attribute", attribute)?;
    let (left, count, size) = call(py, || {
        let mut entries = files::scan_directory(fd, &attribute)?;
        let (mut count, mut bytes) = (0, 0);
        entries.retain(|entry| match entry {
            Entry::File { identity, links: 1, allocated: 0, attribute: Some(value), .. }
                if is_settled_stub(value, identity.size, seed) =>
            {
                count += 1;
                bytes += identity.size;
                false
            }
            _ => true,
        });
        Ok((entries, count, bytes))
    })?;
    Ok((found(py, left)?, count, size))
}

pub fn found(py: Python<'_>, entries: Vec<Entry>) -> PyResult<Found<'_>> {
    let (directories, found) = (PyList::empty(py), PyList::empty(py));
    for entry in entries {
        match entry {
            Entry::Directory { name } => directories.append(PyBytes::new(py, name.to_bytes()))?,
            Entry::File { name, identity, links, allocated, attribute } => {
                let identity =
                    (identity.inode, identity.size, identity.mtime_ns, identity.ctime_ns);
                let value = attribute.map(|value| PyBytes::new(py, &value));
                let name = PyBytes::new(py, name.to_bytes());
                found.append((name, identity, links, allocated, value))?;
            }
        }
    }
    Ok((directories, found))
}

#[pyfunction]
#[pyo3(signature = (dir_fd, requests, settle_ns, out, offset, threads = 1))]
pub fn read_files<'py>(
    py: Python<'py>,
    dir_fd: i32,
    requests: Vec<(PyBackedBytes, Fields)>,
    settle_ns: i64,
    mut out: Output,
    offset: usize,
    threads: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let files = requests
        .iter()
        .map(|(path, fields)| Ok((c_string("path", path)?, identity_of(*fields))))
        .collect::<PyResult<Vec<_>>>()?;
    let read = py.detach(|| {
        let out = out.bytes_mut().get_mut(offset..)?;
        files::read_files(dir_fd, &files, settle_ns, out, threads)
    });
    let Some(read) = read else {
        let size: i64 = files.iter().map(|(_, identity)| identity.size).sum();
        let message = format!("out is too short: it has no {size} bytes at {offset}");
        return Err(PyValueError::new_err(message));
    };
    let read: Vec<u8> = read.into_iter().map(u8::from).collect();
    Ok(PyBytes::new(py, &read))
}
