//! Memory of chunks on their way.

use std::ffi::c_int;

const KEPT_BYTES: c_int = 16 << 20;
const LARGE_BYTES: c_int = 4 << 20;

/// Lets the process keep up to 16 MiB that it has let go of, in each of the allocator's arenas.
///
/// By default 128 KiB go back to the system, and a longer piece at once: of trains that come and go
/// every page is new, then, for this program and for Ceph's library. Two threads that made and
/// dropped chunks of 80 KiB took 110 µs for each (19 page faults), and 2 µs with this.
pub fn keep_freed_memory() {
    // SAFETY: numbers of the allocator, which may be changed at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}
