//! The forms of file handles: a row for each. The handles of a file system show its form. Mount
//! options may change the form: XFS has two.

/// Bytes of a handle's kind (i32, little-endian), before its body.
pub const KIND_BYTES: usize = 4;

/// A body starts with the number of an inode. The generation follows after `between_bytes`.
struct HandleForm {
    /// As in `include/linux/exportfs.h`.
    kind: i32,
    inode_bytes: usize,
    /// Bytes of the subvolume, which all its handles share.
    between_bytes: usize,
    /// The bytes after the generation belong to the parent.
    has_parent: bool,
}

const fn form(kind: i32, inode_bytes: usize, between_bytes: usize, has_parent: bool) -> HandleForm {
    HandleForm { kind, inode_bytes, between_bytes, has_parent }
}

const HANDLE_FORMS: [HandleForm; 7] = [
    form(0x01, 4, 0, false), // ext4, and XFS with `inode32`
    form(0x02, 4, 0, true),
    form(0x81, 8, 0, false), // XFS
    form(0x82, 8, 0, true),
    form(0x4d, 8, 8, false), // btrfs
    form(0x4e, 8, 8, true),
    form(0x4f, 8, 8, true), // of a parent in another subvolume
];

/// The form of a handle, and its body. None for a kind without a row.
fn form_of(handle: &[u8]) -> Option<(&'static HandleForm, &[u8])> {
    let (kind, body) = handle.split_first_chunk::<KIND_BYTES>()?;
    let kind = i32::from_le_bytes(*kind);
    Some((HANDLE_FORMS.iter().find(|form| form.kind == kind)?, body))
}

/// The generation of the inode of a handle, which distinguishes it from an earlier inode of the
/// same number. None for an unknown kind.
pub fn generation_in(handle: &[u8]) -> Option<u32> {
    let (form, body) = form_of(handle)?;
    body.get(form.inode_bytes + form.between_bytes..)?
        .first_chunk()
        .copied()
        .map(u32::from_le_bytes)
}

/// The handle of an inode, in the form of a `sample`: the handle of any other inode of the same
/// file system, or subvolume. None if the form is unknown, or has no room for the number.
pub fn handle_of(sample: &[u8], inode: u64, generation: u32) -> Option<Vec<u8>> {
    let (form, body) = form_of(sample)?;
    let number = inode.to_le_bytes();
    let (own, beyond) = number.split_at(form.inode_bytes);
    if form.has_parent || beyond.iter().any(|&byte| byte != 0) {
        return None;
    }
    let between = body.get(form.inode_bytes..form.inode_bytes + form.between_bytes)?;
    Some([&sample[..KIND_BYTES], own, between, &generation.to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::{generation_in, handle_of};

    fn sample(kind: i32, body: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes(), body].concat()
    }

    #[test]
    fn a_handle_has_number_and_generation_where_its_form_says() {
        for (kind, body, made) in [
            (0x01, vec![9; 8], vec![5, 0, 0, 0, 7, 0, 0, 0]),
            (0x81, vec![9; 12], vec![5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]),
            (
                0x4d,
                [vec![9; 8], vec![3; 8], vec![9; 4]].concat(),
                [vec![5, 0, 0, 0, 0, 0, 0, 0], vec![3; 8], vec![7, 0, 0, 0]].concat(),
            ),
        ] {
            let handle = handle_of(&sample(kind, &body), 5, 7).unwrap();
            assert_eq!(handle, sample(kind, &made));
            assert_eq!(generation_in(&handle), Some(7));
        }
    }

    #[test]
    fn no_handle_is_made_of_what_has_no_form_or_no_room() {
        assert_eq!(handle_of(&sample(0x01, &[0; 8]), 1 << 32, 7), None);
        assert_eq!(handle_of(&sample(0x02, &[0; 16]), 5, 7), None); // the parent is not known
        assert_eq!(handle_of(&sample(0xb1, &[0; 16]), 5, 7), None);
        assert_eq!(handle_of(&sample(0x4d, &[0; 8]), 5, 7), None);
        assert_eq!(handle_of(&[1], 5, 7), None);
        assert_eq!(generation_in(&sample(0x01, &[0; 6])), None);
    }
}
