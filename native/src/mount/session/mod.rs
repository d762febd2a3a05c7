//! Transports of requests from the kernel, and from native code to Python and libfuse.

pub mod answers;
pub mod device;
pub mod handed_over;
pub mod helpers;
pub mod line;
pub mod overflow_readers;
pub mod pace;
pub mod reads;
pub mod refused_writes;
pub mod returns;
pub mod rings;
pub mod shared;
pub mod steps;
pub mod syncs;
pub mod turn;
