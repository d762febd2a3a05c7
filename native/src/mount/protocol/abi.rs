//! The structures of `linux/fuse.h`, protocol 7.45 (Linux 6.18), byte for byte.
//!
//! Names are those of the header, in Rust's spelling. Numbers have the byte order of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of the root directory.
pub const ROOT: u64 = 1;

macro_rules! messages {
    ($($(#[$attribute:meta])* $name:ident: $bytes:literal { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name {
            $(pub $field: $kind,)*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

messages! {
    /// At the start of each request.
    InHeader: 40 {
        length: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extensions: u16,
        padding: u16,
    }

    /// At the start of each answer. `error` is 0 or a negative error number.
    OutHeader: 16 {
        length: u32,
        error: i32,
        unique: u64,
    }

    InitIn: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }
    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_granularity: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }

    Attributes: 88 {
        inode: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        links: u32,
        uid: u32,
        gid: u32,
        device: u32,
        block_bytes: u32,
        flags: u32,
    }
    EntryOut: 128 {
        node: u64,
        generation: u64,
        entry_valid_s: u64,
        attributes_valid_s: u64,
        entry_valid_ns: u32,
        attributes_valid_ns: u32,
        attributes: Attributes,
    }
    AttributesOut: 104 {
        valid_s: u64,
        valid_ns: u32,
        unused: u32,
        attributes: Attributes,
    }

    StatxTime: 16 {
        seconds: i64,
        nanoseconds: u32,
        unused: i32,
    }
    Statx: 256 {
        mask: u32,
        block_bytes: u32,
        flags: u64,
        links: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        unused1: u16,
        inode: u64,
        size: u64,
        blocks: u64,
        flags_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        device_major: u32,
        device_minor: u32,
        volume_major: u32,
        volume_minor: u32,
        unused2: [u64; 14],
    }
    StatxIn: 24 {
        flags: u32,
        unused: u32,
        handle: u64,
        statx_flags: u32,
        mask: u32,
    }
    StatxOut: 288 {
        valid_s: u64,
        valid_ns: u32,
        flags: u32,
        unused: [u64; 2],
        statx: Statx,
    }

    ForgetIn: 8 { lookups: u64, }
    BatchForgetIn: 8 { count: u32, unused: u32, }
    ForgetOne: 16 { node: u64, lookups: u64, }

    SetattrIn: 88 {
        valid: u32,
        unused1: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        unused2: u32,
        uid: u32,
        gid: u32,
        unused3: u32,
    }

    MknodIn: 16 { mode: u32, device: u32, umask: u32, unused: u32, }
    MkdirIn: 8 { mode: u32, umask: u32, }
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut: 16 { handle: u64, flags: u32, backing: i32, }
    LinkIn: 8 { node: u64, }
    RenameIn: 8 { new_parent: u64, }
    Rename2In: 16 { new_parent: u64, flags: u32, unused: u32, }

    ReadIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteOut: 8 { size: u32, unused: u32, }
    FsyncIn: 16 { handle: u64, flags: u32, unused: u32, }
    FallocateIn: 32 { handle: u64, offset: u64, length: u64, mode: u32, unused: u32, }
    LseekIn: 24 { handle: u64, offset: u64, whence: u32, unused: u32, }
    LseekOut: 8 { offset: u64, }
    CopyFileRangeIn: 56 {
        handle_in: u64,
        offset_in: u64,
        node_out: u64,
        handle_out: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    }
    CopyFileRangeOut: 8 { bytes: u64, }

    SetxattrIn: 16 { size: u32, flags: u32, setxattr_flags: u32, unused: u32, }
    IoctlIn: 32 {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        in_bytes: u32,
        out_bytes: u32,
    }
    IoctlOut: 16 { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    GetxattrIn: 8 { size: u32, unused: u32, }
    GetxattrOut: 8 { size: u32, unused: u32, }

    StatfsOut: 80 {
        blocks: u64,
        blocks_free: u64,
        blocks_available: u64,
        files: u64,
        files_free: u64,
        block_bytes: u32,
        name_bytes_max: u32,
        fragment_bytes: u32,
        unused: [u32; 7],
    }

    /// A negative offset means: only the attributes.
    InvalidateInode: 24 { node: u64, offset: i64, length: i64, }

    /// Precedes a name in a listing; padded to 8 bytes together with it.
    Dirent: 24 { inode: u64, offset: u64, name_bytes: u32, kind: u32, }

    /// Describes the parts of a request and its answer, in an entry of a ring.
    RingEntry: 32 { flags: u64, commit: u64, payload_bytes: u32, unused1: u32, unused2: u64, }
    /// Part of the command of a ring's submission.
    RingCommand: 24 { flags: u64, commit: u64, queue: u16, unused: [u16; 3], }
}

/// The start of a request of a ring. `header` has an [`InHeader`], later the [`OutHeader`]. `fixed`
/// has the part of equal length in all requests of a kind.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RingHeader {
    pub header: [u8; 128],
    pub fixed: [u8; 128],
    pub entry: RingEntry,
}

/// Flags of the handshake; from the 33rd on they are in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Ioctl commands that the kernel sends when a program reads or sets the flags of an inode.
pub mod control {
    pub const GET_FLAGS: u32 = 0x8008_6601;
    pub const SET_FLAGS: u32 = 0x4008_6602;
    /// With the project number (`FS_IOC_FSGETXATTR`). The kernel reads it before each change.
    pub const GET_EXTENDED: u32 = 0x801c_581f;
    pub const SET_EXTENDED: u32 = 0x401c_5820;
    pub const FLAGS: [u32; 4] = [GET_FLAGS, SET_FLAGS, GET_EXTENDED, SET_EXTENDED];
}

/// Valid fields of [`SetattrIn`].
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flag of [`SetxattrIn`]: a new ACL clears the set-group-id bit, which the caller may not set.
pub const SETXATTR_KILL_SET_GROUP: u32 = 1 << 0;
/// Keeps the pages of a file after it is closed.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// The kernel writes back pages that a mapping has changed; no program waits for it.
pub const WRITE_CACHE: u32 = 1 << 0;
/// The write must clear set-user-id and set-group-id.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const FSYNC_DATA: u32 = 1 << 0;

/// The number of this notification, instead of an error.
pub const NOTIFY_INVALIDATE_INODE: i32 = 2;

pub const RING_REGISTER: u32 = 1;
pub const RING_COMMIT_AND_FETCH: u32 = 2;
