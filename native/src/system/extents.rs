//! Ranges of a file with its own data, in blocks or dirty pages, and ranges that were allocated but
//! never written.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;

use crate::system::file_systems::{file_system_status, row_by, row_of};
use crate::system::files::status_of;

pub type Range = (i64, i64);

const FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
const FIEMAP_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
const EXTENT_UNKNOWN: u32 = 2;
const EXTENT_DELAYED: u32 = 4;
const EXTENT_UNWRITTEN: u32 = 0x800;
const EXTENT_SHARED: u32 = 0x2000;
const EXTENTS_PER_CALL: usize = 64;
const FSGETXATTR: libc::Ioctl = 0x801C_581F_u32 as libc::Ioctl;
/// The kernel's `struct fsxattr` has seven fields of 32 bits; the first has the flags.
const FSXATTR_FIELDS: usize = 7;
const FLAG_REALTIME: u32 = 1;
const FLAG_EXTENT_SIZE: u32 = 0x800;

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// The kernel's `struct fiemap`.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS_PER_CALL],
}

/// The ranges of [start, end) that have blocks or dirty pages, ascending.
///
/// XFS reserves blocks around those that a write copies from shared ones, and keeps them for some
/// minutes, even if the file has holes there. For `SEEK_DATA`, cached pages of such a hole are
/// data; for the extent map they are not.
pub fn present(fd: RawFd, start: i64, end: i64) -> Result<Vec<Range>> {
    let data = data_ranges(fd, start, end)?;
    let (Some(&(first, _)), Some(&(_, last))) = (data.first(), data.last()) else {
        return Ok(data);
    };
    if !row_of(fd)?.keeps_blocks_around_copies
        || common(&data, &extents(fd, first, last, 0, |_| true)?) == data
    {
        return Ok(data);
    }
    // A copy of a shared block is in the map only after it is written.
    Ok(common(&data, &extents(fd, first, last, FIEMAP_SYNC, |_| true)?))
}

/// The extents below `end` that are allocated and were never written, ascending. The last one may
/// extend beyond it. Dirty pages count as unwritten, or are written first if `sync` is set.
///
/// Empty on a file system without an extent map, such as tmpfs, whose files do not survive a crash.
pub fn unwritten(fd: RawFd, end: i64, sync: bool) -> Result<Vec<Range>> {
    let flags = if sync { FIEMAP_SYNC } else { 0 };
    extents_if_known(fd, end, flags, |extent| extent.flags & EXTENT_UNWRITTEN != 0)
}

/// As [`present`], without what was only allocated.
pub fn written(fd: RawFd, start: i64, end: i64) -> Result<Vec<Range>> {
    if status_of(fd)?.st_blocks == 0 || unwritten(fd, end, false)?.is_empty() {
        return present(fd, start, end);
    }
    // Dirty pages count as written, and show as such only once they are on the disk.
    let unwritten = unwritten(fd, end, true)?;
    let present = present(fd, start, end)?.into_iter();
    Ok(present.flat_map(|(start, end)| gaps(unwritten.iter().copied(), start, end)).collect())
}

/// The parts of [start, end) that are in none of `others`, which ascend.
pub fn gaps<T: Copy + Ord>(
    others: impl IntoIterator<Item = (T, T)>,
    start: T,
    end: T,
) -> impl Iterator<Item = (T, T)> {
    let ends = others.into_iter().chain([(end, end)]);
    let gaps = ends.scan(start, move |done, (low, high)| {
        let gap = (*done, low.min(end));
        *done = high.max(*done);
        Some(gap)
    });
    gaps.filter(|gap| gap.0 < gap.1)
}

/// Bytes below `end` in written blocks with a place on the disk, and bytes in other blocks. The
/// latter are allocated, or belong to dirty pages without a place, unless `sync` writes these
/// first. Zeros on a file system without an extent map.
pub fn local_bytes(fd: RawFd, end: i64, sync: bool) -> Result<(i64, i64)> {
    const NOT_YET: u32 = EXTENT_UNKNOWN | EXTENT_DELAYED | EXTENT_UNWRITTEN;
    let flags = if sync { FIEMAP_SYNC } else { 0 };
    let mut pending = 0;
    let below = |start: i64, stop: i64| (stop.min(end) - start).max(0);
    let written = extents_if_known(fd, end, flags, |extent| {
        let is_written = extent.flags & NOT_YET == 0;
        if !is_written {
            pending += below(extent.logical as i64, (extent.logical + extent.length) as i64);
        }
        is_written
    })?;
    Ok((written.into_iter().map(|(start, stop)| below(start, stop)).sum(), pending))
}

/// Bytes below `end` in blocks that other files or snapshots share, so that changes to this file do
/// not free them.
pub fn shared_bytes(fd: RawFd, end: i64) -> Result<i64> {
    Ok(shared(fd, end)?.iter().map(|&(start, last)| last.min(end) - start).sum())
}

fn shared(fd: RawFd, end: i64) -> Result<Vec<Range>> {
    if !row_of(fd)?.shares_blocks {
        return Ok(Vec::new());
    }
    extents_if_known(fd, end, 0, |extent| extent.flags & EXTENT_SHARED != 0)
}

/// The extents below `end` that pass the filter; none on a file system without an extent map.
fn extents_if_known(
    fd: RawFd,
    end: i64,
    flags: u32,
    wanted: impl FnMut(&Extent) -> bool,
) -> Result<Vec<Range>> {
    match extents(fd, 0, end, flags, wanted) {
        Err(error) if cannot_tell(&error) => Ok(Vec::new()),
        found => found,
    }
}

