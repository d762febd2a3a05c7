//! What the study calls the type of a file.

/// The type of the file `name`: its extension in small letters, or nothing.
///
/// Versions after it are no type. They are numbers, parts that begin with a digit and have more than
/// letters and digits, and all behind `.so.` and a number that begins with a digit: `libc.so.6`,
/// `libLLVM.so.22.1-rust-1.95.0-stable` and `libssl.so.1.0.2k` are `so`.
pub fn file_type(name: &[u8]) -> String {
    let mut rest = versioned_library(name).unwrap_or(name);
    while let Some((stem, extension)) = split_extension(rest) {
        if !is_version(extension) {
            return shown(extension).to_lowercase();
        }
        rest = stem;
    }
    String::new()
}

/// Stem and extension; a name that begins with its only dot has none.
fn split_extension(name: &[u8]) -> Option<(&[u8], &[u8])> {
    match name.iter().rposition(|&byte| byte == b'.') {
        None | Some(0) => None,
        Some(dot) => Some((&name[..dot], &name[dot + 1..])),
    }
}

fn is_version(extension: &[u8]) -> bool {
    extension.first().is_some_and(u8::is_ascii_digit)
        && (extension.iter().all(u8::is_ascii_digit)
            || !extension.iter().all(u8::is_ascii_alphanumeric))
}

/// `lib.so` where the name is that and a version.
fn versioned_library(name: &[u8]) -> Option<&[u8]> {
    let mut rest = name;
    let mut first: &[u8] = b"";
    loop {
        let (stem, extension) = split_extension(rest)?;
        if extension.eq_ignore_ascii_case(b"so") {
            let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
            return is_number.then_some(rest);
        }
        if !extension.first().is_some_and(u8::is_ascii_digit) {
            return None;
        }
        (rest, first) = (stem, extension);
    }
}

/// Bytes as text, those that are no UTF-8 as `\x` and their value.
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}
