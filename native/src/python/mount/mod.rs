//! The parts of the module `dedupd_core.native.mount`.

pub mod inodes;
pub mod line;
pub mod pages;
pub mod request;
pub mod write_times;

use std::os::fd::{OwnedFd, RawFd};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::support::calls::os_error;
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::protocol::opcode;
use crate::mount::requests::dispatch::Counts;
use crate::system::files;

fn ready<T>(py: Python<'_>, answer: Answer<T>) -> PyResult<T> {
    answer.map_err(|Failure(number)| os_error(py, &std::io::Error::from_raw_os_error(number)))
}

fn duplicate(py: Python<'_>, fd: RawFd) -> PyResult<OwnedFd> {
    files::duplicate(fd).map_err(|error| os_error(py, &error))
}

/// The number of requests of each kind.
fn counted<'py>(py: Python<'py>, counts: &Counts) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (number, count) in counts.all().into_iter().enumerate() {
        if count > 0 {
            all.set_item(opcode::route(number as u32).name, count)?;
        }
    }
    Ok(all)
}
