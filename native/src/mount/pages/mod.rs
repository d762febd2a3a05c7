//! Pages with newer bytes than the mount: a program has written them through a shared mapping, and
//! the kernel writes them back later.
//!
//! The kernel asks the mount for `SEEK_DATA` and `SEEK_HOLE`, and the mount asks the file system
//! below, which has a hole at such a page. The kernel writes no page back before it asks, and does
//! not report mappings. But it writes a file back when a program closes it. So before the mount
//! reports a hole, another process opens and closes the file in the mount (`worker.rs`).
//!
//! A process that waits for its own mount cannot be killed: its descriptors keep the kernel's end
//! open, for which it waits. The worker has none of these descriptors.

pub mod client;
pub mod message;
pub mod search;
pub mod worker;
