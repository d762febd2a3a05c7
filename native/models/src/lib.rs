//! Modules of the native crate, compiled with the primitives of loom instead of those of the
//! standard library. `tests` explores every interleaving of the threads that use them, and every
//! value that a load may return in the memory model.

pub mod mount;
pub mod threads;

#[path = "../../src/mount/inodes/changes.rs"]
pub mod changes;
#[path = "../../src/mount/session/turn.rs"]
pub mod turn;
#[path = "../../src/mount/inodes/watched.rs"]
pub mod watched;
