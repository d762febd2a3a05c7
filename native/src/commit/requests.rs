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
        DIRECT: 4 at 56,
        PATH_LENGTH: 4 at 60,
    }
}

/// A plain file, as it was when it was read, and the recipe of its content.
#[derive(Clone)]
pub struct Request {
    pub path: CString,
    pub expected: Identity,
    pub recipe: RecordId,
    pub digest: [u8; DIGEST_BYTES],
    pub direct: bool,
}

/// The requests one after the other: the fields, then the path.
pub fn to_bytes(requests: &[Request]) -> Vec<u8> {
    let mut out = Vec::new();
    for request in requests {
        let (path, expected) = (request.path.to_bytes(), request.expected);
        let mut head = [0; fields::BYTES];
        fields::INODE.put(&mut head, &expected.inode.to_le_bytes());
        fields::SIZE.put(&mut head, &expected.size.to_le_bytes());
        fields::MTIME_NS.put(&mut head, &expected.mtime_ns.to_le_bytes());
        fields::CTIME_NS.put(&mut head, &expected.ctime_ns.to_le_bytes());
        fields::RECIPE.put(&mut head, &request.recipe.0.to_le_bytes());
        fields::DIGEST.put(&mut head, &request.digest);
        fields::DIRECT.put(&mut head, &u32::from(request.direct).to_le_bytes());
        fields::PATH_LENGTH.put(&mut head, &(path.len() as u32).to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(path);
    }
    out
}

/// None where the bytes are no requests.
pub fn from_bytes(mut data: &[u8]) -> Option<Vec<Request>> {
    let mut requests = Vec::new();
    while !data.is_empty() {
        let head = data.get(..fields::BYTES)?;
        let direct = fields::DIRECT.u32(head);
        let end = fields::BYTES.checked_add(fields::PATH_LENGTH.u32(head) as usize)?;
        let path = CString::new(data.get(fields::BYTES..end)?).ok()?;
        if direct > 1 {
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
            direct: direct == 1,
        });
        data = &data[end..];
    }
    Some(requests)
}
