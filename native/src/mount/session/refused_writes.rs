//! Writes that the mount refuses, and that the kernel drops from its pages.
//!
//! The kernel copies written data into its pages, and then asks the mount. If the mount refuses the
//! write, Linux 7.3 keeps these pages, and readers get bytes that the file does not have. Older
//! kernels keep the pages that a program has mapped. So the mount notifies the kernel of each
//! refused range, once the kernel has the answer.
//!
//! A separate thread sends the notifications. In the call, the kernel waits for the lock of each
//! page, which another request may hold until the mount answers it. The kernel also writes changed
//! pages, through requests to this mount. So the thread takes no request, and holds no lock in the
//! call.
//!
//! A refused write-back of a mapping causes no notification: the write-back may be part of one. The
//! kernel reports it by `msync` and `fsync`, as all file systems do.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};

use zerocopy::FromBytes;

use crate::mount::protocol::abi::{WRITE_CACHE, WriteIn, WriteOut};
use crate::mount::protocol::message::{Answer, Failure, Request};
use crate::mount::protocol::opcode as op;
use crate::mount::session::device::drop_pages;
use crate::threads::lock::{locked, woken};

/// Number of pending inodes from which the thread drops inodes that the kernel has forgotten.
const PENDING: usize = 1024;

/// A write that a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    node: u64,
    start: u64,
    size: u32,
}

/// A range of an inode that was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRange {
    node: u64,
    range: Range<u64>,
}

impl Write {
    /// Returns None for all other requests, including write-backs of mappings.
    pub fn of(request: &Request) -> Option<Write> {
        if request.header.opcode != op::WRITE {
            return None;
        }
        let given: WriteIn = request.part().ok()?;
        let is_mapping = given.write_flags & WRITE_CACHE != 0;
        let (start, size) = (given.offset, given.size);
        (!is_mapping).then_some(Write { node: request.header.node, start, size })
    }

    /// The range that an answer refuses: the entire write, or its end.
    pub fn refused(&self, answer: Answer<&[u8]>) -> Option<RefusedRange> {
        let written = answer
            .and_then(|body| WriteOut::read_from_prefix(body).map_err(|_| Failure(libc::EIO)));
        let bytes = written.map_or(0, |(written, _)| written.size);
        let range =
            self.start.saturating_add(bytes.into())..self.start.saturating_add(self.size.into());
        (!range.is_empty()).then_some(RefusedRange { node: self.node, range })
    }
}

#[derive(Default)]
struct State {
    /// For each inode, a range that covers all refused ranges.
    pending: HashMap<u64, Range<u64>>,
    is_sending: bool,
    has_ended: bool,
}

