//! Files and directories as a scan finds them, for Python.

use std::ffi::CStr;
use std::io::{Error, ErrorKind};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::calls::{call, os_error};
use crate::system::files::{Entry, Identity, Scan};

/// Inode, size, mtime and ctime in nanoseconds, as Python has them.
pub type Fields = (u64, i64, i64, i64);

pub fn fields_of(identity: Identity) -> Fields {
    (identity.inode, identity.size, identity.mtime_ns, identity.ctime_ns)
}

pub fn identity_of((inode, size, mtime_ns, ctime_ns): Fields) -> Identity {
    Identity { inode, size, mtime_ns, ctime_ns }
}

/// Names of directories, and files.
pub type Found<'py> = (Bound<'py, PyList>, Bound<'py, PyList>);

/// Entries of a directory between two calls of `check`: they take about 20 ms.
const ENTRIES_AT_ONCE: usize = 8192;

/// The entries of a directory that `keep` leaves. `check` is called in between. Files are in the
/// order of their inodes, which on a disk is near that of their blocks.
pub fn scan<'py>(
    py: Python<'py>,
    fd: i32,
    attribute: &CStr,
    check: Option<&Bound<'py, PyAny>>,
    mut keep: impl FnMut(&mut Vec<Entry>) + Send,
) -> PyResult<Vec<Entry>> {
    let mut directory = call(py, || Scan::new(fd, attribute))?;
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
        if let Some(check) = check.filter(|_| !directory.is_over) {
            check.call0()?;
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

/// Entries as Python objects. `check` is called now and then.
pub fn found<'py>(
    py: Python<'py>,
    entries: Vec<Entry>,
    check: Option<&Bound<'py, PyAny>>,
) -> PyResult<Found<'py>> {
    let (directories, found) = (PyList::empty(py), PyList::empty(py));
    for (number, entry) in (1_usize..).zip(entries) {
        if let Some(check) = check.filter(|_| number % ENTRIES_AT_ONCE == 0) {
            check.call0()?;
        }
        match entry {
            Entry::Directory { name } => directories.append(PyBytes::new(py, name.to_bytes()))?,
            Entry::File { name, identity, links, allocated, attribute, .. } => {
                let identity = fields_of(identity);
                let value = attribute.map(|value| PyBytes::new(py, &value));
                let name = PyBytes::new(py, name.to_bytes());
                found.append((name, identity, links, allocated, value))?;
            }
        }
    }
    Ok((directories, found))
}
