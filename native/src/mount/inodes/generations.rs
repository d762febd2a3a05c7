//! The generations that the kernel gets: 32 bits, which it forwards to NFS clients.
//!
//! If a client knew the generations below, which btrfs increments, it could construct handles. So
//! the kernel gets other numbers: a code of number and generation that only a process with the
//! volume's secret can compute.

use crate::mount::inodes::handle::Handle;

pub const SECRET_BYTES: usize = 32;

pub struct Generations([u8; SECRET_BYTES]);

impl Generations {
    pub fn new(secret: [u8; SECRET_BYTES]) -> Generations {
        Generations(secret)
    }

    /// The generation of the inode with a handle of the file system below. The handle contains
    /// number and generation. Returns 0 if there is none.
    pub fn of(&self, handle: &Handle) -> u64 {
        match handle.whole() {
            [] => 0,
            whole => {
                let code = blake3::keyed_hash(&self.0, whole);
                let first = code.as_bytes().first_chunk().copied().unwrap_or_default();
                u64::from(u32::from_le_bytes(first))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_handles_make_different_generations() {
        let (one, other) = (Generations::new([1; 32]), Generations::new([2; 32]));
        let (first, second) = (Handle::new(&[1, 0, 0, 0, 7]), Handle::new(&[1, 0, 0, 0, 8]));
        assert_eq!(one.of(&first), one.of(&first));
        assert_ne!(one.of(&first), one.of(&second));
        assert_ne!(one.of(&first), other.of(&first));
        assert_eq!(one.of(&Handle::new(&[])), 0);
        assert!(one.of(&first) <= u64::from(u32::MAX));
    }
}
