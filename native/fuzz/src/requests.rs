//! Requests like those of the kernel, through a socket instead of `/dev/fuse`, for the loop of a
//! mount over a directory of plain files and stubs.
//!
//! The kernel promises little: names are single components, data requests are for regular files,
//! and the bytes of a write exist. The input determines all the rest.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use native::format::ids::{ChunkKey, FingerprintCheck, RecordId};
use native::format::stub::{DIRECT, Seeds, StubHead};
use native::mount::inodes::generations::Generations;
use native::mount::inodes::table::Inodes;
use native::mount::protocol::abi::{InHeader, InitIn, InitOut, OutHeader, init};
use native::mount::protocol::message::{OUT_HEADER_BYTES, divided, whole};
use native::mount::protocol::opcode as op;
use native::mount::requests::stubs::Store;
use native::mount::requests::tree::Tree;
use native::mount::session::helpers::Helpers;
use native::mount::session::line::{Line, NextRequest};
use native::mount::session::overflow_readers::OverflowLimits;
use native::mount::session::turn::Turn;
use native::store::chunk_cache::{ChunkCache, ChunkSource};
use native::store::content::{Content, RecipeHead};
use native::store::recipes::{Broken, LeafAt, Span};
use native::store::record_reader::CacheUse;
use native::store::why::{Unreadable, Why};
use native::stub::open_stub::StubFiles;
use native::system::calls::generation_of;
use native::system::effects::SystemCalls;

use super::Input;

const SEEDS: Seeds = Seeds { attribute: 3, instance: 5 };
const RESERVED: &str = "user.dedupd";
const CHUNK_BYTES: u64 = 4096;
/// The longest requested read: a socket accepts its answer at once.
const READ_BYTES_MAX: u32 = 32 << 10;
const REQUESTS_MAX: usize = 40;
/// A request without an answer after this time never gets one.
const ANSWER_TIME: Duration = Duration::from_secs(15);

/// Requests that get no answer.
const SILENT: [u32; 2] = [op::FORGET, op::BATCH_FORGET];
/// Requests with one or two names after the fixed part.
const NAMED: [u32; 10] = [
    op::LOOKUP,
    op::SYMLINK,
    op::MKNOD,
    op::MKDIR,
    op::UNLINK,
    op::RMDIR,
    op::RENAME,
    op::RENAME2,
    op::LINK,
    op::CREATE,
];
/// Requests for the bytes of a regular file.
const OF_FILES: [u32; 7] = [
    op::READ,
    op::WRITE,
    op::LSEEK,
    op::FALLOCATE,
    op::COPY_FILE_RANGE,
    op::COPY_FILE_RANGE_64,
    op::FSYNC,
];

/// Chunks with bytes that are computed from their ids.
struct Made;

impl ChunkSource for Made {
    fn read(&self, keys: &[ChunkKey], give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync)) {
        for (at, key) in keys.iter().enumerate() {
            let is_sound = key.id.0 % 7 != 0;
            let bytes = || vec![key.id.0 as u8; key.length as usize];
            give(at, is_sound.then(bytes).ok_or(Why::Damaged));
        }
    }
}

impl Content for Made {
    fn source(&self) -> &dyn ChunkSource {
        self
    }

    fn read_opened(&self, id: RecordId, _: FingerprintCheck, out: &mut [u8]) -> Result<(), Why> {
        out.fill(id.0 as u8);
        (id.0 % 5 != 0).then_some(()).ok_or(Why::NotInMemory)
    }

    fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        _: CacheUse,
    ) -> Result<Vec<Span>, Unreadable> {
        if range.end > stub.covered || range.end - range.start > 4 << 20 {
            return Err(Unreadable::recipe(Why::NotMeant));
        }
        let check = stub.fingerprint_check();
        let span = |number: u64| {
            let (start, length) = (number * CHUNK_BYTES, CHUNK_BYTES as u32);
            let id = RecordId(stub.recipe.0.wrapping_add(number));
            let chunk = (number % 4 != 3).then_some(ChunkKey { id, length, check });
            Span { start, end: start + CHUNK_BYTES, chunk }
        };
        Ok((range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES)).map(span).collect())
    }

    // No request asks for more of a recipe than its spans.
    fn described(&self, _: &StubHead) -> Result<RecipeHead, Unreadable> {
        Err(Unreadable::recipe(Why::NotOpen))
    }

    fn leaf(&self, stub: &StubHead, _: u64) -> Result<LeafAt, Broken> {
        let unreadable = Unreadable::recipe(Why::NotOpen);
        Err(Broken { range: 0..stub.covered, above: Vec::new(), unreadable })
    }

    fn ahead_bytes(&self, length: u64) -> u64 {
        length
    }
}

