//! The line between the kernel, libfuse and native code: one thread takes the requests.
//!
//! Native code immediately answers requests that need no state of Python (`requests/volume.rs`).
//! Requests with file data go to the caller, and the rest to libfuse. The socket to libfuse
//! preserves message boundaries and replaces `/dev/fuse`; libfuse answers through it. As libfuse
//! runs in the thread that takes the requests, native code never runs in parallel with an
//! operation. No request wakes a second thread, except syncs and long or waiting reads (`syncs.rs`,
//! `reads.rs`). If the thread is overloaded, overflow readers help (`overflow_readers.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::thread::sched_yield;
use zerocopy::{FromBytes, IntoBytes};

use crate::mount::inodes::table::Inodes;
use crate::mount::protocol::abi::{InHeader, OutHeader, init};
use crate::mount::protocol::handshake::{Offer, for_libfuse};
use crate::mount::protocol::message::{
    ANSWER_BYTES_MAX, Answer, Failure, OUT_HEADER_BYTES, Outcome, Request, divided, whole,
};
use crate::mount::protocol::opcode::{self as op, Fallback, route};
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::tree::Tree;
use crate::mount::session::device::{Received, forget_attributes, receive};
use crate::mount::session::handed_over::HandedOverRequests;
use crate::mount::session::helpers::Helpers;
use crate::mount::session::refused_writes::Write;
use crate::mount::session::returns::{ReturnedRequest, Returns};
use crate::mount::session::shared::{ClaimedRequest, Shared};
use crate::mount::session::turn::Turn;
use crate::store::why::Unreadable;
use crate::system::file_user::RootAgain;

/// How long the thread polls for the next request before it sleeps. A program that reads small
/// files one after the other sends it after 10 to 30 µs. Sleeping and waking takes both processors
/// as long. With 20 µs, `tar c` of small stubs took a quarter longer, and with 80 µs as long.
const AWAKE: Duration = Duration::from_micros(40);

/// The result of [`Line::next`].
pub enum NextRequest {
    /// No request is pending, or `count` requests have been answered.
    Nothing,
    /// libfuse finds a request at its end of the socket.
    ForLibfuse,
    /// The caller has to answer a request; see [`Line::request`].
    ForCaller,
    /// The mount has ended.
    Ended,
}

/// The line of one mount.
pub struct Line {
    /// The first field, so that the threads end before the data that they use is dropped.
    helpers: Helpers,
    turn: Arc<Turn>,
    shared: Arc<Shared>,
    device: Arc<OwnedFd>,
    ours: OwnedFd,
    tree: Arc<Tree>,
    /// Requests that native code has not answered.
    handed_over: HandedOverRequests,
    /// Number of requests that libfuse has not answered.
    awaited: usize,
    /// Requests that threads return.
    returns: Arc<Returns>,
    /// Flags of the kernel's offer that the mount ignores.
    absent: u64,
    /// The flags that kernel and mount have agreed on.
    agreed: u64,
    /// The kernel's offer in the first request, until libfuse has answered it.
    greeting: Option<Offer>,
    /// The last message of the kernel, and its length.
    input: Vec<u8>,
    length: usize,
    /// The next message to the kernel.
    output: Vec<u8>,
    /// The parts that could not be read for the request that was handed over last.
    reasons: Vec<Unreadable>,
}

