//! `TreeWalk`, `FoundFiles`, `read_packed`.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::input::Input;
use super::output::Output;
use super::sys::os_error;
use crate::files::Identity;
use crate::study::{self, Walk, Wanted};

#[pyclass(frozen, module = "dedupd.native")]
pub struct TreeWalk(Mutex<Walk>);

#[pymethods]
impl TreeWalk {
    #[new]
    fn new(py: Python<'_>, root: &[u8], left_out: (u64, u64)) -> PyResult<TreeWalk> {
        let walk = py.detach(|| Walk::new(root, left_out)).map_err(|e| os_error(py, &e))?;
        Ok(TreeWalk(Mutex::new(walk)))
    }

    fn next(&self, py: Python<'_>, files_min: usize) -> PyResult<Option<FoundFiles>> {
        let next = || self.0.lock().unwrap_or_else(PoisonError::into_inner).next(files_min);
        let Some(found) = py.detach(next) else { return Ok(None) };
        let failures = PyList::empty(py);
        for (path, errno) in found.failures {
            failures.append((PyBytes::new(py, &path), errno))?;
        }
        let statuses: Vec<u8> =
            found.statuses.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Some(FoundFiles {
            length: found.statuses.len(),
            paths: PyBytes::new(py, &found.paths).unbind(),
            statuses: PyBytes::new(py, &statuses).unbind(),
            directories: PyBytes::new(py, &found.directories).unbind(),
            counts: super::input::pack_u32(py, found.counts).unbind(),
            failures: failures.unbind(),
        }))
    }
}

#[pyclass(frozen, module = "dedupd.native")]
pub struct FoundFiles {
    length: usize,
    #[pyo3(get)]
    paths: Py<PyBytes>,
    #[pyo3(get)]
    statuses: Py<PyBytes>,
    #[pyo3(get)]
    directories: Py<PyBytes>,
    #[pyo3(get)]
    counts: Py<PyBytes>,
    #[pyo3(get)]
    failures: Py<PyList>,
}

#[pymethods]
impl FoundFiles {
    fn __len__(&self) -> usize {
        self.length
    }
}

const IDENTITY_FIELDS: usize = 4;

#[pyfunction]
pub fn read_packed(
    py: Python<'_>,
    root_fd: i32,
    paths: Input,
    identities: Input,
    mut out: Output,
    offset: usize,
    threads: usize,
) -> PyResult<usize> {
    let fields = identities.u64s("identities")?;
    let paths: Vec<&[u8]> = paths.bytes().split_inclusive(|&byte| byte == 0).collect();
    if fields.len() != IDENTITY_FIELDS * paths.len() {
        return Err(PyValueError::new_err(format!(
            "identities has {} fields for {} paths",
            fields.len(),
            paths.len()
        )));
    }
    let files: Vec<Wanted> = paths
        .iter()
        .zip(fields.chunks_exact(IDENTITY_FIELDS))
        .map(|(path, fields)| Wanted {
            path: path.strip_suffix(b"\0").unwrap_or(path),
            identity: Identity {
                inode: fields[0],
                size: fields[1] as i64,
                mtime_ns: fields[2] as i64,
                ctime_ns: fields[3] as i64,
            },
        })
        .collect();
    let total = files.iter().try_fold(0usize, |sum, file| {
        usize::try_from(file.identity.size).ok().and_then(|size| sum.checked_add(size))
    });
    py.detach(|| {
        let out = out.bytes_mut();
        let out = total.and_then(|total| out.get_mut(offset..offset.checked_add(total)?))?;
        Some(study::read_packed(root_fd, &files, out, threads))
    })
    .ok_or_else(|| PyValueError::new_err(format!("out has no room for the files at {offset}")))
}
