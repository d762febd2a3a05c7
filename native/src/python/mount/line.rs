//! The line of a mount, and the turn of its event loop.

use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::inodes::Inodes;
use super::request::Request;
use super::{counted, duplicate, ready};
use crate::mount::protocol::abi::{IoctlOut, LseekOut, WriteOut};
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::requests::tree::Tree;
use crate::mount::session::helpers::Helpers;
use crate::mount::session::line::{self, NextRequest};
use crate::mount::session::overflow_readers::OverflowLimits;
use crate::mount::session::turn;
use crate::python::support::input::Input;
use crate::threads::lock::locked;
use zerocopy::IntoBytes;

/// The result of waiting for the next request.
#[derive(IntoPyObject)]
pub enum FoundRequest {
    Request(Py<Request>),
    /// True: libfuse finds a request. False: the mount has ended.
    ForLibfuse(bool),
}

/// The turn of a mount's event loop, as an instrument of trio: it is released while trio waits for
/// events.
#[pyclass(frozen, module = "dedupd_core.native.mount")]
pub struct Turn {
    turn: Arc<turn::Turn>,
    /// For descriptors of the tree, whose numbers Python uses only between two waits.
    tree: Weak<Tree>,
}

#[pymethods]
impl Turn {
    /// The calling thread, which must be the event-loop thread, has the turn.
    #[new]
    fn new(py: Python<'_>, inodes: &Inodes) -> PyResult<Turn> {
        let tree = Arc::downgrade(&inodes.tree(py)?);
        Ok(Turn { turn: Arc::new(turn::Turn::default()), tree })
    }

    #[expect(unused_variables, reason = "trio says for how long it may wait")]
    fn before_io_wait(&self, timeout: f64) {
        if let Some(tree) = self.tree.upgrade() {
            tree.inodes.given.clear();
        }
        self.turn.give();
    }

    #[expect(unused_variables, reason = "trio says for how long it might have waited")]
    fn after_io_wait(&self, py: Python<'_>, timeout: f64) {
        if !self.turn.takes_back_at_once() {
            py.detach(|| self.turn.take_back());
        }
    }
}

/// The line between the kernel, libfuse and the operations of a mount. Used by one thread.
#[pyclass(frozen, module = "dedupd_core.native.mount")]
pub struct Line(Mutex<Option<line::Line>>);

impl Line {
    /// The result of a step with the open line. Fails with ENOTCONN after it is closed.
    fn with<T>(&self, step: impl FnOnce(&mut line::Line) -> Answer<T>) -> Answer<T> {
        locked(&self.0).as_mut().map_or(Err(Failure(libc::ENOTCONN)), step)
    }
}

#[pymethods]
impl Line {
    /// Also returns libfuse's end.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "how requests are taken, in its parts")]
    fn between(
        py: Python<'_>,
        device_fd: RawFd,
        inodes: &Inodes,
        turn: &Turn,
        overflow_readers: usize,
        always: bool,
        ring_at: Option<PathBuf>,
        absent: u64,
    ) -> PyResult<(Line, RawFd)> {
        let device = duplicate(py, device_fd)?;
        let beside = OverflowLimits { threads: overflow_readers, always };
        let turn = Arc::clone(&turn.turn);
        let helpers = Helpers::new(beside, ring_at);
        let line = line::Line::new(device, inodes.tree(py)?, turn, helpers, absent);
        let (line, theirs) = ready(py, line)?;
        Ok((Line(Mutex::new(Some(line))), theirs.into_raw_fd()))
    }

    fn next(&self, py: Python<'_>, count: u32, linger_ns: i64) -> PyResult<Option<FoundRequest>> {
        let next = py.detach(|| self.with(|line| line.next(count, linger_ns)));
        Ok(match ready(py, next)? {
            NextRequest::Nothing => None,
            NextRequest::Ended => Some(FoundRequest::ForLibfuse(false)),
            NextRequest::ForLibfuse => Some(FoundRequest::ForLibfuse(true)),
            NextRequest::ForCaller => Some(FoundRequest::Request(Py::new(py, self.request(py)?)?)),
        })
    }

