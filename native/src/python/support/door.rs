//! The door of a Python disk, through which native code makes its durable effects.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::system::effects::{Effects, SystemCalls};
use crate::threads::lock::locked;

/// `None` in production, for system calls. Otherwise `Disk.door` of a disk that observes effects.
/// This callable takes the name and the arguments of a method of the disk. It returns the number of
/// bytes written, 0, or a negative error number.
pub struct Door {
    pub effects: Arc<dyn Effects>,
    watched: Option<Arc<Watched>>,
}

impl Door {
    pub fn new(door: Option<Py<PyAny>>) -> Door {
        match door {
            None => Door { effects: Arc::new(SystemCalls), watched: None },
            Some(call) => {
                let watched = Arc::new(Watched { call, raised: Mutex::default() });
                Door { effects: watched.clone(), watched: Some(watched) }
            }
        }
    }

    /// Call this after every call that may have had effects. Raises the exception of the door.
    pub fn check(&self) -> PyResult<()> {
        let raised = self.watched.as_ref().and_then(|watched| locked(&watched.raised).take());
        raised.map_or(Ok(()), Err)
    }
}

/// One effect at a time, each as a call of Python with the GIL.
struct Watched {
    call: Py<PyAny>,
    /// An exception other than an error of the disk ends the work: no effect happens until
    /// `Door::check` has raised it.
    raised: Mutex<Option<PyErr>>,
}

impl Watched {
    fn count(
        &self,
        call: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<Py<PyAny>>,
    ) -> Result<usize> {
        if locked(&self.raised).is_some() {
            return Err(Error::from_raw_os_error(libc::ECANCELED));
        }
        match Python::attach(|py| call(py, &self.call)?.extract::<isize>(py)) {
            Ok(number) => {
                usize::try_from(number).map_err(|_| Error::from_raw_os_error(-number as i32))
            }
            Err(error) => {
                *locked(&self.raised) = Some(error);
                Err(Error::from_raw_os_error(libc::ECANCELED))
            }
        }
    }

    fn step(&self, call: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<Py<PyAny>>) -> Result<()> {
        self.count(call).map(drop)
    }
}

impl Effects for Watched {
    fn set_attribute(&self, fd: RawFd, name: &CStr, value: &[u8]) -> Result<()> {
        self.step(|py, call| {
            let (name, value) = (PyBytes::new(py, name.to_bytes()), PyBytes::new(py, value));
            call.call1(py, ("set_attribute", fd, name, value))
        })
    }

    fn remove_attribute(&self, fd: RawFd, name: &CStr) -> Result<()> {
        self.step(|py, call| {
            call.call1(py, ("remove_attribute", fd, PyBytes::new(py, name.to_bytes())))
        })
    }

    fn punch(&self, fd: RawFd, offset: i64, length: i64) -> Result<()> {
        self.step(|py, call| call.call1(py, ("punch", fd, offset, length)))
    }

    fn set_times(&self, fd: RawFd, atime_ns: i128, mtime_ns: i128) -> Result<()> {
        self.step(|py, call| call.call1(py, ("set_times", fd, atime_ns, mtime_ns)))
    }

    fn write_at(&self, file: &File, data: &[u8], offset: u64) -> Result<()> {
        self.step(|py, call| {
            call.call1(py, ("write_at", file.as_raw_fd(), [PyBytes::new(py, data)], offset))
        })
    }

    fn write_some(&self, fd: RawFd, parts: &[&[u8]], offset: u64) -> Result<usize> {
        self.count(|py, call| {
            let parts: Vec<_> = parts.iter().map(|part| PyBytes::new(py, part)).collect();
            call.call1(py, ("write_some", fd, parts, offset))
        })
    }

    fn allocate(&self, fd: RawFd, offset: i64, length: i64) -> Result<()> {
        self.step(|py, call| call.call1(py, ("allocate", fd, offset, length)))
    }

    fn truncate(&self, fd: RawFd, length: u64) -> Result<()> {
        self.step(|py, call| call.call1(py, ("truncate", fd, length)))
    }

    fn sync_file(&self, fd: RawFd) -> Result<()> {
        self.step(|py, call| call.call1(py, ("sync_file", fd)))
    }

    fn reach(&self, point: &str) -> Result<()> {
        self.step(|py, call| call.call1(py, ("reach", point)))
    }

    fn threads(&self, _: usize) -> usize {
        1
    }
}
