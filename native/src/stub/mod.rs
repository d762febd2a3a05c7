//! Writes to stubs.

pub mod blocks;
pub mod open_stub;
pub mod ranges;
pub mod whole;
