//! Work shared among threads.

pub mod lock;
pub mod pool;
pub mod processors;
pub mod read_ahead;
pub mod scoped;
pub mod sync;
