//! Pages in which the kernel has newer bytes than the mount: a program has written them through a
//! shared mapping, and the kernel writes them back later.
//!
//! `SEEK_DATA` and `SEEK_HOLE` ask the mount, which asks the file system below: that has a hole where
//! such a page is. The kernel writes nothing back before it asks, and tells of no mapping. But it writes
//! a file back when a program closes it. So before the mount reports a hole, another process opens the
//! file in the mount, and closes it (`worker.rs`).
//!
//! Another process, because a process that waits for its own mount cannot be killed: its descriptors
//! keep the kernel's end open, for which it waits. The worker has none of them.

pub mod client;
pub mod message;
pub mod search;
pub mod worker;
