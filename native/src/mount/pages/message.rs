//! A question of a mount to the worker, and the answer.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mount::protocol::message::{Answer, Failure};

/// A path has at most 4,095 bytes.
const MESSAGE_BYTES_MAX: usize = 8192;

/// Asks whether a range of a file has newer pages. A path relative to the mount follows if the
/// inode cannot be opened by its handle.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Question {
    pub inode: u64,
    pub generation: u64,
    pub start: u64,
    pub end: u64,
}

/// No page of the range is newer.
pub const NONE: u64 = u64::MAX;

/// The first offset in the range that may lie in a newer page, or [`NONE`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    pub first: u64,
}

/// Two ends of a connection that preserves message boundaries.
pub fn connection() -> Answer<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Sends a question and waits for the reply.
pub fn ask(line: &OwnedFd, question: &Question, path: &[u8], limit: Duration) -> Answer<Reply> {
    rustix::net::sockopt::set_socket_timeout(
        line,
        rustix::net::sockopt::Timeout::Recv,
        Some(limit),
    )?;
    told(line, &[question.as_bytes(), path].concat())?;
    let mut bytes = [0; size_of::<Reply>()];
    match heard(line, &mut bytes)? {
        length if length == bytes.len() => {
            Reply::read_from_bytes(&bytes).map_err(|_| Failure(libc::EIO))
        }
        _ => Err(Failure(libc::EPIPE)),
    }
}

/// The next question and its path; None after the other end is closed. Fails with EINVAL if the
/// message is too short, or if its range is empty.
pub fn next_question(line: &OwnedFd) -> Answer<Option<(Question, Vec<u8>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let length = heard(line, &mut bytes)?;
    bytes.truncate(length);
    if length == 0 {
        return Ok(None);
    }
    let (question, path) = Question::read_from_prefix(&bytes).map_err(|_| Failure(libc::EINVAL))?;
    if question.start >= question.end {
        return Err(Failure(libc::EINVAL));
    }
    Ok(Some((question, path.to_vec())))
}

/// Answers the last question.
pub fn reply(line: &OwnedFd, first: u64) -> Answer<()> {
    told(line, Reply { first }.as_bytes())
}

fn told(line: impl AsFd, message: &[u8]) -> Answer<()> {
    loop {
        match send(&line, message, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

fn heard(line: impl AsFd, bytes: &mut [u8]) -> Answer<usize> {
    loop {
        match recv(&line, &mut *bytes, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            result => return Ok(result?.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_no_question_is_refused() {
        let (ours, theirs) = connection().unwrap();
        let question = Question { inode: 7, generation: 1, start: 4096, end: 8192 };
        told(&ours, &[question.as_bytes(), b"a/b"].concat()).unwrap();
        let (heard, path) = next_question(&theirs).unwrap().unwrap();
        assert_eq!((heard.as_bytes(), &path[..]), (question.as_bytes(), &b"a/b"[..]));
        for end in [0, 4095, 4096] {
            told(&ours, Question { end, ..question }.as_bytes()).unwrap();
            assert_eq!(next_question(&theirs).err(), Some(Failure(libc::EINVAL)), "{end}");
        }
        told(&ours, &question.as_bytes()[1..]).unwrap();
        assert_eq!(next_question(&theirs).err(), Some(Failure(libc::EINVAL)));
        drop(ours);
        assert!(next_question(&theirs).unwrap().is_none());
    }
}
