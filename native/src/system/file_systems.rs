//! The file systems of volumes, or below them: a row for each, for native code and Python
//! (`dedupd_core.system.file_system`).

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// The properties of a file system. A new one is one more row of [`FILE_SYSTEMS`].
#[derive(Clone, Copy, Debug)]
pub struct FileSystemRow {
    /// The name in the mount table.
    pub name: &'static str,
    /// The usual spelling.
    pub title: &'static str,
    /// The number that `statfs` reports.
    pub magic: i64,
    /// It keeps what stubs rely on, even after a power failure (docs/design/crash-safety.md).
    pub is_supported: bool,
    /// Two files, or a file and a snapshot, can share a block.
    pub shares_blocks: bool,
    /// It keeps blocks for some minutes around those that a write copies from shared ones, even if
    /// the file has holes there.
    pub keeps_blocks_around_copies: bool,
    /// It can have files on a realtime device, in extents of several blocks.
    pub has_realtime_files: bool,
    /// Punching a range frees its blocks even if other bytes of the extent are still in use.
    pub punching_frees: bool,
    /// The number of an inode alone opens it: any generation in the handle is accepted.
    pub opens_any_generation: bool,
    /// The generations of inodes are random, so number and generation of an inode are never those
    /// of another inode by chance.
    pub has_random_generations: bool,
}

const OTHER: FileSystemRow = FileSystemRow {
    name: "",
    title: "",
    magic: 0,
    is_supported: false,
    shares_blocks: false,
    keeps_blocks_around_copies: false,
    has_realtime_files: false,
    punching_frees: true,
    opens_any_generation: true,
    has_random_generations: false,
};

pub static FILE_SYSTEMS: [FileSystemRow; 8] = [
    FileSystemRow {
        name: "ext4", // also ext2 and ext3, which the mount table distinguishes if necessary
        title: "ext4",
        magic: 0xEF53,
        is_supported: true,
        has_random_generations: true,
        ..OTHER
    },
    FileSystemRow {
        name: "xfs",
        title: "XFS",
        magic: 0x5846_5342,
        is_supported: true,
        shares_blocks: true,
        keeps_blocks_around_copies: true,
        has_realtime_files: true,
        opens_any_generation: false, // it reports them (`XFS_IOC_BULKSTAT`)
        has_random_generations: true,
        ..OTHER
    },
    FileSystemRow {
        name: "btrfs",
        title: "btrfs",
        magic: 0x9123_683E,
        is_supported: true,
        shares_blocks: true,
        // It keeps an extent as long as any of its bytes is in use. After punching 189 MiB in
        // payloads of 80 KB, `statfs` showed no additional free space.
        punching_frees: false,
        ..OTHER
    },
    FileSystemRow {
        name: "bcachefs",
        title: "bcachefs",
        magic: 0xCA45_1A4E,
        shares_blocks: true,
        ..OTHER
    },
    FileSystemRow {
        name: "ocfs2",
        title: "OCFS2",
        magic: 0x7461_636F,
        shares_blocks: true,
        ..OTHER
    },
    FileSystemRow { name: "tmpfs", title: "tmpfs", magic: 0x0102_1994, ..OTHER },
    FileSystemRow { name: "ramfs", title: "ramfs", magic: 0x8584_58F6, ..OTHER },
    FileSystemRow { name: "overlay", title: "overlayfs", magic: 0x794C_7630, ..OTHER },
];

/// The row of the file system of `fd`. Without a row, the properties of most file systems.
pub fn row_of(fd: RawFd) -> Result<FileSystemRow> {
    Ok(row_by(&file_system_status(fd)?))
}

/// As [`row_of`], from the result of `statfs`.
pub fn row_by(status: &libc::statfs64) -> FileSystemRow {
    let magic = status.f_type;
    let row = FILE_SYSTEMS.iter().find(|row| row.magic == magic);
    row.copied().unwrap_or(FileSystemRow { magic, ..OTHER })
}

/// The result of `statfs` for the file system of `fd`.
pub fn file_system_status(fd: RawFd) -> Result<libc::statfs64> {
    let mut status = MaybeUninit::<libc::statfs64>::uninit();
    // SAFETY: `status` is writable; it is read only if the call has filled it.
    unsafe {
        if libc::fstatfs64(fd, status.as_mut_ptr()) < 0 {
            return Err(Error::last_os_error());
        }
        Ok(status.assume_init())
    }
}
