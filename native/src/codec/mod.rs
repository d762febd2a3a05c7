//! Payloads of records: compression, and whether it would pay.

pub mod compressibility;
pub mod delta;
pub mod dictionary;
pub mod encode;