/// A separate directory, which is removed at the end.
struct Lower(PathBuf);

impl Lower {
    fn new(input: &mut Input<'_>) -> Lower {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("dedupd-fuzz-{}-{number}", std::process::id());
        let lower = Lower(std::env::temp_dir().join(name));
        fs::create_dir(&lower.0).expect("no room for a directory");
        fs::create_dir(lower.0.join("d")).unwrap();
        fs::write(lower.0.join("p"), [7; 9000]).unwrap();
        std::os::unix::fs::symlink("p", lower.0.join("l")).unwrap();
        for name in ["s", "t"] {
            make_stub(&lower.0.join(name), input);
        }
        lower
    }
}

impl Drop for Lower {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Most stubs are like those of the program.
fn make_stub(path: &Path, input: &mut Input<'_>) {
    let file = File::create(path).unwrap();
    let (flags, bytes) = (input.u8(), u64::from(input.u8()) * 317);
    file.set_len(bytes).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    let Ok(generation) = generation_of(file.as_raw_fd()) else { return };
    let is_odd = flags % 8 == 0;
    let head = StubHead {
        flags: if is_odd { input.u8() } else { flags & DIRECT },
        recipe: RecordId(u64::from(input.u8())),
        digest: [9; 16],
        covered: if is_odd { input.u64() } else { bytes },
        mtime_ns: 0,
        binding: SEEDS.binding(inode, generation),
        local: if is_odd { u64::from(input.u8()) * 512 } else { 0 },
    };
    let value = head.to_bytes(SEEDS.attribute);
    let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let name = CString::new(RESERVED).unwrap();
    // SAFETY: both strings are NUL-terminated, and the value has the stated length.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
}

/// The kernel's end of the socket, and the state of the kernel.
struct Kernel {
    socket: OwnedFd,
    nodes: Vec<u64>,
    unique: u64,
    /// Requests that have no answer yet.
    awaited: HashMap<u64, u32>,
}

impl Kernel {
    /// A request of the input.
    fn request(&mut self, input: &mut Input<'_>, agreed: u64) -> Vec<u8> {
        let opcode = u32::from(input.u8()) % (op::COUNT as u32 + 3);
        let opcode = if opcode == op::INIT { op::LOOKUP } else { opcode };
        let node = self.node(input);
        let mut fixed = vec![0; op::fixed_bytes(opcode, agreed).unwrap_or(0)];
        self.fill(opcode, &mut fixed, input);
        let rest = rest_of(opcode, &fixed, input);
        let uid = [0, 1000, u32::MAX][usize::from(input.u8() % 3)];
        let pid = [0, std::process::id()][usize::from(input.u8() % 2)];
        self.message(InHeader { opcode, node, uid, gid: uid, pid, ..header() }, &fixed, &rest)
    }

    fn message(&mut self, mut header: InHeader, fixed: &[u8], rest: &[u8]) -> Vec<u8> {
        self.unique += 2;
        header.unique = self.unique;
        if !SILENT.contains(&header.opcode) {
            self.awaited.insert(header.unique, header.opcode);
        }
        whole(&native::mount::protocol::message::Request { header, fixed, rest })
    }

    fn node(&self, input: &mut Input<'_>) -> u64 {
        match usize::from(input.u8()) {
            255 => input.u64(),
            at => self.nodes[at % self.nodes.len()],
        }
    }

