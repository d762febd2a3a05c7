//! The suffix of a name, which tells the type of the file.

/// The part of a name after its last dot; empty where that is its first byte, or there is none. In
/// lower case it is the result of `extension_of` in `dedupd_core/config/rules.py`.
pub fn suffix(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&byte| byte == b'.') {
        None | Some(0) => &[],
        Some(at) => &name[at + 1..],
    }
}
