//! The handle by which an inode opens again, in little memory.

const SHORT_BYTES: usize = 30;

/// Type (i32, little-endian), then the handle's bytes. Those of ext4, XFS and btrfs have 12, 16 and
/// 24 bytes with the type.
#[derive(Clone, PartialEq, Eq)]
pub enum Handle {
    Short { length: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

impl Handle {
    pub fn new(whole: &[u8]) -> Handle {
        let mut bytes = [0; SHORT_BYTES];
        match bytes.get_mut(..whole.len()) {
            Some(place) => {
                place.copy_from_slice(whole);
                Handle::Short { length: whole.len() as u8, bytes }
            }
            None => Handle::Long(whole.into()),
        }
    }

    pub fn whole(&self) -> &[u8] {
        match self {
            Handle::Short { length, bytes } => &bytes[..usize::from(*length)],
            Handle::Long(whole) => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_any_length_is_given_back() {
        for length in [0, 4, 12, 16, 24, SHORT_BYTES, SHORT_BYTES + 1, 132] {
            let whole: Vec<u8> = (0..length as u8).collect();
            assert_eq!(Handle::new(&whole).whole(), whole);
        }
        assert_eq!(size_of::<Handle>(), 32);
    }
}
