//! The recipe of a file version in a cluster (docs/design/format.md, "Recipe part").

use xxhash_rust::xxh3::xxh3_64;

use crate::format::bytes::layout;
use crate::format::ids::{DIGEST_BYTES, FINGERPRINT_BYTES, Fingerprint};

layout! {
    pub mod fields: 96 bytes {
        MAGIC: 4 at 0,
        FORMAT: 2 at 4,
        RESERVED: 2 at 6,
        PART: 4 at 8,
        PARTS: 4 at 12,
        COUNT: 8 at 16,
        LENGTH: 8 at 24,
        VERSION: 16 at 32,
        VOLUME_ID: 16 at 48,
        INODE: 8 at 64,
        GENERATION: 4 at 72,
        RESERVED_TOO: 4 at 76,
        BODY_CHECKSUM: 8 at 80,
        CHECKSUM: 8 at 88,
    }
}

layout! {
    pub mod entry: 44 bytes {
        OFFSET: 8 at 0,
        LENGTH: 4 at 8,
        FINGERPRINT: 32 at 12,
    }
}

const MAGIC: [u8; 4] = *b"DDRM";
const FORMAT: u16 = 1;

/// Maximum size of a part.
pub const PART_BYTES_MAX: usize = 4 << 20;

/// The name of a file version.
pub type Version = [u8; DIGEST_BYTES];

/// A chunk of a file.
pub struct Entry {
    pub offset: u64,
    pub length: u32,
    pub fingerprint: Fingerprint,
}

/// One object of a recipe.
pub struct RecipePart {
    pub parts: u32,
    /// Bytes of the file in this part.
    pub length: u64,
    pub entries: Vec<Entry>,
}

impl RecipePart {
    /// Returns None if the object is not that part of the version's recipe, or has another format.
    pub fn of(object: &[u8], version: &Version, part: u32) -> Option<RecipePart> {
        let (head, body) = object.split_at_checked(fields::BYTES)?;
        let parts = fields::PARTS.u32(head);
        let is_sound = *fields::MAGIC.of(head) == MAGIC
            && fields::CHECKSUM.u64(head) == xxh3_64(&head[..fields::CHECKSUM.start])
            && fields::FORMAT.u16(head) == FORMAT
            && fields::VERSION.of(head) == version
            && fields::PART.u32(head) == part
            && part < parts
            && fields::COUNT.u64(head).checked_mul(entry::BYTES as u64) == Some(body.len() as u64)
            && fields::BODY_CHECKSUM.u64(head) == xxh3_64(body);
        let entries = body.chunks_exact(entry::BYTES).map(|row| Entry {
            offset: entry::OFFSET.u64(row),
            length: entry::LENGTH.u32(row),
            fingerprint: *entry::FINGERPRINT.of(row),
        });
        is_sound.then(|| RecipePart {
            parts,
            length: fields::LENGTH.u64(head),
            entries: entries.collect(),
        })
    }
}

/// The object of a part, without the suffix that the library requires.
pub fn recipe_object(version: &Version, part: u32) -> String {
    let name = format!("m.{}", hex(version));
    if part == 0 { name } else { format!("{name}.{part}") }
}

/// The object of a chunk.
pub fn chunk_object(fingerprint: &Fingerprint) -> String {
    format!("c.{}", hex(fingerprint))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * FINGERPRINT_BYTES);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = [0xAB; DIGEST_BYTES];

    /// Part 1 of 3, of two chunks, as written by `dedupd_core/format/cluster`.
    fn object() -> Vec<u8> {
        let mut body = Vec::new();
        for at in 0..2_u8 {
            body.extend(u64::from(at).to_le_bytes());
            body.extend([9, 0, 0, 0]);
            body.extend([at; FINGERPRINT_BYTES]);
        }
        let mut head = [0; fields::BYTES];
        fields::MAGIC.put(&mut head, &MAGIC);
        fields::FORMAT.put(&mut head, &FORMAT.to_le_bytes());
        fields::PART.put(&mut head, &[1, 0, 0, 0]);
        fields::PARTS.put(&mut head, &[3, 0, 0, 0]);
        fields::COUNT.put(&mut head, &2_u64.to_le_bytes());
        fields::LENGTH.put(&mut head, &77_u64.to_le_bytes());
        fields::VERSION.put(&mut head, &VERSION);
        fields::BODY_CHECKSUM.put(&mut head, &xxh3_64(&body).to_le_bytes());
        let check = xxh3_64(&head[..fields::CHECKSUM.start]);
        fields::CHECKSUM.put(&mut head, &check.to_le_bytes());
        [&head[..], &body].concat()
    }

    #[test]
    fn a_part_has_its_chunks() {
        let part = RecipePart::of(&object(), &VERSION, 1).unwrap();
        assert_eq!((part.parts, part.length, part.entries.len()), (3, 77, 2));
        let last = &part.entries[1];
        assert_eq!((last.offset, last.length, last.fingerprint), (1, 9, [1; FINGERPRINT_BYTES]));
    }

    #[test]
    fn any_change_of_a_part_is_found() {
        for at in 0..object().len() {
            let mut changed = object();
            changed[at] ^= 1;
            assert!(RecipePart::of(&changed, &VERSION, 1).is_none(), "{at}");
        }
        assert!(RecipePart::of(&object(), &VERSION, 0).is_none());
        assert!(RecipePart::of(&object(), &[0; DIGEST_BYTES], 1).is_none());
        assert!(RecipePart::of(&object()[..fields::BYTES], &VERSION, 1).is_none());
    }

    #[test]
    fn objects_have_their_names() {
        let version = "ab".repeat(DIGEST_BYTES);
        assert_eq!(recipe_object(&VERSION, 0), format!("m.{version}"));
        assert_eq!(recipe_object(&VERSION, 12), format!("m.{version}.12"));
        let fingerprint = std::array::from_fn(|at| at as u8 * 8);
        assert!(chunk_object(&fingerprint).starts_with("c.0008101820283038404850586068"));
    }
}
