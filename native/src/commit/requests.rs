//! Files to commit, as they travel from a job to the process that serves the mount.

use std::ffi::CString;

use crate::format::bytes::layout;
use crate::format::ids::{DIGEST_BYTES, RecordId};
use crate::system::files::Identity;

layout! {
    pub mod fields: 64 bytes {
        INODE: 8 at 0,
        SIZE: 8 at 8,
        MTIME_NS: 8 at 16,
        CTIME_NS: 8 at 24,
        RECIPE: 8 at 32,
        DIGEST: 16 at 40,
        FLAGS: 2 at 56,
        PREVIOUS_LENGTH: 2 at 58,
        PATH_LENGTH: 4 at 60,
    }
}

/// A file as it was when it was read, and the recipe of its content.
#[derive(Clone)]
pub struct Request {
    pub path: CString,
    pub expected: Identity,
    pub recipe: RecordId,
    pub digest: [u8; DIGEST_BYTES],
    pub direct: bool,
    /// The attribute of a stub that gets another recipe; None for a plain file.
    pub previous: Option<Vec<u8>>,
    /// Whether the mount has offered the file in parts.
    pub in_parts: bool,
}

impl Request {
    /// Returns whether the request is for a complete plain file.
    pub fn is_plain(&self) -> bool {
        self.previous.is_none() && !self.in_parts
    }
}

const DIRECT: u16 = 1;
const IN_PARTS: u16 = 2;
const HAS_PREVIOUS: u16 = 4;

/// The requests one after the other: the fields, the path, the previous attribute.
pub fn to_bytes(requests: &[Request]) -> Vec<u8> {
    let mut out = Vec::new();
    for request in requests {
        let (path, expected) = (request.path.to_bytes(), request.expected);
        let previous = request.previous.as_deref().unwrap_or_default();
        let flags = [request.direct, request.in_parts, request.previous.is_some()];
        let flags = (0..).zip(flags).map(|(bit, is_set)| u16::from(is_set) << bit).sum::<u16>();
        let mut head = [0; fields::BYTES];
        fields::INODE.put(&mut head, &expected.inode.to_le_bytes());
        fields::SIZE.put(&mut head, &expected.size.to_le_bytes());
        fields::MTIME_NS.put(&mut head, &expected.mtime_ns.to_le_bytes());
        fields::CTIME_NS.put(&mut head, &expected.ctime_ns.to_le_bytes());
        fields::RECIPE.put(&mut head, &request.recipe.0.to_le_bytes());
        fields::DIGEST.put(&mut head, &request.digest);
        fields::FLAGS.put(&mut head, &flags.to_le_bytes());
        fields::PREVIOUS_LENGTH.put(&mut head, &(previous.len() as u16).to_le_bytes());
        fields::PATH_LENGTH.put(&mut head, &(path.len() as u32).to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(path);
        out.extend_from_slice(previous);
    }
    out
}

/// Returns None if the bytes are no requests.
pub fn from_bytes(mut data: &[u8]) -> Option<Vec<Request>> {
    let mut requests = Vec::new();
    while !data.is_empty() {
        let head = data.get(..fields::BYTES)?;
        let flags = fields::FLAGS.u16(head);
        let path_end = fields::BYTES.checked_add(fields::PATH_LENGTH.u32(head) as usize)?;
        let end = path_end + usize::from(fields::PREVIOUS_LENGTH.u16(head));
        let path = CString::new(data.get(fields::BYTES..path_end)?).ok()?;
        let previous = data.get(path_end..end)?;
        let has_previous = flags & HAS_PREVIOUS != 0;
        if flags > DIRECT | IN_PARTS | HAS_PREVIOUS || (!has_previous && !previous.is_empty()) {
            return None;
        }
        let expected = Identity {
            inode: fields::INODE.u64(head),
            size: fields::SIZE.u64(head) as i64,
            mtime_ns: fields::MTIME_NS.u64(head) as i64,
            ctime_ns: fields::CTIME_NS.u64(head) as i64,
        };
        requests.push(Request {
            path,
            expected,
            recipe: RecordId(fields::RECIPE.u64(head)),
            digest: *fields::DIGEST.of(head),
            direct: flags & DIRECT != 0,
            previous: has_previous.then(|| previous.to_vec()),
            in_parts: flags & IN_PARTS != 0,
        });
        data = &data[end..];
    }
    Some(requests)
}
