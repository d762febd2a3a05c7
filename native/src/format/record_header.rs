//! Headers of records (docs/format.md, "Record").

pub const RECORD_MAGIC: u32 = 0x4352_4444;
pub const RECORD_HEADER_BYTES: usize = 80;
pub const KIND_DATA: u8 = 0;
pub const KIND_FORWARD: u8 = 1;
pub const KIND_TOMBSTONE: u8 = 2;
