//! Messages on the line between a mount and its page worker, at both ends.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

use native::mount::pages::message::{NONE, Question, ask, connection, next_question};
use native::mount::pages::worker::Worker;

use super::Input;

const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A worker that serves a directory like a mount; its control connection, and the inode of a file
/// in the directory.
fn worker() -> &'static (OwnedFd, u64) {
    static WORKER: OnceLock<(OwnedFd, u64)> = OnceLock::new();
    WORKER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("dedupd-fuzz-pages-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("f"), [7; 40_000]).unwrap();
        let file = File::open(path.join("f")).unwrap().metadata().unwrap();
        let (ours, theirs) = connection().unwrap();
        let worker = Worker::new(path, file.dev(), false);
        std::thread::spawn(move || worker.serve(&theirs));
        (ours, file.ino())
    })
}

fn send(socket: &OwnedFd, message: &[u8]) {
    // SAFETY: the message has the stated length.
    unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
}

/// Passes a copy of a descriptor to the worker.
fn give(control: &OwnedFd, line: &OwnedFd) {
    // SAFETY: all pointers are to locals that outlive the call, and CMSG_SPACE is the room for one
    // descriptor.
    unsafe {
        let mut byte = *b"+";
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut room = [0_u64; 8];
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<i32>().write_unaligned(line.as_raw_fd());
        assert_eq!(libc::sendmsg(control.as_raw_fd(), &raw const message, 0), 1);
    }
}

/// The worker answers each question, or closes the line; the mount accepts each answer.
pub fn pages(data: &[u8]) {
    let (ours, theirs) = connection().unwrap();
    send(&ours, data);
    if !data.is_empty()
        && let Ok(Some((question, path))) = next_question(&theirs)
    {
        assert!(question.start < question.end);
        assert_eq!(path, data[size_of::<Question>()..data.len().min(8192)]);
    }
    // Possible answers of a worker to a mount.
    let question = Question { inode: 1, generation: 1, start: 0, end: 1 };
    if !data.is_empty() {
        send(&theirs, data);
        assert_eq!(ask(&ours, &question, b"", ANSWER_TIME).is_ok(), data.len() >= 8);
    }
    let (control, inode) = worker();
    let (ours, theirs) = connection().unwrap();
    give(control, &theirs);
    drop(theirs);
    let mut input = Input(data);
    for _ in 0..4 {
        let is_ours = input.u8() % 4 > 0;
        let small = |input: &mut Input<'_>| input.u64() >> (input.u8() % 64);
        let question = Question {
            inode: if is_ours { *inode } else { small(&mut input) },
            generation: small(&mut input),
            start: small(&mut input),
            end: small(&mut input),
        };
        let length = usize::from(input.u8() % 4);
        let mut path: Vec<u8> = if is_ours {
            b"f".to_vec()
        } else {
            input.rest()[..].iter().copied().take(length).collect()
        };
        path.retain(|byte| *byte != b'/');
        match ask(&ours, &question, &path, ANSWER_TIME) {
            Ok(reply) => {
                let is_within = (question.start..question.end).contains(&reply.first);
                assert!(reply.first == NONE || is_within, "{}", reply.first);
            }
            // The input was no question.
            Err(_) => {
                assert!(question.start >= question.end);
                return;
            }
        }
    }
}