    /// The fixed part: bytes of the input, within the kernel's promises.
    fn fill(&self, opcode: u32, fixed: &mut [u8], input: &mut Input<'_>) {
        if opcode == op::SETATTR {
            // Usually a few fields are set.
            fixed[..4].copy_from_slice(&input.u32().to_le_bytes());
            fixed[16..24].copy_from_slice(&(input.u64() >> (input.u8() % 64)).to_le_bytes());
            fixed[64..72].copy_from_slice(&input.bytes::<8>());
            fixed[76..84].copy_from_slice(&input.bytes::<8>());
            return;
        }
        for byte in fixed.iter_mut() {
            *byte = input.u8();
        }
        let mut set = |range: Range<usize>, value: u64| {
            fixed[range.clone()].copy_from_slice(&value.to_le_bytes()[..range.len()]);
        };
        let small = |input: &mut Input<'_>| input.u64() >> (input.u8() % 64);
        match opcode {
            op::READ | op::READDIR | op::READDIRPLUS => {
                set(8..16, small(input));
                set(16..20, u64::from(input.u32() % READ_BYTES_MAX));
            }
            op::WRITE | op::FALLOCATE | op::LSEEK => set(8..16, small(input)),
            op::GETXATTR | op::LISTXATTR => set(0..4, u64::from(input.u32() % READ_BYTES_MAX)),
            op::LINK | op::RENAME | op::RENAME2 => set(0..8, self.node(input)),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                set(8..16, small(input));
                set(16..24, self.node(input));
                set(32..40, small(input));
                set(40..48, small(input) % (1 << 20));
            }
            // The mount has no use for pipes and devices, and opens none.
            op::MKNOD => {
                let kind = [0, libc::S_IFREG, libc::S_IFSOCK][usize::from(input.u8() % 3)];
                set(0..4, u64::from(kind | (u32::from(input.u8()) * 8)));
            }
            _ => {}
        }
    }

    /// Takes the available answers.
    fn take_answers(&mut self, room: &mut [u8]) {
        while let Some(length) = received(&self.socket, room) {
            self.take_answer(&room[..length]);
        }
    }

    fn take_answer(&mut self, answer: &[u8]) {
        let number = |at: usize| u32::from_le_bytes(*answer[at..].first_chunk().unwrap());
        let unique = u64::from_le_bytes(*answer[8..].first_chunk().unwrap());
        assert_eq!(number(0) as usize, answer.len(), "the length is wrong");
        let error = number(4) as i32;
        if unique == 0 {
            assert!(error > 0, "an answer to nothing");
            return;
        }
        let opcode = self.awaited.remove(&unique).expect("a second answer, or one to nothing");
        assert!((-4095..=0).contains(&error), "{opcode}: the error {error}");
        assert!(error == 0 || answer.len() == OUT_HEADER_BYTES, "an error with bytes");
        let body = &answer[OUT_HEADER_BYTES..];
        let makes = [op::LOOKUP, op::SYMLINK, op::MKNOD, op::MKDIR, op::LINK, op::CREATE];
        if error == 0 && (makes.contains(&opcode) || opcode == op::TMPFILE) && body.len() >= 128 {
            let node = u64::from_le_bytes(*body.first_chunk().unwrap());
            if node != 0 && !self.nodes.contains(&node) {
                self.nodes.push(node);
            }
        }
        if opcode == op::READ {
            assert!(body.len() <= READ_BYTES_MAX as usize);
        }
    }
}

fn header() -> InHeader {
    InHeader { pid: 1, ..InHeader::default() }
}

/// Names and data after the fixed part. A name is one component, and neither `.` nor `..`.
fn rest_of(opcode: u32, fixed: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    const USUAL: [&[u8]; 8] =
        [b"p\0", b"s\0", b"t\0", b"d\0", b"l\0", b".dedupd\0", b"n\0", b"m\0"];
    let length = usize::from(input.u8());
    let mut bytes = |count: usize| (0..count).map(|_| input.u8()).collect::<Vec<_>>();
    let mut name = |kind: usize| match kind {
        0..32 => USUAL[kind % USUAL.len()].to_vec(),
        _ => bytes(kind - 31),
    };
    let mut rest = match opcode {
        op::WRITE => {
            let size = u32::from_le_bytes(*fixed[16..].first_chunk().unwrap());
            return vec![size as u8; size as usize % (64 << 10)];
        }
        op::SETXATTR | op::GETXATTR | op::REMOVEXATTR if length < 64 => {
            let names = ["user.a", RESERVED, "system.posix_acl_access", "security.capability"];
            let mut rest = [names[length % names.len()].as_bytes(), b"\0"].concat();
            rest.extend(name(32 + length));
            rest
        }
        op::RENAME | op::RENAME2 | op::SYMLINK => [name(length % 32), name(length / 32)].concat(),
        _ => name(length),
    };
    if NAMED.contains(&opcode) {
        rest.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'_');
        let parts: Vec<_> = rest.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        let safe = |part: Vec<u8>| if part == b"." || part == b".." { b"x".to_vec() } else { part };
        rest = parts.into_iter().map(safe).collect::<Vec<_>>().join(&0);
    }
    rest
}

