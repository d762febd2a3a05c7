//! `scan_directory`, `read_unchanged`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::output::Output;
use super::sys::{c_string, call};
use crate::files::{self, Entry, Identity};

#[pyfunction]
pub fn scan_directory<'py>(
    py: Python<'py>,
    fd: i32,
    attribute: &[u8],
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
    let attribute = c_string("attribute", attribute)?;
    let (directories, found) = (PyList::empty(py), PyList::empty(py));
    for entry in call(py, || files::scan_directory(fd, &attribute))? {
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
pub fn read_unchanged(
    py: Python<'_>,
    dir_fd: i32,
    name: &[u8],
    identity: &Bound<'_, PyTuple>,
    settle_ns: i64,
    mut out: Output,
    offset: usize,
) -> PyResult<bool> {
    let name = c_string("name", name)?;
    let (inode, size, mtime_ns, ctime_ns) = identity.extract()?;
    let identity = Identity { inode, size, mtime_ns, ctime_ns };
    py.detach(|| {
        let out = usize::try_from(size)
            .ok()
            .and_then(|size| out.bytes_mut().get_mut(offset..offset.checked_add(size)?))?;
        Some(files::read_unchanged(dir_fd, &name, identity, settle_ns, out))
    })
    .ok_or_else(|| PyValueError::new_err(format!("out has no {size} bytes at {offset}")))
}
