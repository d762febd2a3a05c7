//! A directory that native threads serve alone.

use std::os::fd::RawFd;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{counted, duplicate, ready};
use crate::mount::inodes::generations::{Generations, SECRET_BYTES};
use crate::mount::inodes::table;
use crate::mount::requests::tree::Tree;
use crate::mount::session::serve::{Way, begin};
use crate::mount::session::service::Service;
use crate::python::support::calls::c_string;

/// A session that native threads serve.
#[pyclass(frozen)]
pub struct Loop(Arc<Service>);

#[pymethods]
impl Loop {
    /// How many requests of each kind have come.
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counted(py, &self.0.counts)
    }

    /// How many inodes the kernel knows.
    fn inodes_known(&self) -> usize {
        self.0.tree.inodes.count()
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
    let generations = Generations::new([0; SECRET_BYTES]);
    let inodes = ready(py, table::Inodes::new(root, descriptors_max, usize::MAX, generations))?;
    let service = Arc::new(Service::new(Tree::new(inodes, reserved)));
    let way = if ring { Way::Ring } else { Way::Device };
    ready(py, py.detach(|| begin(&service, &device, way)))?;
    Ok(Loop(service))
}
