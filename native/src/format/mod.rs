//! Layouts on disk (docs/design/format.md): conversion between bytes and values, without I/O.
//!
//! This folder has each layout of the document that native code reads or writes. No code outside
//! knows an offset of a layout.

pub mod bytes;
pub mod cluster;
pub mod codec;
pub mod deletion;
pub mod ids;
pub mod lmdb_pages;
pub mod recipe;
pub mod record_header;
pub mod saved_index;
pub mod saved_notes;
pub mod stream;
pub mod stub;
pub mod suffix;
pub mod table_entry;
pub mod table_map;

#[cfg(test)]
mod document;
#[cfg(test)]
mod properties;
