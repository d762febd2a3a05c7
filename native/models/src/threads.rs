//! Replaces `crate::threads` of the native crate.

#[path = "../../src/threads/lock.rs"]
pub mod lock;

/// The primitives of loom.
pub mod sync {
    pub use loom::sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
    };
}
