//! Ids of records: container and ordinal.

pub fn split(id: u64) -> (u32, usize) {
    ((id >> 32) as u32, (id & 0xFFFF_FFFF) as usize)
}
