//! Zeroed memory for plain values, which is returned to the system when it is dropped.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

/// With memory pages of this size, a look-up has one cache miss less.
const HUGE_PAGE_BYTES: usize = 2 << 20;

const LINE_BYTES: usize = 64;

/// A type without a destructor, for which zeros are a valid value.
///
/// # Safety
///
/// Every byte of a value may be 0.
pub unsafe trait Plain: Copy {}

/// `count` values, aligned to a cache line, or in separate huge pages if they fill one.
pub struct Memory<T: Plain> {
    values: NonNull<T>,
    count: usize,
}

// SAFETY: only the owner has the memory, and values are plain.
unsafe impl<T: Plain + Send> Send for Memory<T> {}
// SAFETY: as above; shared memory can only be read.
unsafe impl<T: Plain + Sync> Sync for Memory<T> {}

impl<T: Plain> Memory<T> {
    /// Allocates at least one value.
    pub fn new(count: usize) -> Memory<T> {
        let layout = Memory::<T>::layout(count);
        let memory = if Memory::<T>::is_huge(layout) {
            map(layout.size())
        } else {
            // SAFETY: there is at least one value, so the layout is not empty.
            unsafe { alloc_zeroed(layout) }
        };
        match NonNull::new(memory.cast::<T>()) {
            Some(values) => Memory { values, count },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(count: usize) -> Layout {
        assert!(count > 0 && size_of::<T>() > 0);
        let align = align_of::<T>().max(LINE_BYTES);
        // Groups have at most 2^17 buckets, far below the limit.
        Layout::array::<T>(count)
            .and_then(|layout| layout.align_to(align))
            .unwrap_or_else(|_| unreachable!())
    }

    fn is_huge(layout: Layout) -> bool {
        layout.size() >= HUGE_PAGE_BYTES
    }
}

/// Zeros from the system, aligned to a huge page; null if the system has no memory.
///
/// Heap memory would not be returned while memory at a higher address is in use.
fn map(bytes: usize) -> *mut u8 {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let mapped = bytes + HUGE_PAGE_BYTES;
    // SAFETY: a new mapping at any free address.
    let start = unsafe { libc::mmap(null_mut(), mapped, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return null_mut();
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(HUGE_PAGE_BYTES);
    let after = HUGE_PAGE_BYTES - before;
    // SAFETY: the trimmed parts lie in the mapping, in complete pages without references. Huge
    // pages are a hint, whose failure does no harm.
    unsafe {
        let begin = start.add(before);
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        libc::munmap(begin.add(bytes.next_multiple_of(4096)).cast(), after);
        libc::madvise(begin.cast(), bytes, libc::MADV_HUGEPAGE);
        begin
    }
}

impl<T: Plain> Deref for Memory<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: only this value has the memory, and zeros were values from the start.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.count) }
    }
}

impl<T: Plain> DerefMut for Memory<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and no other reference exists.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.count) }
    }
}

impl<T: Plain> Drop for Memory<T> {
    fn drop(&mut self) {
        let layout = Memory::<T>::layout(self.count);
        let memory = self.values.as_ptr().cast::<u8>();
        // SAFETY: it was mapped with this length, or allocated with this layout.
        unsafe {
            if Memory::<T>::is_huge(layout) {
                libc::munmap(memory.cast(), layout.size());
            } else {
                dealloc(memory, layout);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: 0 is a valid number.
    unsafe impl Plain for u32 {}

    #[test]
    fn all_of_it_is_zero_and_can_be_written() {
        for count in [1, 1000, HUGE_PAGE_BYTES / 4, HUGE_PAGE_BYTES / 4 + 1000, 3 << 19] {
            let mut memory = Memory::<u32>::new(count);
            assert!(memory.len() == count && memory.iter().all(|&value| value == 0));
            assert_eq!(memory.as_ptr() as usize % LINE_BYTES, 0);
            memory.fill(7);
            assert!(memory.iter().all(|&value| value == 7));
        }
    }
}