struct Queue {
    device: Arc<OwnedFd>,
    /// Returns whether the kernel may know an inode.
    knows: Box<dyn Fn(u64) -> bool + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The notifications of a mount, and the thread that sends them until this is dropped.
pub struct RefusedWrites {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl RefusedWrites {
    /// `knows`: returns whether the kernel may know an inode.
    pub fn start(
        device: &Arc<OwnedFd>,
        knows: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Answer<RefusedWrites> {
        let queue = Arc::new(Queue {
            device: Arc::clone(device),
            knows: Box::new(knows),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let run = Arc::clone(&queue);
        let thread = Builder::new().name("refused-writes".into()).spawn(move || run.send())?;
        Ok(RefusedWrites { queue, thread: Some(thread) })
    }

    /// Notifies the kernel soon. The kernel already has the answer, or gets it from another thread.
    pub fn note(&self, refused: RefusedRange) {
        self.queue.note(refused);
    }

    /// Sends no further notifications. Returns whether one is in progress, which ends only while the
    /// mount answers requests.
    pub fn finish(&self) -> bool {
        let mut state = locked(&self.queue.state);
        state.has_ended = true;
        self.queue.changed.notify_one();
        state.is_sending
    }
}

impl Drop for RefusedWrites {
    fn drop(&mut self) {
        // Until the mount ends, a notification may wait for a request that no thread answers.
        let is_sending = self.finish();
        if let Some(thread) = self.thread.take().filter(|_| !is_sending) {
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// The number of entries is limited by the number of inodes that the kernel knows.
    fn note(&self, refused: RefusedRange) {
        let RefusedRange { node, range } = refused;
        let mut state = locked(&self.state);
        if state.has_ended {
            return;
        }
        let pending = &mut state.pending;
        if pending.len() >= PENDING && pending.len().is_power_of_two() {
            pending.retain(|&node, _| (self.knows)(node));
        }
        let all = pending.entry(node).or_insert_with(|| range.clone());
        *all = all.start.min(range.start)..all.end.max(range.end);
        self.changed.notify_one();
    }

    fn send(&self) {
        while let Some(ranges) = self.next() {
            for (node, range) in ranges {
                if locked(&self.state).has_ended {
                    return;
                }
                // The kernel has no pages of an inode that it does not know.
                let _ = drop_pages(&self.device, node, &range);
            }
        }
    }

    /// Waits for ranges. Returns None at the end.
    fn next(&self) -> Option<HashMap<u64, Range<u64>>> {
        let mut state = locked(&self.state);
        state.is_sending = false;
        while state.pending.is_empty() && !state.has_ended {
            state = woken(&self.changed, state);
        }
        state.is_sending = !state.has_ended;
        state.is_sending.then(|| std::mem::take(&mut state.pending))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::mount::protocol::abi::{
        InHeader, InvalidateInode, NOTIFY_INVALIDATE_INODE, OutHeader,
    };

    const NOTIFICATION_BYTES: usize = 40;

    fn write_of(opcode: u32, flags: u32) -> Option<Write> {
        let given = WriteIn { offset: 1000, size: 500, write_flags: flags, ..WriteIn::default() };
        let header = InHeader { opcode, node: 7, ..InHeader::default() };
        Write::of(&Request { header, fixed: given.as_bytes(), rest: &[] })
    }

    fn started(knows: impl Fn(u64) -> bool + Send + Sync + 'static) -> (RefusedWrites, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (RefusedWrites::start(&Arc::new(ours.into()), knows).unwrap(), theirs)
    }

    fn read(device: &mut impl Read) -> (u64, i64, i64) {
        let mut message = [0; NOTIFICATION_BYTES];
        device.read_exact(&mut message).unwrap();
        let (header, body) = OutHeader::read_from_prefix(&message).unwrap();
        assert_eq!((header.error, header.unique), (NOTIFY_INVALIDATE_INODE, 0));
        assert_eq!(header.length as usize, NOTIFICATION_BYTES);
        let body = InvalidateInode::read_from_bytes(body).unwrap();
        (body.node, body.offset, body.length)
    }

    #[test]
    fn an_answer_refuses_what_it_does_not_confirm() {
        let write = write_of(op::WRITE, 0).unwrap();
        let all = Some(RefusedRange { node: 7, range: 1000..1500 });
        assert_eq!(write.refused(Err(Failure(libc::ENOSPC))), all);
        assert_eq!(write.refused(Ok(&[])), all);
        for (size, refused) in [(0, Some(1000..1500)), (499, Some(1499..1500)), (500, None)] {
            let written = WriteOut { size, unused: 0 };
            let found = write.refused(Ok(written.as_bytes())).map(|refused| refused.range);
            assert_eq!(found, refused, "{size}");
        }
    }

    #[test]
    fn neither_write_backs_nor_other_requests_are_writes_of_programs() {
        assert_eq!(write_of(op::WRITE, WRITE_CACHE), None);
        assert_eq!(write_of(op::READ, 0), None);
    }

    #[test]
    fn the_kernel_is_notified_of_each_range() {
        let (writes, mut device) = started(|_| true);
        writes.note(RefusedRange { node: 7, range: 1000..1500 });
        assert_eq!(read(&mut device), (7, 1000, 500));
        writes.note(RefusedRange { node: 8, range: 0..1 });
        assert_eq!(read(&mut device), (8, 0, 1));
        let end = i64::MAX as u64;
        writes.note(RefusedRange { node: 9, range: end - 1..end + 4096 });
        assert_eq!(read(&mut device), (9, i64::MAX - 1, 1));
        drop(writes);
        assert_eq!(device.read(&mut [0]).unwrap(), 0, "the thread has ended");
    }

    /// A device that accepts no notification until it is read.
    fn filled() -> (RefusedWrites, UnixStream, usize) {
        let (theirs, mut ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut size = 0;
        while let Ok(written) = ours.write(&[0; 4096]) {
            size += written;
        }
        ours.set_nonblocking(false).unwrap();
        let device = Arc::new(OwnedFd::from(ours));
        let writes = RefusedWrites::start(&device, |node| node % 2 == 0).unwrap();
        writes.note(RefusedRange { node: 1, range: 0..1 });
        while !locked(&writes.queue.state).is_sending {
            std::thread::yield_now();
        }
        (writes, theirs, size)
    }

    #[test]
    fn pending_ranges_are_merged_by_inode_and_none_is_lost() {
        let (writes, mut device, size) = filled();
        for start in [9000, 1000, 5000] {
            writes.note(RefusedRange { node: 2, range: start..start + 10 });
        }
        for node in 3..=PENDING as u64 * 2 {
            writes.note(RefusedRange { node, range: node..node + 1 });
        }
        let pending = locked(&writes.queue.state).pending.len();
        assert!(pending < PENDING * 3 / 2, "{pending} of inodes that the kernel has forgotten");
        device.read_exact(&mut vec![0; size]).unwrap();
        assert_eq!(read(&mut device), (1, 0, 1));
        let mut sent: HashMap<u64, (i64, i64)> = HashMap::new();
        for _ in 0..pending {
            let (node, start, length) = read(&mut device);
            assert_eq!(sent.insert(node, (start, length)), None);
        }
        assert_eq!(sent[&2], (1000, 8010));
        assert!((2..=PENDING as u64).all(|half| sent.contains_key(&(half * 2))));
    }

    #[test]
    fn a_blocked_notification_does_not_block_the_end() {
        let (writes, mut device, size) = filled();
        assert!(writes.finish());
        writes.note(RefusedRange { node: 4, range: 0..1 });
        let (ended, ends) = channel();
        std::thread::spawn(move || {
            drop(writes);
            let _ = ended.send(());
        });
        ends.recv_timeout(Duration::from_secs(60)).unwrap();
        device.read_exact(&mut vec![0; size]).unwrap();
        assert_eq!(read(&mut device), (1, 0, 1));
        assert_eq!(device.read(&mut [0]).unwrap(), 0, "nothing follows");
    }
}