    fn pass_answers_on(&self, py: Python<'_>) -> PyResult<()> {
        ready(py, self.with(line::Line::pass_answers_on))
    }

    fn answer(&self, py: Python<'_>, unique: u64, data: Input) -> PyResult<()> {
        ready(py, py.detach(|| self.with(|line| line.answer(unique, data.bytes()))))
    }

    fn answer_written(&self, py: Python<'_>, unique: u64, size: u32) -> PyResult<()> {
        ready(py, self.with(|line| line.answer(unique, WriteOut { size, unused: 0 }.as_bytes())))
    }

    fn answer_offset(&self, py: Python<'_>, unique: u64, offset: u64) -> PyResult<()> {
        ready(py, self.with(|line| line.answer(unique, LseekOut { offset }.as_bytes())))
    }

    fn answer_control(&self, py: Python<'_>, unique: u64, data: Input) -> PyResult<()> {
        let body = [IoctlOut::default().as_bytes(), data.bytes()].concat();
        ready(py, self.with(|line| line.answer(unique, &body)))
    }

    fn make_file(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        ready(py, self.with(|line| line.make_file(message)))
    }

    fn refuse(&self, py: Python<'_>, unique: u64, number: i32) -> PyResult<()> {
        ready(py, self.with(|line| line.refuse(unique, number)))
    }

    /// The descriptor still belongs to the line.
    #[getter]
    fn wake_fd(&self, py: Python<'_>) -> PyResult<RawFd> {
        ready(py, self.with(|line| Ok(line.wake().as_raw_fd())))
    }

    #[getter]
    fn is_by_ring(&self) -> bool {
        locked(&self.0).as_ref().is_some_and(|line| line.helpers().are_by_ring())
    }

    #[getter]
    fn ring_failure(&self) -> Option<i32> {
        let Failure(number) = locked(&self.0).as_ref()?.helpers().ring_failure()?;
        Some(number)
    }

    #[getter]
    fn says_what_writes_clear(&self) -> bool {
        locked(&self.0).as_ref().is_some_and(line::Line::says_what_writes_clear)
    }

    /// Ends the mount, unless another process also has its connection to the kernel open.
    fn close(&self, py: Python<'_>) {
        let line = locked(&self.0).take();
        // Its threads may wait for the disk.
        py.detach(|| drop(line));
    }

    fn forget_attributes(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        ready(py, self.with(|line| line.forget_attributes(ino)))
    }

    fn finish_notifications(&self, py: Python<'_>) -> PyResult<bool> {
        ready(py, self.with(|line| Ok(line.finish_notifications())))
    }

    fn begin_steps(&self, py: Python<'_>, inodes: Vec<u64>) -> PyResult<()> {
        let begin = |line: &mut line::Line| {
            line.begin_steps(&inodes);
            Ok(())
        };
        ready(py, self.with(begin))
    }

    fn end_steps(&self, py: Python<'_>, inodes: Vec<u64>) -> PyResult<()> {
        let end = |line: &mut line::Line| {
            line.end_steps(&inodes);
            Ok(())
        };
        ready(py, self.with(end))
    }

    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match locked(&self.0).as_ref() {
            Some(line) => counted(py, line.counts()),
            None => Ok(PyDict::new(py)),
        }
    }

    fn busy_s(&self) -> f64 {
        locked(&self.0).as_ref().map_or(0.0, |line| line.busy().as_secs_f64())
    }

    fn handed_over<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match locked(&self.0).as_ref() {
            Some(line) => counted(py, line.handed_over()),
            None => Ok(PyDict::new(py)),
        }
    }
}

impl Line {
    fn request(&self, py: Python<'_>) -> PyResult<Request> {
        let lock = locked(&self.0);
        let line = lock.as_ref().ok_or(Failure(libc::ENOTCONN));
        Request::of(py, ready(py, line)?)
    }
}
