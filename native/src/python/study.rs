//! `TreeWalk`, `FileColumns`, `read_packed`, `file_type`, `write_parquet`.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::support::calls::os_error;
use super::support::input::Input;
use super::support::output::Output;
use crate::study::parquet_writer::{self, Column, Kind};
use crate::study::reads::{self, Wanted};
use crate::study::walk::{self, Content, Walk};
use crate::system::files::Identity;
use crate::threads::lock::locked;

#[pyclass(frozen, module = "dedupd.native.study")]
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
        py.detach(|| self.walk().next(files_min)).map(FileColumns)
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = py.detach(|| self.walk().state()).map_err(|e| os_error(py, &e))?;
        Ok(PyBytes::new(py, &state))
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

#[pyclass(frozen, module = "dedupd.native.study")]
pub struct FileColumns(walk::FileColumns);

#[pymethods]
impl FileColumns {
    #[new]
    fn new() -> FileColumns {
        FileColumns(walk::FileColumns::default())
    }

    fn __len__(&self) -> usize {
        self.0.statuses.len()
    }

    fn with_content<'py>(&self, py: Python<'py>) -> [Bound<'py, PyBytes>; 4] {
        let Content { numbers, paths, path_ends, identities } = py.detach(|| self.0.with_content());
        [numbers, paths, path_ends, identities].map(|column| PyBytes::new(py, &column))
    }

    #[getter]
    fn failures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let failures = self.0.failures.iter();
        PyList::new(py, failures.map(|(path, errno)| (PyBytes::new(py, path), *errno)))
    }

    fn write(&self, py: Python<'_>, path: PathBuf, dataset: u16, first_file: u32) -> PyResult<()> {
        py.detach(|| self.0.write(&path, dataset, first_file)).map_err(|e| os_error(py, &e))
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
    py.detach(|| reads::read_packed(root_fd, &files, out.bytes_mut().get_mut(offset..)?, threads))
        .ok_or_else(|| PyValueError::new_err(format!("out has no room for the files at {offset}")))
}

#[pyfunction]
pub fn file_type(name: &[u8]) -> String {
    crate::study::content_types::file_type(name)
}

fn kind_of(name: &str) -> PyResult<Kind> {
    match name {
        "u16" => Ok(Kind::U16),
        "u32" => Ok(Kind::U32),
        "u64" => Ok(Kind::U64),
        "i64" => Ok(Kind::I64),
        "bytes" => Ok(Kind::Bytes),
        "text" => Ok(Kind::Text),
        _ => Err(PyValueError::new_err(format!("there are no columns of {name:?}"))),
    }
}

#[pyfunction]
pub fn write_parquet(
    py: Python<'_>,
    path: PathBuf,
    columns: Vec<(String, String, Input)>,
    rows: usize,
) -> PyResult<()> {
    let kinds = columns.iter().map(|(_, kind, _)| kind_of(kind)).collect::<PyResult<Vec<_>>>()?;
    let columns: Vec<Column> = columns
        .iter()
        .zip(kinds)
        .map(|((name, _, items), kind)| Column { name, kind, items: items.bytes() })
        .collect();
    let written = py.detach(|| parquet_writer::write(&path, columns, rows));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => PyValueError::new_err(error.to_string()),
        _ => os_error(py, &error),
    })
}
