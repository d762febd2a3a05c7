//! The mount's native loop.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::chunk_cache::ChunkCache;
use super::rados::ClusterContent;
use super::refine::Bases;
use super::support::calls::{c_string, os_error};
use super::support::input::Input;
use super::write_times::WriteTimes;
use crate::format::stub::Seeds;
use crate::mount::inodes::generations::{Generations, SECRET_BYTES};
use crate::mount::inodes::handle::Handle;
use crate::mount::inodes::table;
use crate::mount::protocol::abi::{
    CopyFileRangeIn, FSYNC_DATA, FallocateIn, FsyncIn, IoctlIn, IoctlOut, LseekIn, LseekOut,
    ReadIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn, WriteOut,
};
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::protocol::opcode as op;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::stubs::Store;
use crate::mount::requests::tree::Tree;
use crate::mount::session::line::{self, Next};
use crate::mount::session::serve::{self, Way};
use crate::mount::session::service::Service;
use crate::mount::session::stand_ins::Beside;
use crate::mount::session::turn;
use crate::store::content::{Containers, Content};
use crate::system::calls::name_to_handle;
use crate::threads::lock::locked;
use zerocopy::IntoBytes;

fn ready<T>(py: Python<'_>, answer: Answer<T>) -> PyResult<T> {
    answer.map_err(|Failure(number)| os_error(py, &std::io::Error::from_raw_os_error(number)))
}

fn duplicate(py: Python<'_>, fd: RawFd) -> PyResult<OwnedFd> {
    // SAFETY: the caller's descriptor, which stays open for the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| os_error(py, &error))
}

/// How many requests of each kind have come.
fn counted<'py>(py: Python<'py>, counts: &Counts) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (number, count) in counts.all().into_iter().enumerate() {
        if count > 0 {
            all.set_item(op::name(number as u32), count)?;
        }
    }
    Ok(all)
}

/// The inodes that the kernel knows, and what belongs to them. None once it is closed.
#[pyclass(frozen, module = "dedupd.native.mount")]
pub struct Inodes(Mutex<Option<Arc<Tree>>>);

impl Inodes {
    fn tree(&self, py: Python<'_>) -> PyResult<Arc<Tree>> {
        let tree = locked(&self.0).as_ref().map(Arc::clone);
        ready(py, tree.ok_or(Failure(libc::ENOTCONN)))
    }

    fn read_content(
        &self,
        py: Python<'_>,
        content: Arc<dyn Content>,
        cache: &Bound<'_, ChunkCache>,
        seeds: (u64, u64),
        block_bytes: u64,
    ) -> PyResult<()> {
        let store = Store {
            content,
            cache: Arc::clone(&cache.get().0),
            seeds: Seeds { attribute: seeds.0, instance: seeds.1 },
            block_bytes: block_bytes.max(1),
        };
        // It stays as it was said first.
        let _ = self.tree(py)?.store.set(Arc::new(store));
        Ok(())
    }
}

#[pymethods]
impl Inodes {
    #[new]
    fn new(
        py: Python<'_>,
        root_fd: RawFd,
        reserved: &[u8],
        secret: &[u8],
        descriptors_max: usize,
        pins_max: usize,
    ) -> PyResult<Inodes> {
        let secret: [u8; SECRET_BYTES] =
            secret.try_into().map_err(|_| PyValueError::new_err("the secret has 32 bytes"))?;
        let root = duplicate(py, root_fd)?;
        let table = table::Inodes::new(root, descriptors_max, pins_max, Generations::new(secret));
        let tree = Tree::new(ready(py, table)?, Some(c_string("reserved", reserved)?));
        Ok(Inodes(Mutex::new(Some(Arc::new(tree)))))
    }

