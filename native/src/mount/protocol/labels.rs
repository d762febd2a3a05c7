//! The security label that a new inode is to get (`FUSE_SECURITY_CTX`): an extension after the names
//! of a request that makes one.

use std::ffi::CStr;

use zerocopy::FromBytes;

use crate::mount::protocol::abi::{ExtensionHeader, SecurityContext};
use crate::mount::protocol::message::{Answer, Failure, Request};

/// What extensions are padded to; the request's header has their length in such units.
const UNIT_BYTES: usize = 8;
/// A kind up to this is a number of labels that follow; beyond it, another extension.
const LABELS_MAX: u32 = 31;

/// An extended attribute that the kernel's security module gives to an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    pub name: &'a CStr,
    pub value: &'a [u8],
}

/// The labels of a request. Fails with EIO where lengths do not fit together.
pub fn labels<'a>(request: &Request<'a>) -> Answer<Vec<Label<'a>>> {
    let bytes = usize::from(request.header.extensions) * UNIT_BYTES;
    let mut found = Vec::new();
    if bytes == 0 {
        return Ok(found);
    }
    let start = request.rest.len().checked_sub(bytes).ok_or(MALFORMED)?;
    let mut left = &request.rest[start..];
    while !left.is_empty() {
        let (header, _) = ExtensionHeader::read_from_prefix(left).map_err(|_| MALFORMED)?;
        let length = header.length as usize;
        if length < size_of::<ExtensionHeader>() || length > left.len() {
            return Err(MALFORMED);
        }
        let (extension, rest) = left.split_at(length);
        if header.kind <= LABELS_MAX {
            add(&mut found, header.kind, &extension[size_of::<ExtensionHeader>()..])?;
        }
        left = rest;
    }
    Ok(found)
}

const MALFORMED: Failure = Failure(libc::EIO);

/// Each label: a header with the length of the value, the name, the value; padded together.
fn add<'a>(found: &mut Vec<Label<'a>>, count: u32, mut left: &'a [u8]) -> Answer<()> {
    for _ in 0..count {
        let (header, rest) = SecurityContext::read_from_prefix(left).map_err(|_| MALFORMED)?;
        let name = CStr::from_bytes_until_nul(rest).map_err(|_| MALFORMED)?;
        let value =
            rest.get(name.count_bytes() + 1..).and_then(|at| at.get(..header.bytes as usize));
        let value = value.ok_or(MALFORMED)?;
        found.push(Label { name, value });
        let used = size_of::<SecurityContext>() + name.count_bytes() + 1 + value.len();
        left = left.get(used.next_multiple_of(UNIT_BYTES)..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::protocol::abi::InHeader;

    /// A request with a name and an extension, as `fuse_setup_ext` of the kernel makes it.
    fn labelled(labels: &[(&str, &[u8])]) -> Vec<u8> {
        let mut extension = vec![0; 8];
        for (name, value) in labels {
            extension.extend((value.len() as u32).to_ne_bytes());
            extension.extend([0; 4]);
            extension.extend([name.as_bytes(), b"\0", value].concat());
            extension.resize(extension.len().next_multiple_of(8), 0);
        }
        let length = extension.len() as u32;
        extension[..4].copy_from_slice(&length.to_ne_bytes());
        extension[4..8].copy_from_slice(&(labels.len() as u32).to_ne_bytes());
        extension
    }

    fn found(rest: &[u8], extensions: usize) -> Answer<Vec<(String, Vec<u8>)>> {
        let header = InHeader { extensions: (extensions / 8) as u16, ..InHeader::default() };
        let request = Request { header, fixed: &[], rest };
        let owned =
            |label: Label| (label.name.to_string_lossy().into_owned(), label.value.to_vec());
        Ok(labels(&request)?.into_iter().map(owned).collect())
    }

    #[test]
    fn labels_follow_the_names() {
        let values: [(&str, &[u8]); 2] =
            [("security.selinux", b"system_u:object_r:usr_t:s0\0"), ("security.b", b"1")];
        for count in 0..=2 {
            let extension = labelled(&values[..count]);
            let rest = [b"name\0", &extension[..]].concat();
            let expected = values[..count].iter();
            let expected: Vec<_> = expected.map(|(a, b)| (a.to_string(), b.to_vec())).collect();
            assert_eq!(found(&rest, extension.len()), Ok(expected));
        }
        assert_eq!(found(b"name\0", 0), Ok(vec![]));
    }

    #[test]
    fn other_extensions_are_passed_over() {
        let groups = [16u32, 32, 1, 1000].map(u32::to_ne_bytes).concat();
        let extension = [&groups[..], &labelled(&[("security.a", b"1")])].concat();
        let expected = Ok(vec![("security.a".to_string(), b"1".to_vec())]);
        assert_eq!(found(&extension, extension.len()), expected);
    }

    #[test]
    fn lengths_that_do_not_fit_are_an_error() {
        let extension = labelled(&[("security.selinux", b"a label")]);
        assert_eq!(found(&extension, extension.len() + 8), Err(MALFORMED));
        for at in [0, 8] {
            for length in [u32::MAX, extension.len() as u32 + 1] {
                let mut wrong = extension.clone();
                wrong[at..at + 4].copy_from_slice(&length.to_ne_bytes());
                assert_eq!(found(&wrong, wrong.len()), Err(MALFORMED));
            }
        }
        let mut none = extension;
        none[..4].copy_from_slice(&0u32.to_ne_bytes());
        assert_eq!(found(&none, none.len()), Err(MALFORMED));
    }
}
