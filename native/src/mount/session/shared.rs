//! What the threads of a volume's mount share, and how native code takes a request that one thread
//! at a time takes.

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
use crate::mount::session::pace::{Pace, Seen};
use crate::mount::session::reads::{FileRead, FileReads, Work};
use crate::mount::session::refused_writes::RefusedWrites;
use crate::mount::session::returns::Returns;
use crate::mount::session::syncs::{FileSync, Syncs};

/// What becomes of a request that native code takes.
pub enum Taken {
    /// It is to be answered so.
    Answered(Answer<usize>),
    /// No answer is expected.
    Silent,
    /// It is read in a thread that may wait, which answers it or gives it back.
    Read(FileRead),
    /// It is synced in a thread that may wait, which answers it.
    Sync(FileSync),
    /// It is Python's.
    HandedOver,
}

/// What the threads of a mount share.
pub struct Shared {
    pub device: Arc<OwnedFd>,
    pub answers: Arc<Answers>,
    pub tree: Arc<Tree>,
    pub counts: Counts,
    /// How long answers of native code took, in nanoseconds.
    pub busy_ns: AtomicU64,
    pub returns: Arc<Returns>,
    pub syncs: Syncs,
    pub reads: FileReads,
    pub refused_writes: RefusedWrites,
    pub pace: Pace,
    /// What wakes the loop's thread; the device is the one with the number 0.
    pub wake: OwnedFd,
    /// Whether others take requests from the device.
    pub is_called: AtomicBool,
    /// Requests that stand-ins have in hand.
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

    pub fn seen(&self) -> Seen {
        Seen { has_returns: !self.returns.is_empty(), ..self.pace.seen() }
    }

    /// Has the kernel ask for the attributes of an inode again if it was told so after an instant: it
    /// has been given some since that may be older.
    pub fn forget_again(&self, node: u64, since: u64) {
        if self.tree.inodes.forgotten.has(node, since) {
            // Of one that it does not know it has none.
            let _ = forget_attributes(&self.device, node);
        }
    }

    /// Nobody answers any more what the loop's thread has, or would get.
    pub fn leave_all(&self) {
        while let Some(back) = self.returns.take() {
            if let Ok((header, _)) = InHeader::read_from_prefix(back.message()) {
                self.answers.seats.leave(header.unique);
            }
        }
        self.answers.seats.leave_with_loop();
    }

    /// Takes a request, between two awaits of the event loop: answers it into `body`, says what a
    /// thread has to wait for, or leaves it to Python. `agreed`: the flags of the session. `again`: the disk was
    /// waited for already. `message`: the request in one piece.
    pub fn take(
        &self,
        request: &Request,
        agreed: u64,
        again: bool,
        body: &mut [u8],
        message: impl FnOnce() -> Vec<u8>,
    ) -> Taken {
        let began = Instant::now();
        let taken = match request.header.opcode {
            op::READ => self.take_read(request, again, body, message),
            op::LSEEK => self.take_search(request, body, message),
            op::FSYNC | op::FSYNCDIR => {
                self.sync_of(request).map_or(Taken::HandedOver, Taken::Sync)
            }
            _ => match self.tree.answer_of_volume(request, agreed, body) {
                Ok(Outcome::Answered(length)) => Taken::Answered(Ok(length)),
                Ok(Outcome::Silent) => Taken::Silent,
                Ok(Outcome::HandedOver) => Taken::HandedOver,
                Err(failure) => Taken::Answered(Err(failure)),
            },
        };
        if let (Taken::Answered(_), Some(touched)) = (&taken, Touched::of(request)) {
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
    ) -> Taken {
        let work = match self.tree.begin_read(request, body) {
            Ok(Reading::OfStore(read)) => Work::OfStore(read),
            Ok(Reading::OfPlain(read)) if !again => Work::OfPlain(read),
            Ok(Reading::OnDisk(file, range)) if !again => Work::OnDisk(file, range),
            Ok(Reading::OfPlain(_) | Reading::OnDisk(..) | Reading::HandedOver) => {
                return Taken::HandedOver;
            }
            Ok(Reading::Answered(length)) => return Taken::Answered(Ok(length)),
            Err(failure) => return Taken::Answered(Err(failure)),
        };
        Taken::Read(self.in_thread(request, work, message()))
    }

    fn take_search(
        &self,
        request: &Request,
        body: &mut [u8],
        message: impl FnOnce() -> Vec<u8>,
    ) -> Taken {
        match self.tree.begin_search(request, body) {
            Ok(Searching::Answered(length)) => Taken::Answered(Ok(length)),
            Ok(Searching::HandedOver) => Taken::HandedOver,
            Ok(Searching::OfPlain(search)) => {
                Taken::Read(self.in_thread(request, Work::OfHoles(search), message()))
            }
            Err(failure) => Taken::Answered(Err(failure)),
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

    /// The sync that a request asks for, of a file that Python has not open. None where its user, or
    /// all together, have too many under way.
    ///
    /// By the descriptor that it was written with, if that is open still: so lost writes are told.
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
