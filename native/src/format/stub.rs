//! The attribute of a stub (docs/design/format.md, "Stub attribute"). `dedupd_core/format/stub.py`
//! is the equivalent in Python.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::layout;
use super::ids::{DIGEST_BYTES, FingerprintCheck, RecordId};

layout! {
    pub mod fields: 64 bytes {
        FORMAT: 1 at 0,
        FLAGS: 1 at 1,
        RESERVED: 2 at 2,
        CHECK: 4 at 4,
        RECIPE: 8 at 8,
        DIGEST: 16 at 16,
        COVERED: 8 at 32,
        MTIME_NS: 8 at 40,
        BINDING: 8 at 48,
        LOCAL: 8 at 56,
    }
}

layout! {
    /// The input of the binding's hash.
    mod binding: 12 bytes {
        INODE: 8 at 0,
        GENERATION: 4 at 8,
    }
}

pub const STUB_BYTES: usize = fields::BYTES;
/// Maximum length of a stub (as in `dedupd_core/stub/transition.py`).
pub const LENGTH_BYTES_MAX: u64 = (1 << 63) - (64 << 10);
const FORMAT: u8 = 2;

pub const COMMITTING: u8 = 1;
pub const RESTORING: u8 = 2;
/// The stub names a chunk instead of a recipe.
pub const DIRECT: u8 = 4;
/// The stub may have more local blocks than the attribute counts.
pub const WRITTEN: u8 = 8;
/// The recipe is no version of the file: it lacks the content of local blocks.
pub const PARTIAL: u8 = 16;
/// All known flags. An attribute with another flag is from a later version.
const STUB_FLAGS: u8 = COMMITTING | RESTORING | DIRECT | WRITTEN | PARTIAL;

/// The seeds of checksum and binding, which all stub attributes of a volume share.
#[derive(Clone, Copy)]
pub struct Seeds {
    pub attribute: u64,
    pub instance: u64,
}

impl Seeds {
    /// Binds an attribute to an inode. On any other inode, the attribute belongs to a copy.
    pub fn binding(self, inode: u64, generation: u32) -> u64 {
        let mut bound = [0; binding::BYTES];
        binding::INODE.put(&mut bound, &inode.to_le_bytes());
        binding::GENERATION.put(&mut bound, &generation.to_le_bytes());
        xxh3_64_with_seed(&bound, self.instance)
    }
}

/// The fields of an attribute.
#[derive(Clone)]
pub struct StubHead {
    pub flags: u8,
    pub recipe: RecordId,
    pub digest: [u8; DIGEST_BYTES],
    pub covered: u64,
    /// While committing or restoring: the time to restore.
    pub mtime_ns: i64,
    /// Result of [`Seeds::binding`].
    pub binding: u64,
    /// Bytes in local blocks; a minimum if the stub was written to since.
    pub local: u64,
}

impl StubHead {
    /// The start of the fingerprint that the stub names, as a recipe has it.
    pub fn fingerprint_check(&self) -> FingerprintCheck {
        FingerprintCheck::of(&self.digest)
    }

    /// The value of the attribute.
    pub fn to_bytes(&self, seed: u64) -> [u8; STUB_BYTES] {
        let mut value = [0; STUB_BYTES];
        fields::FORMAT.put(&mut value, &[FORMAT]);
        fields::FLAGS.put(&mut value, &[self.flags]);
        fields::RECIPE.put(&mut value, &self.recipe.0.to_le_bytes());
        fields::DIGEST.put(&mut value, &self.digest);
        fields::COVERED.put(&mut value, &self.covered.to_le_bytes());
        fields::MTIME_NS.put(&mut value, &self.mtime_ns.to_le_bytes());
        fields::BINDING.put(&mut value, &self.binding.to_le_bytes());
        fields::LOCAL.put(&mut value, &self.local.to_le_bytes());
        // The checksum covers the entire attribute, with zeros instead of the checksum.
        let check = xxh3_64_with_seed(&value, seed) as u32;
        fields::CHECK.put(&mut value, &check.to_le_bytes());
        value
    }
}

/// Decodes an attribute. None if it is damaged, belongs to another volume, or has parts that this
/// version does not know.
pub fn stub_head(value: &[u8], seed: u64) -> Option<StubHead> {
    let head: &[u8; STUB_BYTES] = value.try_into().ok()?;
    let is_known = fields::FORMAT.u8(head) == FORMAT
        && fields::RESERVED.u16(head) == 0
        && fields::FLAGS.u8(head) & !STUB_FLAGS == 0;
    if !is_known {
        return None;
    }
    let mut blank = *head;
    fields::CHECK.put(&mut blank, &[0; 4]);
    let is_sound = fields::CHECK.u32(head) == xxh3_64_with_seed(&blank, seed) as u32;
    is_sound.then(|| StubHead {
        flags: fields::FLAGS.u8(head),
        recipe: RecordId(fields::RECIPE.u64(head)),
        digest: *fields::DIGEST.of(head),
        covered: fields::COVERED.u64(head),
        mtime_ns: fields::MTIME_NS.u64(head) as i64,
        binding: fields::BINDING.u64(head),
        local: fields::LOCAL.u64(head),
    })
}

/// Returns whether `value` is the sound attribute of a stub of `size` bytes, entirely in the store
/// and without a transition in progress.
pub fn is_settled_stub(value: &[u8], size: i64, seed: u64) -> bool {
    stub_head(value, seed).is_some_and(|stub| {
        stub.flags & !DIRECT == 0
            && stub.local == 0
            && i64::try_from(stub.covered).is_ok_and(|covered| covered >= size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn encoded(flags: u8) -> [u8; STUB_BYTES] {
        let digest = [1; DIGEST_BYTES];
        StubHead {
            flags,
            recipe: RecordId(1),
            digest,
            covered: 2,
            mtime_ns: 3,
            binding: 4,
            local: 5,
        }
        .to_bytes(SEED)
    }

    #[test]
    fn flags_of_a_later_version_are_refused() {
        for flags in 0..=u8::MAX {
            let found = stub_head(&encoded(flags), SEED).map(|stub| stub.flags);
            assert_eq!(found, (flags < 32).then_some(flags));
        }
    }
}
