//! What names end in.

/// What follows the last dot of a name; empty where that is its first byte, or there is none. In
/// lower case it is what `extension_of` in `dedupd/policy.py` gives.
pub fn suffix(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&byte| byte == b'.') {
        None | Some(0) => &[],
        Some(at) => &name[at + 1..],
    }
}
