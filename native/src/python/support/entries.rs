//! Files and directories of a scan, for Python.

use std::ffi::CStr;
use std::io::{Error, ErrorKind};

use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::calls::{call, os_error};
use super::output::column;
use crate::format::stub::Seeds;
use crate::system::files::{Entry, Identity, Scan};

/// Inode, size, mtime and ctime in nanoseconds, as in Python.
pub type Fields = (u64, i64, i64, i64);

pub fn fields_of(identity: Identity) -> Fields {
    (identity.inode, identity.size, identity.mtime_ns, identity.ctime_ns)
}

pub fn identity_of((inode, size, mtime_ns, ctime_ns): Fields) -> Identity {
    Identity { inode, size, mtime_ns, ctime_ns }
}

/// The seeds of a volume's stub attributes, for checksum and binding.
pub fn seeds_of((attribute, instance): (u64, u64)) -> Seeds {
    Seeds { attribute, instance }
}

/// A regular file of a directory, found by a scan.
#[pyclass(frozen, get_all, module = "dedupd_core.native.tree")]
pub struct FileEntry {
    name: Py<PyBytes>,
    identity: Fields,
    links: u64,
    owner: u32,
    allocated_bytes: i64,
    attribute: Option<Py<PyBytes>>,
}

/// A directory: the names of its directories, and its files or a selection of them.
#[pyclass(frozen, subclass, get_all, module = "dedupd_core.native.tree")]
pub struct Directory {
    directories: Py<PyList>,
    files: Py<PyList>,
}

/// A directory that cannot be read, and the reason.
#[pyclass(frozen, eq, get_all, module = "dedupd_core.native.tree")]
#[derive(PartialEq)]
pub struct Unreadable {
    errno: i32,
}

#[pymethods]
impl Unreadable {
    #[new]
    fn new(errno: i32) -> Unreadable {
        Unreadable { errno }
    }
}

impl From<Error> for Unreadable {
    fn from(error: Error) -> Unreadable {
        Unreadable { errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Entries of a directory between two calls of `safe_point`: about 20 ms.
const ENTRIES_AT_ONCE: usize = 8192;

/// The entries of a directory that `keep` retains, in pieces, with calls of `safe_point` in
/// between. Files are in the order of their inodes, which is close to that of their blocks.
pub fn scan<'py>(
    py: Python<'py>,
    fd: i32,
    attribute: &CStr,
    safe_point: Option<&Bound<'py, PyAny>>,
    mut keep: impl FnMut(&mut Vec<Entry>) + Send,
) -> PyResult<Vec<Entry>> {
    let mut directory = call(py, || Scan::new(fd, attribute, false))?;
    let (mut entries, mut piece) = (Vec::new(), Vec::new());
    while !directory.is_over {
        let step = py.detach(|| {
            directory.next(ENTRIES_AT_ONCE, &mut piece)?;
            keep(&mut piece);
            Ok::<(), Error>(())
        });
        match step {
            Ok(()) => entries.append(&mut piece),
            Err(error) if error.kind() == ErrorKind::Interrupted => py.check_signals()?,
            Err(error) => return Err(os_error(py, &error)),
        }
        if let Some(safe_point) = safe_point.filter(|_| !directory.is_over) {
            safe_point.call0()?;
        }
    }
    py.detach(|| entries.sort_unstable_by_key(inode));
    Ok(entries)
}

fn inode(entry: &Entry) -> u64 {
    match entry {
        Entry::Directory { .. } => 0,
        Entry::File { identity, .. } => identity.inode,
    }
}

impl Directory {
    /// Converts entries for Python, with occasional calls of `safe_point`.
    pub fn of(
        py: Python<'_>,
        entries: Vec<Entry>,
        safe_point: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Directory> {
        let (directories, files) = (PyList::empty(py), PyList::empty(py));
        for (number, entry) in (1_usize..).zip(entries) {
            if let Some(safe_point) = safe_point.filter(|_| number % ENTRIES_AT_ONCE == 0) {
                safe_point.call0()?;
            }
            match entry {
                Entry::Directory { name } => {
                    directories.append(PyBytes::new(py, name.to_bytes()))?;
                }
                Entry::File { name, identity, links, owner, allocated, attribute, .. } => {
                    let file = FileEntry {
                        name: column(py, name.to_bytes()),
                        identity: fields_of(identity),
                        links,
                        owner,
                        allocated_bytes: allocated,
                        attribute: attribute.map(|value| column(py, value)),
                    };
                    files.append(Py::new(py, file)?)?;
                }
            }
        }
        Ok(Directory { directories: directories.unbind(), files: files.unbind() })
    }

    /// A directory with further properties.
    pub fn with<T>(self, more: T) -> PyClassInitializer<T>
    where
        T: PyClass<BaseType = Directory>,
    {
        PyClassInitializer::from(self).add_subclass(more)
    }
}
