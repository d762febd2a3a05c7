//! The worker that opens files of a mount for it.

use std::os::fd::RawFd;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::{duplicate, ready};
use crate::mount::pages::worker::Worker;

/// Answers the mount's questions for newer pages until the mount closes `control_fd`.
#[pyfunction]
pub fn answer_for_pages(
    py: Python<'_>,
    control_fd: RawFd,
    mountpoint: PathBuf,
    device: u64,
    closes_write_back: bool,
) -> PyResult<()> {
    let control = duplicate(py, control_fd)?;
    let worker = Worker::new(mountpoint, device, closes_write_back);
    ready(py, py.detach(|| worker.serve(&control)))
}
