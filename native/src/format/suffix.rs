//! The suffix of a name, which determines the type of the file.

/// The part of a name after its last dot. Empty if there is no dot, or if the dot is the first
/// byte. In lower case, it equals the result of `extension_of` in `dedupd_core/config/rules.py`.
pub fn suffix(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&byte| byte == b'.') {
        None | Some(0) => &[],
        Some(at) => &name[at + 1..],
    }
}
