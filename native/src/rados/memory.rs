//! Memory for chunks from a cluster.

use std::ffi::c_int;

const KEPT_BYTES: c_int = 16 << 20;
const LARGE_BYTES: c_int = 4 << 20;

/// Lets the process retain up to 16 MiB of freed memory per allocator arena.
///
/// By default, memory beyond 128 KiB is returned to the system, and longer pieces immediately. So
/// every page of a train would be new for this program and for Ceph's library. Two threads that
/// allocated and freed chunks of 80 KiB took 110 µs for each (19 page faults), and 2 µs with this.
pub fn keep_freed_memory() {
    // SAFETY: parameters of the allocator, which may change at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}