fn received(socket: &OwnedFd, room: &mut [u8]) -> Option<usize> {
    // SAFETY: the room has this length.
    let length = unsafe {
        libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(length).ok().filter(|length| *length > 0)
}

fn sent(socket: &OwnedFd, message: &[u8]) {
    // SAFETY: the message has the stated length.
    let length = unsafe {
        libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
    };
    assert_eq!(length, message.len() as isize);
}

fn pair() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors, which have no other owner.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

fn bytes_of<T: zerocopy::IntoBytes + zerocopy::Immutable>(part: &T) -> Vec<u8> {
    part.as_bytes().to_vec()
}

/// The tree above a directory, with content for its stubs.
fn tree_of(lower: &Lower, input: &mut Input<'_>) -> Arc<Tree> {
    let root = OwnedFd::from(File::open(&lower.0).unwrap());
    let inodes = Inodes::new(root, 64, 8, Generations::new([1; 32])).unwrap();
    let name = |text: &str| CString::new(text).unwrap();
    let tree = Tree::new(inodes, name(RESERVED), name(".dedupd"));
    let cache = Arc::new(ChunkCache::new(1 << 20));
    let files = StubFiles { attribute: name(RESERVED), seed: SEEDS.attribute, block_bytes: 4096 };
    let (content, effects) = (Arc::new(Made), Arc::new(SystemCalls));
    let _ = tree.store.set(Arc::new(Store { content, cache, seeds: SEEDS, files, effects }));
    let bits = input.u8();
    tree.files_are_delayed.store(bits & 3 == 3, Ordering::Relaxed);
    tree.names_are_noted.store(bits & 12 == 12, Ordering::Relaxed);
    if bits & 16 != 0 {
        tree.allowed_bytes.store(i64::from(input.u8()) * 64, Ordering::Relaxed);
    }
    Arc::new(tree)
}

/// The loop of a mount, and Python's part of it.
struct Mount {
    line: Line,
    tree: Arc<Tree>,
    libfuse: OwnedFd,
    agreed: u64,
}

impl Mount {
    /// Serves the available requests. Only a message that is too short may cause an error.
    fn serve(&mut self, kernel: &mut Kernel, input: &mut Input<'_>, room: &mut [u8]) {
        loop {
            match self.line.next(8, 0).expect("the mount has ended") {
                NextRequest::Nothing => return,
                NextRequest::Ended => panic!("the mount has ended"),
                NextRequest::ForCaller => self.serve_caller(input),
                NextRequest::ForLibfuse => self.serve_libfuse(input, room),
            }
            kernel.take_answers(room);
        }
    }

    fn serve_caller(&mut self, input: &mut Input<'_>) {
        let message = self.line.message().to_vec();
        let header = divided(&message, self.agreed).unwrap().header;
        let answered = match header.opcode {
            op::CREATE | op::TMPFILE => self.line.make_file(&message),
            _ if input.u8() % 2 == 0 => self.line.answer(header.unique, &[0; 16]),
            _ => self.line.refuse(header.unique, libc::ENOSYS),
        };
        answered.unwrap();
    }

    fn serve_libfuse(&mut self, input: &mut Input<'_>, room: &mut [u8]) {
        let length = received(&self.libfuse, room).expect("no message for libfuse");
        let header = divided(&room[..length], 0).unwrap().header;
        let mut answer = Vec::new();
        let mut error = -libc::ENOSYS;
        if header.opcode == op::INIT {
            let flags = input.u32();
            answer = bytes_of(&InitOut { major: 7, minor: 45, flags, ..InitOut::default() });
            error = 0;
        }
        let length = (OUT_HEADER_BYTES + answer.len()) as u32;
        let out = OutHeader { length, error, unique: header.unique };
        sent(&self.libfuse, &[bytes_of(&out), answer].concat());
        self.line.pass_answers_on().unwrap();
    }

    /// The first request of a session.
    fn greet(&mut self, kernel: &mut Kernel, input: &mut Input<'_>, room: &mut [u8]) {
        let flags = if input.u8() % 4 == 0 { input.u64() } else { init::INIT_EXT | !0 };
        let given = InitIn {
            major: 7,
            minor: 45,
            max_readahead: 1 << 17,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        };
        let message =
            kernel.message(InHeader { opcode: op::INIT, ..header() }, &bytes_of(&given), &[]);
        sent(&kernel.socket, &message);
        self.serve(kernel, input, room);
        if self.line.says_what_writes_clear() {
            self.agreed |= init::HANDLE_KILLPRIV_V2 | init::SETXATTR_EXT;
        }
    }
}

/// Each request gets one answer in the correct form, whatever it contains.
pub fn requests(data: &[u8]) {
    let _ = divided(data, u64::MAX).map(|request| {
        let _ = (request.name(), request.names(), request.part::<InitIn>(), whole(&request));
    });
    let input = &mut Input(data);
    let lower = Lower::new(input);
    let tree = tree_of(&lower, input);
    let (device, socket) = pair();
    let helpers = Helpers::new(OverflowLimits { threads: 0, always: false }, None);
    let turn = Arc::new(Turn::default());
    let (line, libfuse) = Line::new(device, Arc::clone(&tree), turn, helpers, 0).unwrap();
    let mut kernel = Kernel { socket, nodes: vec![1], unique: 0, awaited: HashMap::new() };
    let mut mount = Mount { line, tree, libfuse, agreed: 0 };
    let mut room = vec![0; 2 << 20];
    mount.greet(&mut kernel, input, &mut room);
    let mut count = 0;
    while !input.0.is_empty() && count < REQUESTS_MAX {
        count += 1;
        let message = kernel.request(input, mount.agreed);
        let request = divided(&message, mount.agreed).unwrap();
        if !may_be_asked(&mount.tree, &request, &mut kernel.awaited) {
            continue;
        }
        sent(&kernel.socket, &message);
        mount.serve(&mut kernel, input, &mut room);
        if input.u8() % 32 == 0 {
            let node = kernel.node(input);
            match input.u8() % 4 {
                0 => mount.tree.inodes.watch(node),
                1 => mount.tree.inodes.unwatch(node),
                2 => mount.tree.inodes.close_idle(),
                _ => drop(mount.line.forget_attributes(node)),
            }
        }
    }
    let end = Instant::now() + ANSWER_TIME;
    while !kernel.awaited.is_empty() {
        assert!(Instant::now() < end, "not answered: {:?}", kernel.awaited.values());
        mount.serve(&mut kernel, input, &mut room);
        kernel.take_answers(&mut room);
        std::thread::yield_now();
    }
}

/// Returns whether the kernel may send such a request. Otherwise no program waits for its answer.
fn may_be_asked(
    tree: &Tree,
    request: &native::mount::protocol::message::Request<'_>,
    awaited: &mut HashMap<u64, u32>,
) -> bool {
    let header = &request.header;
    let is_file = |node: u64| {
        let status = tree.inodes.path(node).ok().and_then(|path| {
            let path = format!("/proc/self/fd/{}", path.as_raw_fd());
            fs::metadata(path).ok()
        });
        status.is_none_or(|status| status.is_file())
    };
    let writes_less = header.opcode == op::WRITE && {
        let size = u32::from_le_bytes(*request.fixed[16..].first_chunk().unwrap());
        size as usize != request.rest.len()
    };
    let ends = header.opcode == op::DESTROY;
    let may = !ends && !writes_less && (!OF_FILES.contains(&header.opcode) || is_file(header.node));
    if !may {
        awaited.remove(&header.unique);
    }
    may
}
