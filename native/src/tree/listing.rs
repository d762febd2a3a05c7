//! Deletions as users see them, a line of JSON for each.

use std::fmt::Write;

use crate::format::deletion::{NS, Row, head};
use crate::format::stub::WRITTEN;
use crate::system::files::CAPABILITY;

const SET_ID: u32 = 0o6000;

/// A deletion in the log of a number, kept at most `keep_ns`.
pub fn line(row: &Row, log: u32, keep_ns: u64) -> String {
    let fields = &row.fields;
    let mode = head::MODE.u32(fields);
    let lost_own_blocks = head::LOCAL.u64(fields) != 0 || head::FLAGS.u8(fields) & WRITTEN != 0;
    let length = if lost_own_blocks { head::COVERED } else { head::SIZE }.u64(fields);
    let seconds = |ns: u64| format!("{}.{:09}", ns / NS, ns % NS);
    let mut names = row.names.split(|byte| *byte == 0);
    let is_privileged = mode & SET_ID != 0 || names.any(|name| name == CAPABILITY.to_bytes());
    format!(
        concat!(
            r#"{{"id": "{}-{}", "path": "{}", "cause": "{}", "time_s": {}, "end_s": {}, "#,
            r#""length_bytes": {}, "uid": {}, "gid": {}, "mode": {}, "mtime_ns": {}, "#,
            r#""lost_own_blocks": {}, "privileged": {}}}"#,
            "\n"
        ),
        log,
        row.offset,
        quoted(&row.path),
        row.cause.name(),
        seconds(row.time_ns()),
        seconds(row.end_ns(keep_ns)),
        length,
        row.uid(),
        head::GID.u32(fields),
        mode,
        head::MTIME_NS.u64(fields) as i64,
        lost_own_blocks,
        is_privileged,
    )
}

/// A path within the quotes of a string of JSON, in ASCII. A byte that is not UTF-8 becomes the
/// surrogate that Python has for it in a path (PEP 383).
fn quoted(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for one in chunk.valid().chars() {
            match one {
                '"' | '\\' => text.extend(['\\', one]),
                ' '..='~' => text.push(one),
                _ => one.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escape(&mut text, *unit)),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(&mut text, 0xDC00 + u16::from(*byte)));
    }
    text
}

fn escape(text: &mut String, unit: u16) {
    write!(text, "\\u{unit:04x}").expect("a string takes all");
}
