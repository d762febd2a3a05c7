//! The generations that the kernel is told: 32 bits, as many as it hands on to NFS clients.
//!
//! A client could make handles by itself if it knew the generations below, which btrfs counts up.
//! Hence the kernel is told others: a code of number and generation that only a process with the
//! volume's secret can make.

use crate::mount::inodes::handle::Handle;

pub const SECRET_BYTES: usize = 32;

pub struct Generations([u8; SECRET_BYTES]);

impl Generations {
    pub fn new(secret: [u8; SECRET_BYTES]) -> Generations {
        Generations(secret)
    }

    /// That of the inode with a handle of the file system below, which has number and generation in
    /// it; 0 where there is none.
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