fn cannot_tell(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY))
}

fn data_ranges(fd: RawFd, start: i64, end: i64) -> Result<Vec<Range>> {
    let (mut found, mut position) = (Vec::new(), start);
    while position < end {
        let Some(start) = seek(fd, position, libc::SEEK_DATA)?.filter(|&at| at < end) else {
            break;
        };
        let Some(end_of_data) = seek(fd, start, libc::SEEK_HOLE)? else { break };
        position = end_of_data.min(end);
        found.push((start, position));
    }
    Ok(found)
}

/// How many bytes below `size`, the length of the file, lie in holes.
pub fn hole_bytes(fd: RawFd, size: i64) -> Result<i64> {
    if seek(fd, 0, libc::SEEK_HOLE)?.is_none_or(|at| at >= size) {
        return Ok(0);
    }
    Ok(size - data_ranges(fd, 0, size)?.iter().map(|(start, end)| end - start).sum::<i64>())
}

/// Returns whether any block of a range has data, or a dirty page.
pub fn has_data(fd: RawFd, range: &std::ops::Range<u64>) -> Result<bool> {
    let Ok(start) = i64::try_from(range.start) else { return Ok(false) };
    let found = seek(fd, start, libc::SEEK_DATA)?;
    Ok(found.is_some_and(|at| (at as u64) < range.end))
}

/// Returns None at the end of the file, even if the file was just truncated.
fn seek(fd: RawFd, position: i64, whence: libc::c_int) -> Result<Option<i64>> {
    // SAFETY: takes no pointers.
    let at = unsafe { libc::lseek64(fd, position, whence) };
    if at >= 0 {
        return Ok(Some(at));
    }
    let error = Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}

/// Returns whether the file system frees the blocks of a file only in units of several blocks, for
/// example XFS on a realtime device with large extents. If a unit is partly punched, the file
/// system overwrites that part with zeros, and the extent map still shows data.
pub fn has_large_units(fd: RawFd) -> Result<bool> {
    let file_system = file_system_status(fd)?;
    if !row_by(&file_system).has_realtime_files {
        return Ok(false);
    }
    // XFS reports the unit of a realtime file as its block size for I/O.
    let is_realtime = extended_fields(fd)?[0] & FLAG_REALTIME != 0;
    Ok(is_realtime && status_of(fd)?.st_blksize as i64 > file_system.f_bsize as i64)
}

/// Returns the extent size hint of a file in bytes; 0 if it has none.
///
/// XFS has these hints, and `qemu-img` sets one of 1 MiB for each new image. XFS then allocates
/// unwritten blocks around each block that is written into a hole.
pub fn extent_size_hint(fd: RawFd) -> Result<u64> {
    match extended_fields(fd) {
        Ok(fields) if fields[0] & FLAG_EXTENT_SIZE != 0 => Ok(fields[1].into()),
        Err(error) if !cannot_tell(&error) => Err(error),
        _ => Ok(0),
    }
}

fn extended_fields(fd: RawFd) -> Result<[u32; FSXATTR_FIELDS]> {
    let mut fields = [0_u32; FSXATTR_FIELDS];
    // SAFETY: the kernel writes exactly this number of fields.
    match unsafe { libc::ioctl(fd, FSGETXATTR, fields.as_mut_ptr()) } {
        0.. => Ok(fields),
        _ => Err(Error::last_os_error()),
    }
}

/// The extents that touch [start, end) and pass the filter, with adjacent ones merged.
fn extents(
    fd: RawFd,
    start: i64,
    end: i64,
    flags: u32,
    mut wanted: impl FnMut(&Extent) -> bool,
) -> Result<Vec<Range>> {
    let mut found: Vec<Range> = Vec::new();
    let mut position = start;
    while position < end {
        let mut map = Fiemap {
            start: position as u64,
            length: (end - position) as u64,
            flags,
            mapped: 0,
            count: EXTENTS_PER_CALL as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS_PER_CALL],
        };
        // SAFETY: `map` has room for the number of extents that it states.
        if unsafe { libc::ioctl(fd, FIEMAP, &raw mut map) } < 0 {
            return Err(Error::last_os_error());
        }
        let Some(extents) = map.extents.get(..map.mapped as usize) else {
            return Err(Error::new(ErrorKind::InvalidData, "more extents than were asked for"));
        };
        for extent in extents {
            let start = extent.logical as i64;
            position = start + extent.length as i64;
            match found.last_mut() {
                _ if !wanted(extent) => {}
                Some(last) if last.1 == start => last.1 = position,
                _ => found.push((start, position)),
            }
        }
        if extents.last().is_none_or(|extent| extent.flags & EXTENT_LAST != 0) {
            break;
        }
    }
    Ok(found)
}

/// The intersection of two ascending lists of ranges.
fn common(some: &[Range], others: &[Range]) -> Vec<Range> {
    let (mut found, mut at) = (Vec::new(), 0);
    for &(start, end) in some {
        while others.get(at).is_some_and(|other| other.1 <= start) {
            at += 1;
        }
        for other in others[at..].iter().take_while(|other| other.0 < end) {
            found.push((start.max(other.0), end.min(other.1)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn what_is_common_ascends_and_is_in_both() {
        let some = [(0, 10), (20, 30), (40, 50)];
        assert_eq!(common(&some, &[(0, 50)]), some);
        assert_eq!(common(&some, &[]), []);
        assert_eq!(common(&some, &[(5, 25), (26, 28)]), [(5, 10), (20, 25), (26, 28)]);
        assert_eq!(common(&some, &[(10, 20), (30, 40), (49, 60)]), [(49, 50)]);
    }
}
