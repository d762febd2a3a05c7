//! The primitives of shared state. `native/models` replaces them with those of loom.

pub use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
