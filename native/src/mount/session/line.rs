//! The line between the kernel, libfuse and the code here, for a mount whose requests one thread
//! takes.
//!
//! Requests that need no state of Python's are answered at once (`requests/volume.rs`). Of the others,
//! those that carry a file's data go to the caller, the rest to libfuse, by a socket that keeps
//! messages apart and that libfuse takes for `/dev/fuse`; its answers come back by the same socket.
//! The thread that takes the requests is the one in which libfuse runs: so nothing here happens
//! beside an operation, and no request wakes a second thread, but syncs, and reads that have to wait or
//! to decode much (`syncs.rs`, `reads.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write, writev};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::mount::protocol::abi::{FSYNC_DATA, FsyncIn, InHeader, InitOut, OutHeader, init};
use crate::mount::protocol::handshake::{MESSAGE_BYTES_MAX, Offer, PAGE_BYTES, for_libfuse};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request};
use crate::mount::protocol::opcode::{self as op, fixed_bytes};
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::reading::Reading;
use crate::mount::requests::tree::Tree;
use crate::mount::session::reads::{Back, FileRead, FileReads, Returns, Work};
use crate::mount::session::service::{ANSWER_BYTES_MAX, OUT_HEADER_BYTES, out_header, whole};
use crate::mount::session::syncs::{FileSync, Syncs};

/// A request, header included, is at most so long.
const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX + PAGE_BYTES;

/// Requests that the caller answers, where native code does not: a file's data passes no socket, a new
/// file that had to wait is made here all the same, and pyfuse3 does not know the others.
const OF_CALLER: [u32; 11] = [
    op::READ,
    op::WRITE,
    op::FSYNC,
    op::FSYNCDIR,
    op::CREATE,
    op::TMPFILE,
    op::FALLOCATE,
    op::LSEEK,
    op::COPY_FILE_RANGE,
    op::COPY_FILE_RANGE_64,
    op::IOCTL,
];

/// Errors of `/dev/fuse` once the mount has gone.
const UNMOUNTED: [Errno; 2] = [Errno::NODEV, Errno::CONNABORTED];

/// What a look for the next request finds.
pub enum Next {
    /// No request is there, or as many as were allowed have been answered.
    Nothing,
    /// Libfuse finds a request at its end of the socket.
    ForLibfuse,
    /// A request for the caller, who answers it; see [`Line::request`].
    ForCaller,
    /// The mount has gone.
    Ended,
}

/// The line of one mount.
pub struct Line {
    device: Arc<OwnedFd>,
    ours: OwnedFd,
    tree: Arc<Tree>,
    counts: Counts,
    /// Of these, those that native code has not answered.
    handed_over: Counts,
    /// How long it took to answer the others.
    busy: Duration,
    syncs: Syncs,
    reads: FileReads,
    /// What the reads give back.
    returns: Arc<Returns>,
    /// Readable while the kernel has a request, or a read has come back.
    wake: OwnedFd,
    /// The flags that kernel and mount have agreed on.
    agreed: u64,
    /// The first request, until libfuse has answered it: its number, and what the kernel offers.
    greeting: Option<(u64, Offer)>,
    /// The last message of the kernel, and its length.
    input: Vec<u8>,
    length: usize,
    /// The next message to the kernel.
    output: Vec<u8>,
}

