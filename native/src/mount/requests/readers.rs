//! Readers of stubs, and what they are expected to read next.

use std::ops::Range;
use std::sync::Mutex;

use crate::threads::lock::locked;

/// The kernel's requests are at least so long where it reads ahead.
const AHEAD_BYTES_MIN: u64 = 128 << 10;
/// Of the cache, for each of the readers that are told apart.
const AHEAD_SHARE: u64 = 16;
const READERS_MAX: usize = 16;

/// A reader of one part after the other.
struct Reader {
    node: u64,
    /// Where it goes on.
    next: u64,
    /// How far chunks were loaded ahead.
    ahead: u64,
}

/// Those who read stubs in sequence, told apart by where they read; the last one to read is the last.
#[derive(Default)]
pub struct Readers(Mutex<Vec<Reader>>);

impl Readers {
    /// Notes a read. What to load up to `ahead` bytes ahead, of `covered` bytes that there are, into a
    /// cache of `cache_bytes`, if the reader is in sequence.
    pub fn follow(
        &self,
        node: u64,
        range: &Range<u64>,
        covered: u64,
        ahead: u64,
        cache_bytes: u64,
    ) -> Option<Range<u64>> {
        follow(&mut locked(&self.0), node, range, covered, ahead, cache_bytes / AHEAD_SHARE)
    }
}

fn follow(
    readers: &mut Vec<Reader>,
    node: u64,
    range: &Range<u64>,
    covered: u64,
    ahead: u64,
    bytes_max: u64,
) -> Option<Range<u64>> {
    let length = range.end - range.start;
    // Two requests of a reader may come in either order.
    let goes_on =
        |reader: &Reader| reader.node == node && range.start.abs_diff(reader.next) <= length;
    let Some(at) = readers.iter().position(goes_on) else {
        if readers.len() >= READERS_MAX {
            readers.remove(0);
        }
        readers.push(Reader { node, next: range.end, ahead: range.end });
        return None;
    };
    let mut reader = readers.remove(at);
    reader.next = reader.next.max(range.end);
    let start = reader.ahead.max(reader.next);
    let end = (reader.next + ahead.min(bytes_max)).min(covered);
    let is_wanted = length >= AHEAD_BYTES_MIN && length <= bytes_max && start < end;
    if is_wanted {
        reader.ahead = end;
    }
    readers.push(reader);
    is_wanted.then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = AHEAD_BYTES_MIN;
    const COVERED: u64 = 10 * LENGTH;

    fn read(readers: &mut Vec<Reader>, node: u64, at: u64) -> Option<(u64, u64)> {
        let range = at * LENGTH..(at + 1) * LENGTH;
        let ahead = follow(readers, node, &range, COVERED, LENGTH, 1 << 30)?;
        Some((ahead.start / LENGTH, ahead.end / LENGTH))
    }

    #[test]
    fn a_reader_in_sequence_gets_the_next_part_once() {
        let readers = &mut Vec::new();
        assert_eq!(read(readers, 1, 0), None);
        assert_eq!(read(readers, 1, 1), Some((2, 3)));
        assert_eq!(read(readers, 1, 3), Some((4, 5)));
        assert_eq!(read(readers, 1, 2), None);
        assert_eq!(read(readers, 1, 8), None);
        assert_eq!(read(readers, 1, 9), None);
    }

    #[test]
    fn far_ahead_is_as_far_as_the_cache_allows() {
        let readers = &mut Vec::new();
        let mut read = |at: u64| {
            let range = at * LENGTH..(at + 1) * LENGTH;
            let ahead = follow(readers, 1, &range, COVERED, 8 * LENGTH, 4 * LENGTH)?;
            Some((ahead.start / LENGTH, ahead.end / LENGTH))
        };
        assert_eq!(read(0), None);
        assert_eq!(read(1), Some((2, 6)));
        assert_eq!(read(2), Some((6, 7)));
        assert_eq!(read(3), Some((7, 8)));
    }

    #[test]
    fn readers_of_several_files_and_places_are_told_apart() {
        let readers = &mut Vec::new();
        for (node, at) in [(1, 0), (1, 5), (2, 5)] {
            assert_eq!(read(readers, node, at), None);
        }
        assert_eq!(read(readers, 2, 6), Some((7, 8)));
        assert_eq!(read(readers, 1, 6), Some((7, 8)));
        assert_eq!(read(readers, 1, 1), Some((2, 3)));
        assert_eq!(read(readers, 3, 2), None);
    }

    #[test]
    fn what_the_cache_has_no_room_for_is_not_loaded() {
        let readers = &mut Vec::new();
        for at in [0, 1, 2] {
            let range = at * LENGTH..(at + 1) * LENGTH;
            assert_eq!(follow(readers, 1, &range, COVERED, LENGTH, LENGTH - 1), None);
        }
    }
}
