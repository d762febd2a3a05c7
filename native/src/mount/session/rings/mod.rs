//! Requests through io_uring.

pub mod crew;
pub mod entry;
pub mod seat;