impl Line {
    /// Also returns libfuse's end of the socket. `device` is read from by nobody else.
    pub fn new(device: OwnedFd, tree: Arc<Tree>) -> Answer<(Line, OwnedFd)> {
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let returns = Arc::new(Returns::new()?);
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, end) in [device.as_fd(), returns.wake()].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&wake, end, data, epoll::EventFlags::IN)?;
        }
        let line = Line {
            device: Arc::new(device),
            ours,
            tree,
            counts: Counts::default(),
            handed_over: Counts::default(),
            busy: Duration::ZERO,
            syncs: Syncs::default(),
            reads: FileReads::new(Arc::clone(&returns)),
            returns,
            wake,
            agreed: 0,
            greeting: None,
            input: vec![0; REQUEST_BYTES_MAX],
            length: 0,
            output: vec![0; OUT_HEADER_BYTES + ANSWER_BYTES_MAX],
        };
        Ok((line, theirs))
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How long the answers of native code took.
    pub fn busy(&self) -> Duration {
        self.busy
    }

    pub fn handed_over(&self) -> &Counts {
        &self.handed_over
    }

    /// A descriptor that is readable while [`Line::next`] may find something.
    pub fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// The kernel's end.
    pub fn device(&self) -> &OwnedFd {
        &self.device
    }

    /// Whether the kernel says which writes clear set-user-id and set-group-id.
    pub fn says_what_writes_clear(&self) -> bool {
        self.agreed & init::HANDLE_KILLPRIV_V2 != 0
    }

    /// Answers up to `count` requests in a row, until one comes that is not to be answered here.
    /// Waits for the next one for `linger_ns`.
    pub fn next(&mut self, count: u32, linger_ns: i64) -> Answer<Next> {
        for _ in 0..count {
            self.pass_answers_on()?;
            if let Some(back) = self.returns.take() {
                match self.take_back(back)? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }
            if !self.receive(linger_ns)? {
                return Ok(Next::Nothing);
            }
            if self.length == 0 {
                return Ok(Next::Ended);
            }
            if let Some(next) = self.take()? {
                return Ok(next);
            }
        }
        Ok(Next::Nothing)
    }

    /// Reads a message of the kernel: none of any length once the mount has gone. False where there
    /// is none.
    fn receive(&mut self, linger_ns: i64) -> Answer<bool> {
        let mut has_waited = linger_ns == 0;
        loop {
            match read(&*self.device, &mut self.input) {
                Ok(length) => self.length = length,
                // The program that asked was killed meanwhile.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) if has_waited => return Ok(false),
                Err(Errno::AGAIN) => {
                    has_waited = true;
                    let limit = Timespec { tv_sec: 0, tv_nsec: linger_ns };
                    let mut waited = [PollFd::new(&*self.device, PollFlags::IN)];
                    match poll(&mut waited, Some(&limit)) {
                        Ok(_) | Err(Errno::INTR) => continue,
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(error) if UNMOUNTED.contains(&error) => self.length = 0,
                Err(error) => return Err(error.into()),
            }
            return Ok(true);
        }
    }

    /// Takes the message that was read. None where it is answered.
    fn take(&mut self) -> Answer<Option<Next>> {
        let request = divided(&self.input[..self.length], self.agreed)?;
        self.counts.add(request.header.opcode);
        if request.header.opcode == op::INIT {
            self.greeting = Some((request.header.unique, Offer::of(&request)?));
            let given = for_libfuse(request.part()?);
            let message = whole(&Request { fixed: given.as_bytes(), ..request });
            tell(&self.ours, &message)?;
            return Ok(Some(Next::ForLibfuse));
        }
        if request.header.opcode == op::READ {
            return self.take_read(false);
        }
        if self.begins_sync(&request)? {
            return Ok(None);
        }
        let began = Instant::now();
        let body = &mut self.output[OUT_HEADER_BYTES..];
        let answer = match self.tree.answer_of_volume(&request, self.agreed, body) {
            Ok(Outcome::Answered(length)) => Ok(length),
            Ok(Outcome::Silent) => return Ok(None),
            Ok(Outcome::HandedOver) => {
                self.handed_over.add(request.header.opcode);
                if OF_CALLER.contains(&request.header.opcode) {
                    return Ok(Some(Next::ForCaller));
                }
                tell(&self.ours, &self.input[..self.length])?;
                return Ok(Some(Next::ForLibfuse));
            }
            Err(failure) => Err(failure),
        };
        let unique = request.header.unique;
        self.give(unique, &answer)?;
        self.busy += began.elapsed();
        Ok(None)
    }

    /// Takes the request to read that was read. None where it is answered, or will be. `again`: the disk
    /// was waited for already.
    fn take_read(&mut self, again: bool) -> Answer<Option<Next>> {
        let began = Instant::now();
        let message = &self.input[..self.length];
        let request = divided(message, self.agreed)?;
        let (unique, uid) = (request.header.unique, request.header.uid);
        let body = &mut self.output[OUT_HEADER_BYTES..];
        let reading = if self.tree.inodes.watched.has(request.header.node) {
            Ok(Reading::HandedOver)
        } else {
            self.tree.begin_read(&request, body)
        };
        let work = match reading {
            Ok(Reading::OfStore(read)) => Work::OfStore(read),
            Ok(Reading::OnDisk(file, range)) if !again => Work::OnDisk(file, range),
            Ok(Reading::OnDisk(..) | Reading::HandedOver) => {
                self.handed_over.add(op::READ);
                return Ok(Some(Next::ForCaller));
            }
            Ok(Reading::Answered(length)) => {
                self.give(unique, &Ok(length))?;
                self.busy += began.elapsed();
                return Ok(None);
            }
            Err(failure) => {
                self.give(unique, &Err(failure))?;
                return Ok(None);
            }
        };
        let (device, message) = (Arc::clone(&self.device), message.to_vec());
        self.reads.begin(FileRead { device, work, unique, uid, message });
        self.busy += began.elapsed();
        Ok(None)
    }

    /// Takes a request that a thread has given back.
    fn take_back(&mut self, back: Back) -> Answer<Option<Next>> {
        let (Back::Again(message) | Back::HandedOver(message)) = &back;
        self.length = message.len();
        self.input[..self.length].copy_from_slice(message);
        if matches!(back, Back::Again(_)) {
            return self.take_read(true);
        }
        self.handed_over.add(op::READ);
        Ok(Some(Next::ForCaller))
    }

    /// Gives the kernel the answer to a request, the body of which is in `output` already.
    fn give(&mut self, unique: u64, answer: &Answer<usize>) -> Answer<()> {
        let header = out_header(unique, answer);
        self.output[..OUT_HEADER_BYTES].copy_from_slice(header.as_bytes());
        answered(write(&*self.device, &self.output[..header.length as usize]))
    }

    /// Whether a request is to sync a file that Python has not open, and is under way.
    ///
    /// By the descriptor that it was written with, if that is open still: so lost writes are told.
    fn begins_sync(&self, request: &Request) -> Answer<bool> {
        let (opcode, node) = (request.header.opcode, request.header.node);
        if !matches!(opcode, op::FSYNC | op::FSYNCDIR) || self.tree.inodes.watched.has(node) {
            return Ok(false);
        }
        let given: FsyncIn = request.part()?;
        let Ok(file) = self.tree.inodes.data(node, false) else { return Ok(false) };
        Ok(self.syncs.begin(FileSync {
            device: Arc::clone(&self.device),
            file,
            data_only: given.flags & FSYNC_DATA != 0,
            unique: request.header.unique,
            uid: request.header.uid,
        }))
    }

    /// The request that was found last.
    pub fn request(&self) -> Answer<Request<'_>> {
        divided(&self.input[..self.length], self.agreed)
    }

    /// Gives the kernel the answers that libfuse has given.
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
            if self.greeting.is_some() {
                self.extend_greeting(length);
            }
            answered(write(&*self.device, &self.output[..length]))?;
        }
    }

    /// Adds to libfuse's answer to the first request what it does not know of.
    fn extend_greeting(&mut self, length: usize) {
        let Ok((header, body)) = OutHeader::read_from_prefix(&self.output[..length]) else {
            return;
        };
        let Some((_, offer)) = self.greeting.take_if(|(unique, _)| *unique == header.unique) else {
            return;
        };
        let Ok((answer, _)) = InitOut::read_from_prefix(body) else { return };
        if header.error == 0 {
            let extended = offer.extended(answer);
            self.agreed = u64::from(extended.flags);
            let place = &mut self.output[OUT_HEADER_BYTES..length];
            place[..size_of::<InitOut>()].copy_from_slice(extended.as_bytes());
        }
    }

    /// The message of the request that was found last.
    pub fn message(&self) -> &[u8] {
        &self.input[..self.length]
    }

    /// Makes the file that a message asks for, which was handed over, and answers it.
    pub fn make_file(&mut self, message: &[u8]) -> Answer<()> {
        let request = divided(message, self.agreed)?;
        let body = &mut self.output[OUT_HEADER_BYTES..];
        let answer = match self.tree.answer(&request, body) {
            Ok(Outcome::Answered(length)) => Ok(length),
            Ok(_) => Err(Failure(libc::EIO)),
            Err(failure) => Err(failure),
        };
        self.give(request.header.unique, &answer)
    }

    /// Answers a request with some bytes.
    pub fn answer(&self, unique: u64, body: &[u8]) -> Answer<()> {
        let header = out_header(unique, &Ok(body.len()));
        let parts = [header.as_bytes(), body].map(std::io::IoSlice::new);
        answered(writev(&*self.device, &parts))
    }

    /// Answers a request with an error number.
    pub fn refuse(&self, unique: u64, number: i32) -> Answer<()> {
        let header = out_header(unique, &Err(Failure(number)));
        answered(write(&*self.device, header.as_bytes()))
    }
}

fn divided(message: &[u8], agreed: u64) -> Answer<Request<'_>> {
    let malformed = Failure(libc::EIO);
    let (header, rest) = InHeader::read_from_prefix(message).map_err(|_| malformed)?;
    let fixed = fixed_bytes(header.opcode, agreed).unwrap_or(0);
    let (fixed, rest) = rest.split_at_checked(fixed).ok_or(malformed)?;
    Ok(Request { header, fixed, rest })
}

fn tell(socket: impl AsFd, message: &[u8]) -> Answer<()> {
    loop {
        match send(&socket, message, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// What becomes of an answer: nobody waits for it where the program was killed or the mount has gone.
fn answered(written: Result<usize, Errno>) -> Answer<()> {
    match written {
        Err(Errno::NOENT) => Ok(()),
        Err(error) if UNMOUNTED.contains(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}
