//! A request that Python answers.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::ready;
use crate::mount::protocol::abi::{
    CopyFileRangeIn, FSYNC_DATA, FallocateIn, FsyncIn, IoctlIn, LseekIn, ReadIn, WRITE_CACHE,
    WRITE_KILL_SUIDGID, WriteIn,
};
use crate::mount::protocol::message::Failure;
use crate::mount::protocol::opcode as op;
use crate::mount::requests::extended::NewAttribute;
use crate::mount::session::line;
use crate::python::store::stub_bytes::Unreadable;

/// A request of the kernel that the mount's own operations answer.
#[pyclass(frozen, get_all, module = "dedupd_core.native.mount")]
pub struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    uid: u32,
    pid: u32,
    offset: u64,
    size: u32,
    flags: u32,
    is_mapping: bool,
    length: u64,
    node_to: u64,
    offset_to: u64,
    name: Py<PyBytes>,
    data: Py<PyBytes>,
    reasons: Vec<Py<Unreadable>>,
}

impl Request {
    pub(super) fn of(py: Python<'_>, line: &line::Line) -> PyResult<Request> {
        let given = ready(py, line.request())?;
        let header = given.header;
        let reasons = line.reasons().iter().map(|&one| Py::new(py, Unreadable::from(one)));
        let (mut offset, mut size, mut flags) = (0, 0, 0);
        let mut is_mapping = false;
        let (mut length, mut node_to, mut offset_to) = (0, 0, 0);
        let (mut name, mut data): (&[u8], &[u8]) = (&[], &[]);
        match header.opcode {
            op::READ => {
                let part: ReadIn = ready(py, given.part())?;
                (offset, size) = (part.offset, part.size);
            }
            op::WRITE => {
                let part: WriteIn = ready(py, given.part())?;
                (offset, size) = (part.offset, part.size);
                flags = part.write_flags & WRITE_KILL_SUIDGID;
                is_mapping = part.write_flags & WRITE_CACHE != 0;
                length = if is_mapping { 0 } else { size.into() };
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
            op::SETXATTR => {
                let new = ready(py, NewAttribute::of(&given))?;
                (name, data) = (new.name.to_bytes(), new.value);
                (flags, size) = (new.flags, new.takes_set_group.into());
            }
            op::CREATE | op::TMPFILE => data = line.message(),
            _ => {
                let part: FsyncIn = ready(py, given.part())?;
                flags = part.flags & FSYNC_DATA;
            }
        }
        Ok(Request {
            opcode: header.opcode,
            unique: header.unique,
            node: header.node,
            uid: header.uid,
            pid: header.pid,
            offset,
            size,
            flags,
            is_mapping,
            length,
            node_to,
            offset_to,
            name: PyBytes::new(py, name).unbind(),
            data: PyBytes::new(py, data).unbind(),
            reasons: reasons.collect::<PyResult<_>>()?,
        })
    }
}
