//! `TreeWalk`, `FileColumns`, `read_packed`.

use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::support::calls::os_error;
use super::support::input::{Input, pack_u64};
use super::support::output::{Output, column};
use crate::study::reads::{self, FileToRead};
use crate::study::walk::Walk;
use crate::system::files::Identity;
use crate::threads::lock::locked;

#[pyclass(frozen, module = "dedupd_core.native.study")]
pub struct TreeWalk(Mutex<Walk>);

#[pymethods]
impl TreeWalk {
    #[new]
    fn new(
        py: Python<'_>,
        root: &[u8],
        left_out: (u64, u64),
        names_max: usize,
    ) -> PyResult<TreeWalk> {
        let walk =
            py.detach(|| Walk::new(root, left_out, names_max)).map_err(|e| os_error(py, &e))?;
        Ok(TreeWalk(Mutex::new(walk)))
    }

    fn next(&self, py: Python<'_>, files_min: usize) -> Option<FileColumns> {
        let found = py.detach(|| self.walk().next(files_min))?;
        let statuses = found.statuses.into_flattened();
        Some(FileColumns {
            paths: column(py, found.paths),
            statuses: column(py, pack_u64(statuses.into_iter().map(|field| field as u64))),
            failures: found.failures,
        })
    }

    fn state(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        py.detach(|| self.walk().state()).map_err(|e| os_error(py, &e))
    }

    fn resume(&self, py: Python<'_>, state: Input) -> PyResult<()> {
        let state = state.bytes();
        py.detach(|| self.walk().resume(state))
            .ok_or_else(|| PyValueError::new_err("state is not that of a walk"))
    }

    #[getter]
    fn beyond_names(&self) -> bool {
        self.walk().beyond_names()
    }
}

impl TreeWalk {
    fn walk(&self) -> MutexGuard<'_, Walk> {
        locked(&self.0)
    }
}

/// Regular files: parallel columns.
#[pyclass(frozen, get_all, module = "dedupd_core.native.study")]
pub struct FileColumns {
    paths: Py<PyBytes>,
    statuses: Py<PyBytes>,
    failures: Vec<(Vec<u8>, i32)>,
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
    let files: Vec<FileToRead> = paths
        .iter()
        .zip(fields.chunks_exact(IDENTITY_FIELDS))
        .map(|(path, fields)| FileToRead {
            path: path.strip_suffix(b"\0").unwrap_or(path),
            identity: Identity {
                inode: fields[0],
                size: fields[1] as i64,
                mtime_ns: fields[2] as i64,
                ctime_ns: fields[3] as i64,
            },
        })
        .collect();
    py.detach(|| reads::read_packed(root_fd, &files, out.bytes_mut().get_mut(offset..)?, threads))
        .ok_or_else(|| PyValueError::new_err(format!("out has no room for the files at {offset}")))
}