    #[getter]
    fn by_handle(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.by_handle)
    }

    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.tree(py)?.inodes.device)
    }

    #[getter]
    fn descriptors(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tree(py)?.inodes.descriptors())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tree(py)?.inodes.count())
    }

    fn number(&self, py: Python<'_>, ino: u64) -> PyResult<u64> {
        Ok(self.tree(py)?.inodes.number(ino))
    }

    fn fd(&self, py: Python<'_>, ino: u64) -> PyResult<RawFd> {
        let inodes = &self.tree(py)?.inodes;
        Ok(inodes.given.number(ready(py, inodes.path(ino))?))
    }

    /// Takes `fd` over.
    fn remember(&self, py: Python<'_>, ino: u64, fd: RawFd) -> PyResult<u64> {
        // SAFETY: the caller gives the descriptor away.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let tree = self.tree(py)?;
        if !tree.inodes.by_handle {
            return Ok(tree.inodes.remember(ino, Handle::new(&[]), Some(fd)));
        }
        let handle = name_to_handle(fd.as_raw_fd()).map_err(|error| os_error(py, &error))?;
        Ok(tree.inodes.remember(ino, Handle::new(&handle), None))
    }

    fn may_keep_open(&self, py: Python<'_>, uid: u32) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.may_pin(uid))
    }

    /// Takes `fd` over.
    fn keep_open(&self, py: Python<'_>, ino: u64, fd: RawFd, uid: u32) -> PyResult<()> {
        // SAFETY: the caller gives the descriptor away.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        self.tree(py)?.inodes.pin(ino, fd, uid);
        Ok(())
    }

    fn pinned(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.tree(py)?.inodes.pinned())
    }

    fn knows(&self, py: Python<'_>, ino: u64) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.knows(ino))
    }

    fn forget(&self, py: Python<'_>, ino: u64, lookups: u64) -> PyResult<()> {
        self.tree(py)?.inodes.forget(ino, lookups);
        Ok(())
    }

    /// Where the content of stubs is: they are read by native code from then on. `seeds`: of
    /// attributes.
    #[expect(clippy::too_many_arguments, reason = "a store, and how to read it")]
    fn read_stubs(
        &self,
        py: Python<'_>,
        chunks: &Bound<'_, Bases>,
        streams: &Bound<'_, Bases>,
        cache: &Bound<'_, ChunkCache>,
        seeds: (u64, u64),
        block_bytes: u64,
        threads: usize,
    ) -> PyResult<()> {
        let (chunks, streams) = (Arc::clone(&chunks.get().0), Arc::clone(&streams.get().0));
        let content = Containers::new(chunks, streams, threads.saturating_sub(1));
        self.read_content(py, Arc::new(content), cache, seeds, block_bytes)
    }

    /// As [`Inodes::read_stubs`], of a store in a cluster.
    fn read_stubs_of_cluster(
        &self,
        py: Python<'_>,
        content: &Bound<'_, ClusterContent>,
        cache: &Bound<'_, ChunkCache>,
        seeds: (u64, u64),
        block_bytes: u64,
    ) -> PyResult<()> {
        self.read_content(py, content.get().0.clone(), cache, seeds, block_bytes)
    }

    fn lend(&self, py: Python<'_>, ino: u64, takes_writes: bool) -> PyResult<()> {
        self.tree(py)?.inodes.lent.lend(ino, takes_writes);
        Ok(())
    }

    fn take_back(&self, py: Python<'_>, ino: u64) -> PyResult<bool> {
        let tree = self.tree(py)?;
        tree.inodes.watch(ino);
        Ok(tree.inodes.lent.take_back(ino))
    }

    fn was_used(&self, py: Python<'_>, ino: u64) -> PyResult<bool> {
        Ok(self.tree(py)?.inodes.lent.was_used(ino))
    }

    fn note_writes(&self, py: Python<'_>, times: &Bound<'_, WriteTimes>) -> PyResult<()> {
        // It stays as it was said first.
        let _ = self.tree(py)?.write_times.set(Arc::clone(&times.get().0));
        Ok(())
    }

    fn watch(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        self.tree(py)?.inodes.watch(ino);
        Ok(())
    }

    fn unwatch(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        self.tree(py)?.inodes.unwatch(ino);
        Ok(())
    }

    fn close_idle(&self, py: Python<'_>) -> PyResult<()> {
        self.tree(py)?.inodes.close_idle();
        Ok(())
    }

    fn let_go(&self, py: Python<'_>) -> PyResult<()> {
        self.tree(py)?.inodes.let_go();
        Ok(())
    }

    fn delay_files(&self, py: Python<'_>, are_delayed: bool) -> PyResult<()> {
        self.tree(py)?.files_are_delayed.store(are_delayed, Ordering::Relaxed);
        Ok(())
    }

    fn allow_writes(&self, py: Python<'_>, size_bytes: i64) -> PyResult<()> {
        self.tree(py)?.allowed_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn note_names(&self, py: Python<'_>, are_noted: bool) -> PyResult<()> {
        self.tree(py)?.names_are_noted.store(are_noted, Ordering::Relaxed);
        Ok(())
    }

    /// Closes all that is open below: the file system may be unmounted then.
    fn close(&self) {
        locked(&self.0).take();
    }
}

/// A request of the kernel that the mount's own operations answer.
#[pyclass(frozen, get_all, module = "dedupd.native.mount")]
pub struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    offset: u64,
    size: u32,
    flags: u32,
    length: u64,
    node_to: u64,
    offset_to: u64,
    data: Py<PyBytes>,
}

