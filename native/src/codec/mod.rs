//! Payloads of records: compression, and a test whether it is worthwhile.

pub mod compressibility;
pub mod delta;
pub mod dictionary;
pub mod encode;
