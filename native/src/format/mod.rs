//! Layouts on disk (docs/format.md): bytes to values and back, without I/O.

pub mod bytes;
pub mod ids;
pub mod recipe;
pub mod record_header;
pub mod stub;
pub mod suffix;
pub mod table_entry;