impl Request {
    fn of(py: Python<'_>, line: &line::Line) -> PyResult<Request> {
        let given = ready(py, line.request())?;
        let header = given.header;
        let (mut offset, mut size, mut flags) = (0, 0, 0);
        let (mut length, mut node_to, mut offset_to) = (0, 0, 0);
        let mut data: &[u8] = &[];
        match header.opcode {
            op::READ => {
                let part: ReadIn = ready(py, given.part())?;
                (offset, size) = (part.offset, part.size);
            }
            op::WRITE => {
                let part: WriteIn = ready(py, given.part())?;
                (offset, size) = (part.offset, part.size);
                flags = part.write_flags & WRITE_KILL_SUIDGID;
                length = if part.write_flags & WRITE_CACHE == 0 { size.into() } else { 0 };
                let there = given.rest.get(..size as usize).ok_or(Failure(libc::EIO));
                data = ready(py, there)?;
            }
            op::FALLOCATE => {
                let part: FallocateIn = ready(py, given.part())?;
                (offset, length) = (part.offset, part.length);
                flags = part.mode;
            }
            op::LSEEK => {
                let part: LseekIn = ready(py, given.part())?;
                (offset, flags) = (part.offset, part.whence);
            }
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                let part: CopyFileRangeIn = ready(py, given.part())?;
                (offset, length) = (part.offset_in, part.length);
                (node_to, offset_to) = (part.node_out, part.offset_out);
            }
            op::IOCTL => {
                let part: IoctlIn = ready(py, given.part())?;
                (flags, size) = (part.command, part.out_bytes);
                let there = given.rest.get(..part.in_bytes as usize).ok_or(Failure(libc::EIO));
                data = ready(py, there)?;
            }
            op::CREATE | op::TMPFILE => data = line.message(),
            _ => {
                let part: FsyncIn = ready(py, given.part())?;
                flags = part.flags & FSYNC_DATA;
            }
        }
        let (unique, node) = (header.unique, header.node);
        let data = PyBytes::new(py, data).unbind();
        let (uid, gid, pid) = (header.uid, header.gid, header.pid);
        Ok(Request {
            opcode: header.opcode,
            unique,
            node,
            uid,
            gid,
            pid,
            offset,
            size,
            flags,
            length,
            node_to,
            offset_to,
            data,
        })
    }
}

/// What a look for the next request finds.
#[derive(IntoPyObject)]
pub enum Found {
    Request(Py<Request>),
    /// True: libfuse finds one. False: the mount has gone.
    ForLibfuse(bool),
}

/// The turn of a mount's event loop. An instrument of trio: it is given while trio waits for something
/// to do.
#[pyclass(frozen, module = "dedupd.native.mount")]
pub struct Turn {
    turn: Arc<turn::Turn>,
    /// Python uses descriptors of theirs by number between two waits only.
    tree: Weak<Tree>,
}

#[pymethods]
impl Turn {
    /// The caller's thread, that of the loop, has it.
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
#[pyclass(frozen, module = "dedupd.native.mount")]
pub struct Line(Mutex<Option<line::Line>>);

impl Line {
    /// What a step with the open line gives. Fails with ENOTCONN once it is closed.
    fn with<T>(&self, step: impl FnOnce(&mut line::Line) -> Answer<T>) -> Answer<T> {
        locked(&self.0).as_mut().map_or(Err(Failure(libc::ENOTCONN)), step)
    }
}

#[pymethods]
impl Line {
    /// Also returns libfuse's end.
    #[staticmethod]
    fn between(
        py: Python<'_>,
        device_fd: RawFd,
        inodes: &Inodes,
        turn: &Turn,
        stand_ins: usize,
        always: bool,
        ring_at: Option<PathBuf>,
    ) -> PyResult<(Line, RawFd)> {
        let device = duplicate(py, device_fd)?;
        let beside = Beside { threads: stand_ins, always };
        let turn = Arc::clone(&turn.turn);
        let line = line::Line::new(device, inodes.tree(py)?, turn, beside, ring_at);
        let (line, theirs) = ready(py, line)?;
        Ok((Line(Mutex::new(Some(line))), theirs.into_raw_fd()))
    }

    fn next(&self, py: Python<'_>, count: u32, linger_ns: i64) -> PyResult<Option<Found>> {
        let next = py.detach(|| self.with(|line| line.next(count, linger_ns)));
        Ok(match ready(py, next)? {
            Next::Nothing => None,
            Next::Ended => Some(Found::ForLibfuse(false)),
            Next::ForLibfuse => Some(Found::ForLibfuse(true)),
            Next::ForCaller => Some(Found::Request(Py::new(py, self.request(py)?)?)),
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

    /// Stays the line's.
    #[getter]
    fn wake_fd(&self, py: Python<'_>) -> PyResult<RawFd> {
        ready(py, self.with(|line| Ok(line.wake().as_raw_fd())))
    }

    #[getter]
    fn is_by_ring(&self) -> bool {
        locked(&self.0).as_ref().is_some_and(line::Line::is_by_ring)
    }

    #[getter]
    fn ring_failure(&self) -> Option<i32> {
        let Failure(number) = locked(&self.0).as_ref()?.ring_failure()?;
        Some(number)
    }

    #[getter]
    fn says_what_writes_clear(&self) -> bool {
        locked(&self.0).as_ref().is_some_and(line::Line::says_what_writes_clear)
    }

    /// Ends the mount, unless somebody else has its kernel's end open as well.
    fn close(&self, py: Python<'_>) {
        let line = locked(&self.0).take();
        // Its threads may wait for the disk.
        py.detach(|| drop(line));
    }

    fn forget_attributes(&self, py: Python<'_>, ino: u64) -> PyResult<()> {
        ready(py, self.with(|line| line.forget_attributes(ino)))
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
    ready(py, py.detach(|| serve::begin(&service, &device, way)))?;
    Ok(Loop(service))
}
