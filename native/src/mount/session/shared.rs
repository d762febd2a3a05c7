//! State that the threads of a volume's mount share, and the requests that need the turn.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use zerocopy::FromBytes;

use crate::mount::protocol::abi::{FSYNC_DATA, FsyncIn, InHeader};
use crate::mount::protocol::message::{Answer, Outcome, Request};
use crate::mount::protocol::opcode as op;
use crate::mount::requests::data::Searching;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::reading::Reading;
use crate::mount::requests::touched::Touched;
use crate::mount::requests::tree::Tree;
use crate::mount::session::answers::Answers;
use crate::mount::session::device::forget_attributes;
use crate::mount::session::pace::{LoadSample, Pace};
use crate::mount::session::reads::{FileRead, FileReads, Work};
use crate::mount::session::refused_writes::RefusedWrites;
use crate::mount::session::returns::Returns;
use crate::mount::session::syncs::{FileSync, Syncs};

/// The result of native code for a request.
pub enum ClaimedRequest {
    /// The answer.
    Answered(Answer<usize>),
    /// No answer is expected.
    Silent,
    /// A thread that may wait reads it, and answers or returns it.
    Read(FileRead),
    /// A thread that may wait syncs the file, and answers it.
    Sync(FileSync),
    /// Python has to answer it.
    HandedOver,
}

/// State that the threads of a mount share.
pub struct Shared {
    pub device: Arc<OwnedFd>,
    pub answers: Arc<Answers>,
    pub tree: Arc<Tree>,
    pub counts: Counts,
    /// Time that native code took for its answers, in nanoseconds.
    pub busy_ns: AtomicU64,
    pub returns: Arc<Returns>,
    pub syncs: Syncs,
    pub reads: FileReads,
    pub refused_writes: RefusedWrites,
    pub pace: Pace,
    /// The descriptor that wakes the event-loop thread; in it, the device has the number 0.
    pub wake: OwnedFd,
    /// True while overflow readers take requests from the device.
    pub is_called: AtomicBool,
    /// Number of requests that overflow readers are working on.
    pub in_hand: AtomicUsize,
}

impl Shared {
    pub fn new(
        device: Arc<OwnedFd>,
        tree: Arc<Tree>,
        returns: Arc<Returns>,
        wake: OwnedFd,
    ) -> Answer<Shared> {
        let inodes = Arc::clone(&tree);
        let knows = move |node| inodes.inodes.knows(node);
        Ok(Shared {
            answers: Arc::new(Answers::new(Arc::clone(&device))),
            refused_writes: RefusedWrites::start(&device, knows)?,
            device,
            tree,
            wake,
            counts: Counts::default(),
            busy_ns: AtomicU64::new(0),
            syncs: Syncs::default(),
            reads: FileReads::new(Arc::clone(&returns)),
            returns,
            pace: Pace::default(),
            is_called: AtomicBool::new(false),
            in_hand: AtomicUsize::new(0),
        })
    }