impl Line {
    /// Also returns libfuse's end of the socket. Only this line reads from `device`. The calling
    /// thread has the `turn`. `absent`: flags of the kernel's offer that the mount ignores.
    pub fn new(
        device: OwnedFd,
        tree: Arc<Tree>,
        turn: Arc<Turn>,
        helpers: Helpers,
        absent: u64,
    ) -> Answer<(Line, OwnedFd)> {
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let returns = Arc::new(Returns::new()?);
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, end) in [device.as_fd(), returns.wake()].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&wake, end, data, epoll::EventFlags::IN)?;
        }
        let device = Arc::new(device);
        let shared =
            Shared::new(Arc::clone(&device), Arc::clone(&tree), Arc::clone(&returns), wake)?;
        let line = Line {
            helpers,
            turn,
            shared: Arc::new(shared),
            device,
            ours,
            tree,
            handed_over: HandedOverRequests::default(),
            awaited: 0,
            absent,
            agreed: 0,
            greeting: None,
            input: returns.buffer(),
            returns,
            length: 0,
            reasons: Vec::new(),
            output: vec![0; OUT_HEADER_BYTES + ANSWER_BYTES_MAX],
        };
        Ok((line, theirs))
    }

    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Time that native code took for its answers.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.busy_ns.load(Ordering::Relaxed))
    }

    pub fn handed_over(&self) -> &Counts {
        &self.handed_over.counts
    }

    pub fn inodes(&self) -> &Inodes {
        &self.tree.inodes
    }

    /// A descriptor that is readable while [`Line::next`] may find a request.
    pub fn wake(&self) -> &OwnedFd {
        &self.shared.wake
    }

    /// Makes the kernel ask for an inode's attributes again. Fails with ENOENT for an unknown
    /// inode.
    pub fn forget_attributes(&self, node: u64) -> Answer<()> {
        // An answer with old attributes may be in progress, even for an unknown inode.
        self.tree.inodes.changes.note(node);
        self.tree.inodes.forgotten.note(node);
        forget_attributes(&self.device, node)
    }

    pub fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Returns whether the kernel marks the writes that clear set-user-id and set-group-id.
    pub fn says_what_writes_clear(&self) -> bool {
        self.agreed & init::HANDLE_KILLPRIV_V2 != 0
    }

    /// Answers up to `count` requests, until one is for libfuse or the caller. Waits for the next
    /// request for `linger_ns`, or with io_uring as long as waiting is worthwhile.
    pub fn next(&mut self, count: u32, linger_ns: i64) -> Answer<NextRequest> {
        let _root = RootAgain; // Python's steps run as root
        self.tree.inodes.given.clear();
        for _ in 0..count {
            self.shared.pace.look();
            if self.awaited > 0 {
                self.pass_answers_on()?;
            }
            if let Some(back) = self.returns.take() {
                match self.take_back(back)? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }
            match self.receive(linger_ns)? {
                Received::Message(length) => self.length = length,
                Received::Ended => return Ok(NextRequest::Ended),
                Received::Nothing if self.returns.is_empty() => {
                    self.shared.pace.rest();
                    return Ok(NextRequest::Nothing);
                }
                Received::Nothing => continue,
            }
            if let Some(next) = self.take()? {
                return Ok(next);
            }
        }
        Ok(NextRequest::Nothing)
    }

    /// Reads a message. Waits up to `linger_ns` for a message, or for a returned request.
    fn receive(&mut self, linger_ns: i64) -> Answer<Received> {
        let found = self.read(true)?;
        if linger_ns == 0 || !matches!(found, Received::Nothing) {
            return Ok(found);
        }
        if self.helpers.are_by_ring() {
            self.yield_to_rings();
            return Ok(found);
        }
        // While overflow readers are called, the kernel wakes them instead of this thread.
        let has_others = self.shared.is_called.load(Ordering::Relaxed);
        let began = Instant::now();
        while !has_others && self.helpers.leave_the_device() && began.elapsed() < AWAKE {
            let found = self.read(false)?;
            if !matches!(found, Received::Nothing) || !self.returns.is_empty() {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        let end = if has_others { &self.shared.wake } else { &*self.device };
        let limit = Timespec { tv_sec: 0, tv_nsec: linger_ns };
        let found = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&limit));
        if found == Ok(0) {
            return Ok(Received::Nothing);
        }
        self.read(false)
    }

    /// Lets ring threads run until one of them returns a request, or waiting is not worthwhile.
    ///
    /// The ring thread that has to answer, and soon has the next request, runs on this processor,
    /// because the same program waits for both. A short sleep would take longer than the request,
    /// because each sleep sets the timer.
    fn yield_to_rings(&self) {
        let began = Instant::now();
        self.turn.give();
        while self.returns.is_empty() && began.elapsed() < AWAKE {
            sched_yield();
        }
        self.turn.take_back();
    }

    /// `waited`: a message that is pending now arrived before this thread asked for it.
    fn read(&mut self, waited: bool) -> Answer<Received> {
        let found = receive(&self.device, &mut self.input)?;
        if let Received::Message(length) = found {
            self.shared.pace.take(&self.input[..length], waited);
        }
        Ok(found)
    }

    /// Takes the message that was read. Returns None if it is answered.
    fn take(&mut self) -> Answer<Option<NextRequest>> {
        let request = divided(&self.input[..self.length], self.agreed)?;
        self.shared.counts.add(request.header.opcode);
        if request.header.opcode == op::INIT {
            let offer = Offer::of(&request, self.absent)?;
            self.helpers.try_ring(&offer, &self.device);
            self.greeting = Some(offer);
            let given = for_libfuse(request.part()?, self.absent);
            let message = whole(&Request { fixed: given.as_bytes(), ..request });
            tell(&self.ours, &message)?;
            self.awaited += 1;
            return Ok(Some(NextRequest::ForLibfuse));
        }
        self.answer_message(false)
    }

    /// Answers the message that was read, or hands it over. Returns None if it is answered, or a
    /// thread will answer it. `again`: the request has already waited for the disk.
    fn answer_message(&mut self, again: bool) -> Answer<Option<NextRequest>> {
        let message = &self.input[..self.length];
        let request = divided(message, self.agreed)?;
        let unique = request.header.unique;
        let write = Write::of(&request);
        let body = &mut self.output[OUT_HEADER_BYTES..];
        let take = || self.shared.take(&request, self.agreed, again, body, || message.to_vec());
        // A panic here would end the mount of all users.
        let taken = catch_unwind(AssertUnwindSafe(take))
            .unwrap_or(ClaimedRequest::Answered(Err(Failure(libc::EIO))));
        match taken {
            ClaimedRequest::Answered(answer) => {
                let given = self.give(unique, &answer);
                let body = &self.output[OUT_HEADER_BYTES..];
                self.note_written(write, answer.map(|length| &body[..length]));
                given.map(|()| None)
            }
            ClaimedRequest::Silent => Ok(None),
            ClaimedRequest::Read(read) => {
                self.shared.reads.begin(read);
                Ok(None)
            }
            ClaimedRequest::Sync(sync) => match self.shared.syncs.begin(sync) {
                true => Ok(None),
                false => self.hand_over(Vec::new()).map(Some),
            },
            ClaimedRequest::HandedOver => self.hand_over(Vec::new()).map(Some),
        }
    }

    /// Hands the message that was read to the caller or to libfuse. `reasons`: the parts that
    /// native code could not read for it.
    fn hand_over(&mut self, reasons: Vec<Unreadable>) -> Answer<NextRequest> {
        self.reasons = reasons;
        self.tree.callers.tell(&mut self.input[..self.length]);
        let request = divided(&self.input[..self.length], self.agreed)?;
        let InHeader { opcode, unique, .. } = request.header;
        let by_ring = self.shared.answers.seats.note_with_loop(unique);
        self.handed_over.add(&request, by_ring);
        if route(opcode).rest == Fallback::Serve {
            return Ok(NextRequest::ForCaller);
        }
        tell(&self.ours, &self.input[..self.length])?;
        self.awaited += 1;
        Ok(NextRequest::ForLibfuse)
    }

    /// Takes a request that a thread has returned.
    fn take_back(&mut self, back: ReturnedRequest) -> Answer<Option<NextRequest>> {
        match back {
            ReturnedRequest::Untaken(message) => {
                self.length = message.length;
                if message.bytes.len() == self.input.len() {
                    self.returns.keep_buffer(std::mem::replace(&mut self.input, message.bytes));
                } else {
                    self.input[..message.length].copy_from_slice(&message.bytes);
                }
                self.take()
            }
            ReturnedRequest::Again(message) => {
                self.put_back(&message);
                self.answer_message(true)
            }
            ReturnedRequest::Decided(message) => {
                self.put_back(&message.bytes);
                self.hand_over(Vec::new()).map(Some)
            }
            ReturnedRequest::HandedOver(message, reasons) => {
                self.put_back(&message);
                self.hand_over(reasons).map(Some)
            }
        }
    }

    fn put_back(&mut self, message: &[u8]) {
        self.length = message.len();
        self.input[..self.length].copy_from_slice(message);
    }

    /// Gives the kernel the answer to a request. The body of the answer is already in `output`.
    fn give(&self, unique: u64, answer: &Answer<usize>) -> Answer<()> {
        match answer {
            Ok(length) => {
                self.shared.answers.give(unique, &[&self.output[OUT_HEADER_BYTES..][..*length]])
            }
            Err(Failure(number)) => self.shared.answers.refuse(unique, *number),
        }
    }

    /// Notifies the kernel of the range of a write that its answer, which the kernel has, refuses.
    fn note_written(&self, write: Option<Write>, answer: Answer<&[u8]>) {
        if let Some(refused) = write.and_then(|write| write.refused(answer)) {
            self.shared.refused_writes.note(refused);
        }
    }

    /// Sends no further notifications of refused writes. Returns whether one is in progress, which
    /// ends only while requests are answered.
    pub fn finish_notifications(&self) -> bool {
        self.shared.refused_writes.finish()
    }

    /// The request that was found last.
    pub fn request(&self) -> Answer<Request<'_>> {
        divided(&self.input[..self.length], self.agreed)
    }

    /// The parts that could not be read for this request, if the caller gets it for that reason.
    pub fn reasons(&self) -> &[Unreadable] {
        &self.reasons
    }

    /// The features that this mount promises if the kernel offers them.
    fn wanted(&self) -> u64 {
        let ring = if self.helpers.have_ring() { init::OVER_IO_URING } else { 0 };
        let idmaps = if self.tree.is_root { init::ALLOW_IDMAP } else { 0 };
        ring | idmaps
    }

    /// Gives the kernel the answers of libfuse.
    pub fn pass_answers_on(&mut self) -> Answer<()> {
        loop {
            let length = match recv(&self.ours, &mut self.output[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if length == 0 {
                return Ok(()); // libfuse has closed its end
            }
            let Ok((header, _)) = OutHeader::read_from_prefix(&self.output[..length]) else {
                continue;
            };
            // A notification of libfuse has no number.
            self.awaited = self.awaited.saturating_sub(usize::from(header.unique != 0));
            self.handed_over.answered(header.unique, &self.tree.inodes);
            // The first request: the kernel sends no other request before it has the answer.
            let greeting = self.greeting.take();
            if let Some(offer) = &greeting {
                let wanted = self.wanted();
                self.agreed = offer.extend(&mut self.output[..length], wanted);
            }
            self.shared.answers.give_under(&header, &[&self.output[OUT_HEADER_BYTES..length]])?;
            if greeting.is_some() {
                self.helpers.start(&self.shared, &self.turn, self.agreed);
            }
        }
    }

    /// The message of the request that was found last.
    pub fn message(&self) -> &[u8] {
        &self.input[..self.length]
    }

    /// Creates the file for a message that was handed over, and answers the message.
    pub fn make_file(&mut self, message: &[u8]) -> Answer<()> {
        let _root = RootAgain;
        let request = divided(message, self.agreed)?;
        let body = &mut self.output[OUT_HEADER_BYTES..];
        let tree = &self.tree;
        let make = || tree.change(&request, || tree.answer_but_data(&request, body));
        let answer = match catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(Failure(libc::EIO))) {
            Ok(Outcome::Answered(length)) => Ok(length),
            Ok(_) => Err(Failure(libc::EIO)),
            Err(failure) => Err(failure),
        };
        let unique = request.header.unique;
        self.handed_over.answered(unique, &self.tree.inodes);
        self.give(unique, &answer)
    }

    /// Answers a request with the bytes of `body`.
    pub fn answer(&mut self, unique: u64, body: &[u8]) -> Answer<()> {
        let write = self.handed_over.answered(unique, &self.tree.inodes);
        let given = self.shared.answers.give(unique, &[body]);
        self.note_written(write, Ok(body));
        given
    }

    /// Answers a request with an error number.
    pub fn refuse(&mut self, unique: u64, number: i32) -> Answer<()> {
        let write = self.handed_over.answered(unique, &self.tree.inodes);
        let given = self.shared.answers.refuse(unique, number);
        self.note_written(write, Err(Failure(number)));
        given
    }
}

fn tell(socket: impl AsFd, message: &[u8]) -> Answer<()> {
    loop {
        match send(&socket, message, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}
