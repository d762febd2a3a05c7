//! The mount's native loop.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::thread;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::support::calls::{c_string, os_error};
use crate::mount::inodes::table::Inodes;
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::protocol::opcode;
use crate::mount::requests::tree::Tree;
use crate::mount::session::handover::HandOver;
use crate::mount::session::serve::{self, Way};
use crate::mount::session::service::Service;
use crate::threads::lock::locked;

fn ready<T>(py: Python<'_>, answer: Answer<T>) -> PyResult<T> {
    answer.map_err(|Failure(number)| os_error(py, &std::io::Error::from_raw_os_error(number)))
}

fn duplicate(py: Python<'_>, fd: RawFd) -> PyResult<OwnedFd> {
    // SAFETY: the caller's descriptor, which stays open for the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| os_error(py, &error))
}

fn way(ring: bool) -> Way {
    if ring { Way::Ring } else { Way::Device }
}

/// A session that native threads serve.
#[pyclass(frozen)]
pub struct Loop(Arc<Service>);

#[pymethods]
impl Loop {
    /// How many requests of each kind have come.
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for (number, count) in self.0.counts.all().into_iter().enumerate() {
            if count > 0 {
                counts.set_item(opcode::name(number as u32), count)?;
            }
        }
        Ok(counts)
    }

    /// How many inodes the kernel knows.
    fn inodes_known(&self) -> usize {
        self.0.tree.as_ref().map_or(0, |tree| tree.inodes.count())
    }
}

/// Serves the directory `root_fd` alone.
#[pyfunction]
pub fn serve_tree(
    py: Python<'_>,
    device_fd: RawFd,
    root_fd: RawFd,
    reserved: Option<&[u8]>,
    ring: bool,
    descriptors_max: usize,
) -> PyResult<Loop> {
    let (device, root) = (Arc::new(duplicate(py, device_fd)?), duplicate(py, root_fd)?);
    let reserved = reserved.map(|name| c_string("reserved", name)).transpose()?;
    let inodes = ready(py, Inodes::new(root, descriptors_max))?;
    let service = Arc::new(Service::new(Some(Tree::new(inodes, reserved)), None));
    ready(py, py.detach(|| serve::begin(&service, &device, way(ring))))?;
    Ok(Loop(service))
}

/// The device of the session that is handed to libfuse, of which a process has one.
static RELAYED: Mutex<Option<Arc<OwnedFd>>> = Mutex::new(None);

/// Has the kernel ask again for an inode's attributes.
#[pyfunction]
pub fn forget_attributes(py: Python<'_>, inode: u64) -> PyResult<()> {
    let Some(device) = locked(&RELAYED).clone() else { return Ok(()) };
    ready(py, py.detach(|| serve::forget_attributes(&device, inode)))
}

/// Takes the requests from the kernel, and hands them to libfuse, whose end is returned.
#[pyfunction]
pub fn relay(py: Python<'_>, device_fd: RawFd, ring: bool) -> PyResult<(Loop, RawFd)> {
    let device = Arc::new(duplicate(py, device_fd)?);
    let (others, theirs) = ready(py, HandOver::new())?;
    let others = Arc::new(others);
    let service = Arc::new(Service::new(None, Some(Arc::clone(&others))));
    let own = Arc::clone(&service);
    *locked(&RELAYED) = Some(Arc::clone(&device));
    let run = move || {
        if serve::relay(&own, &others, &device, way(ring)).is_err() {
            // The mount has ended before it has begun.
            own.end();
        }
    };
    let started = thread::Builder::new().name("mount-relay".into()).spawn(run);
    started.map_err(|error| os_error(py, &error))?;
    Ok((Loop(service), theirs.into_raw_fd()))
}