    pub fn note_busy(&self, began: Instant) {
        self.busy_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn seen(&self) -> LoadSample {
        LoadSample { has_returns: !self.returns.is_empty(), ..self.pace.seen() }
    }

    /// Makes the kernel ask for the attributes of an inode again if it had to do so after `since`,
    /// because a later answer may have given it older attributes.
    pub fn forget_again(&self, node: u64, since: u64) {
        if self.tree.inodes.forgotten.has(node, since) {
            // The kernel has no attributes of an inode that it does not know.
            let _ = forget_attributes(&self.device, node);
        }
    }

    /// Ends the wait for all requests that the event-loop thread has, or would get.
    pub fn leave_all(&self) {
        while let Some(back) = self.returns.take() {
            if let Ok((header, _)) = InHeader::read_from_prefix(back.message()) {
                self.answers.seats.leave(header.unique);
            }
        }
        self.answers.seats.leave_with_loop();
    }

    /// Takes a request between two awaits of the event loop: answers it into `body`, returns the
    /// work that a thread has to wait for, or leaves it to Python. `agreed`: the flags of the
    /// session. `again`: the request has waited for the disk. `message`: the request in one piece.
    pub fn take(
        &self,
        request: &Request,
        agreed: u64,
        again: bool,
        body: &mut [u8],
        message: impl FnOnce() -> Vec<u8>,
    ) -> ClaimedRequest {
        let began = Instant::now();
        let taken = match request.header.opcode {
            op::READ => self.take_read(request, again, body, message),
            op::LSEEK => self.take_search(request, body, message),
            op::FSYNC | op::FSYNCDIR => {
                self.sync_of(request).map_or(ClaimedRequest::HandedOver, ClaimedRequest::Sync)
            }
            _ => match self.tree.answer_of_volume(request, agreed, body) {
                Ok(Outcome::Answered(length)) => ClaimedRequest::Answered(Ok(length)),
                Ok(Outcome::Silent) => ClaimedRequest::Silent,
                Ok(Outcome::HandedOver) => ClaimedRequest::HandedOver,
                Err(failure) => ClaimedRequest::Answered(Err(failure)),
            },
        };
        if let (ClaimedRequest::Answered(_), Some(touched)) = (&taken, Touched::of(request)) {
            touched.note(&self.tree.inodes.changes, &self.tree.inodes.change_times);
        }
        self.note_busy(began);
        taken
    }

    fn take_read(
        &self,
        request: &Request,
        again: bool,
        body: &mut [u8],
        message: impl FnOnce() -> Vec<u8>,
    ) -> ClaimedRequest {
        let work = match self.tree.begin_read(request, body) {
            Ok(Reading::OfStore(read)) => Work::OfStore(read),
            Ok(Reading::OfPlain(read)) if !again => Work::OfPlain(read),
            Ok(Reading::OnDisk(file, range)) if !again => Work::OnDisk(file, range),
            Ok(Reading::OfPlain(_) | Reading::OnDisk(..) | Reading::HandedOver) => {
                return ClaimedRequest::HandedOver;
            }
            Ok(Reading::Answered(length)) => return ClaimedRequest::Answered(Ok(length)),
            Err(failure) => return ClaimedRequest::Answered(Err(failure)),
        };
        ClaimedRequest::Read(self.in_thread(request, work, message()))
    }

    fn take_search(
        &self,
        request: &Request,
        body: &mut [u8],
        message: impl FnOnce() -> Vec<u8>,
    ) -> ClaimedRequest {
        match self.tree.begin_search(request, body) {
            Ok(Searching::Answered(length)) => ClaimedRequest::Answered(Ok(length)),
            Ok(Searching::HandedOver) => ClaimedRequest::HandedOver,
            Ok(Searching::OfPlain(search)) => {
                ClaimedRequest::Read(self.in_thread(request, Work::OfHoles(search), message()))
            }
            Err(failure) => ClaimedRequest::Answered(Err(failure)),
        }
    }

    fn in_thread(&self, request: &Request, work: Work, message: Vec<u8>) -> FileRead {
        FileRead {
            answers: Arc::clone(&self.answers),
            work,
            unique: request.header.unique,
            uid: self.tree.callers.share_of(&request.header),
            message,
        }
    }

    /// The sync that a request asks for, of a file that Python does not have open. Returns None if
    /// the user, or all users together, have too many syncs in progress.
    ///
    /// Uses the descriptor of the writes if it is still open, so that lost writes are reported.
    fn sync_of(&self, request: &Request) -> Option<FileSync> {
        let node = request.header.node;
        if self.tree.inodes.watched.has(node) {
            return None;
        }
        let given: FsyncIn = request.part().ok()?;
        let file = self.tree.inodes.data(node, false).ok()?;
        Some(FileSync {
            share: self.syncs.share(self.tree.callers.share_of(&request.header))?,
            answers: Arc::clone(&self.answers),
            file,
            data_only: given.flags & FSYNC_DATA != 0,
            unique: request.header.unique,
        })
    }
}
