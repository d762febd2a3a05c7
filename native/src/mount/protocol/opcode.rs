//! The kinds of requests, and how each is laid out.

use crate::mount::protocol::abi::{self, init};

/// `fuse_setxattr_in` without flags of its own, as older kernels send it.
pub const SHORT_SETXATTR_BYTES: usize = 8;

macro_rules! opcodes {
    ($($name:ident = $number:literal, $bytes:expr;)*) => {
        $(pub const $name: u32 = $number;)*

        /// The name of a kind of request, for reports.
        pub fn name(opcode: u32) -> &'static str {
            match opcode {
                $($name => stringify!($name),)*
                _ => "OTHER",
            }
        }

        /// How many bytes the part of a request has that is of the same length in all of its kind,
        /// in a session that has agreed on these flags. None of a kind that is not known.
        pub fn fixed_bytes(opcode: u32, agreed: u64) -> Option<usize> {
            match opcode {
                SETXATTR if agreed & init::SETXATTR_EXT == 0 => Some(SHORT_SETXATTR_BYTES),
                $($name => Some($bytes),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, 0;
    FORGET = 2, size_of::<abi::ForgetIn>();
    GETATTR = 3, 16;
    SETATTR = 4, size_of::<abi::SetattrIn>();
    READLINK = 5, 0;
    SYMLINK = 6, 0;
    MKNOD = 8, size_of::<abi::MknodIn>();
    MKDIR = 9, size_of::<abi::MkdirIn>();
    UNLINK = 10, 0;
    RMDIR = 11, 0;
    RENAME = 12, size_of::<abi::RenameIn>();
    LINK = 13, size_of::<abi::LinkIn>();
    OPEN = 14, 8;
    READ = 15, size_of::<abi::ReadIn>();
    WRITE = 16, size_of::<abi::WriteIn>();
    STATFS = 17, 0;
    RELEASE = 18, 24;
    FSYNC = 20, size_of::<abi::FsyncIn>();
    SETXATTR = 21, size_of::<abi::SetxattrIn>();
    GETXATTR = 22, size_of::<abi::GetxattrIn>();
    LISTXATTR = 23, size_of::<abi::GetxattrIn>();
    REMOVEXATTR = 24, 0;
    FLUSH = 25, 24;
    INIT = 26, size_of::<abi::InitIn>();
    OPENDIR = 27, 8;
    READDIR = 28, size_of::<abi::ReadIn>();
    RELEASEDIR = 29, 24;
    FSYNCDIR = 30, size_of::<abi::FsyncIn>();
    GETLK = 31, 48;
    SETLK = 32, 48;
    SETLKW = 33, 48;
    ACCESS = 34, 8;
    CREATE = 35, size_of::<abi::CreateIn>();
    INTERRUPT = 36, 8;
    BMAP = 37, 16;
    DESTROY = 38, 0;
    IOCTL = 39, size_of::<abi::IoctlIn>();
    POLL = 40, 24;
    BATCH_FORGET = 42, size_of::<abi::BatchForgetIn>();
    FALLOCATE = 43, size_of::<abi::FallocateIn>();
    READDIRPLUS = 44, size_of::<abi::ReadIn>();
    RENAME2 = 45, size_of::<abi::Rename2In>();
    LSEEK = 46, size_of::<abi::LseekIn>();
    COPY_FILE_RANGE = 47, size_of::<abi::CopyFileRangeIn>();
    SYNCFS = 50, 8;
    TMPFILE = 51, size_of::<abi::CreateIn>();
    STATX = 52, size_of::<abi::StatxIn>();
    COPY_FILE_RANGE_64 = 53, size_of::<abi::CopyFileRangeIn>();
}

/// One more than the highest number.
pub const COUNT: usize = 54;
