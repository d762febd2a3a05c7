//! The kinds of requests: the layout and the receiver of each.

use crate::mount::protocol::abi::{self, init};

/// `fuse_setxattr_in` without its flags, as older kernels send it.
pub const SHORT_SETXATTR_BYTES: usize = 8;

/// The receiver of a request that native code does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The caller, in `StubOperations.serve`: file data passes through no socket, native code
    /// creates a new file that had to wait, and pyfuse3 does not know the other kinds.
    Serve,
    /// pyfuse3, through libfuse.
    Libfuse,
}

/// A kind of request, as a row of [`ROUTES`].
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The name in reports.
    pub name: &'static str,
    /// Length of the part that is equally long in all requests; None for an unknown kind.
    fixed_bytes: Option<usize>,
    pub rest: Fallback,
    /// Only reads, so any thread answers it (`Tree::answer_beside`).
    pub looks: bool,
    /// No program waits for its answer, and a single program causes it in addition to its requests:
    /// the kernel reads ahead, and releases closed and removed files.
    pub is_in_background: bool,
    /// Python answers it by the rights of the caller; for others, the user counts only for shares.
    pub is_by_rights: bool,
    /// May allocate blocks below.
    pub takes_blocks: bool,
    /// The answer has attributes, which the kernel keeps even if it was notified to forget them.
    pub tells_attributes: bool,
    /// May change the attributes of inodes (`Touched`).
    pub touches: bool,
}

const LIBFUSE: Route = Route {
    name: "OTHER",
    fixed_bytes: None,
    rest: Fallback::Libfuse,
    looks: false,
    is_in_background: false,
    is_by_rights: false,
    takes_blocks: false,
    tells_attributes: false,
    touches: false,
};
const SERVE: Route = Route { rest: Fallback::Serve, ..LIBFUSE };

impl Route {
    const fn looking(self) -> Route {
        Route { looks: true, ..self }
    }

    const fn in_background(self) -> Route {
        Route { is_in_background: true, ..self }
    }

    const fn by_rights(self) -> Route {
        Route { is_by_rights: true, ..self }
    }

    const fn taking_blocks(self) -> Route {
        Route { takes_blocks: true, ..self }
    }

    const fn telling_attributes(self) -> Route {
        Route { tells_attributes: true, ..self }
    }

    const fn touching(self) -> Route {
        Route { touches: true, ..self }
    }
}

/// The row of a kind of request.
pub fn route(opcode: u32) -> &'static Route {
    usize::try_from(opcode).ok().and_then(|at| ROUTES.get(at)).unwrap_or(&LIBFUSE)
}

/// As [`Route::fixed_bytes`], in a session with the `agreed` flags.
pub fn fixed_bytes(opcode: u32, agreed: u64) -> Option<usize> {
    if opcode == SETXATTR && agreed & init::SETXATTR_EXT == 0 {
        return Some(SHORT_SETXATTR_BYTES);
    }
    route(opcode).fixed_bytes
}

/// One more than the highest number.
pub const COUNT: usize = 54;

macro_rules! routes {
    ($($name:ident = $number:literal, $bytes:expr, $route:expr;)*) => {
        $(pub const $name: u32 = $number;)*

        /// Indexed by the number of the kind.
        pub static ROUTES: [Route; COUNT] = {
            let mut all = [LIBFUSE; COUNT];
            $(all[$number] =
                Route { name: stringify!($name), fixed_bytes: Some($bytes), ..$route };)*
            all
        };
    };
}

routes! {
    LOOKUP = 1, 0, LIBFUSE.looking();
    FORGET = 2, size_of::<abi::ForgetIn>(), LIBFUSE.in_background();
    GETATTR = 3, 16, LIBFUSE.looking();
    SETATTR = 4, size_of::<abi::SetattrIn>(), LIBFUSE.by_rights().taking_blocks().telling_attributes().touching();
    READLINK = 5, 0, LIBFUSE.looking();
    SYMLINK = 6, 0, LIBFUSE.taking_blocks().telling_attributes().touching();
    MKNOD = 8, size_of::<abi::MknodIn>(), LIBFUSE.taking_blocks().telling_attributes().touching();
    MKDIR = 9, size_of::<abi::MkdirIn>(), LIBFUSE.taking_blocks().telling_attributes().touching();
    UNLINK = 10, 0, LIBFUSE.taking_blocks().touching();
    RMDIR = 11, 0, LIBFUSE.taking_blocks().touching();
    RENAME = 12, size_of::<abi::RenameIn>(), LIBFUSE.taking_blocks().touching();
    LINK = 13, size_of::<abi::LinkIn>(), LIBFUSE.taking_blocks().telling_attributes().touching();
    OPEN = 14, 8, LIBFUSE;
    READ = 15, size_of::<abi::ReadIn>(), SERVE.in_background().touching();
    WRITE = 16, size_of::<abi::WriteIn>(), SERVE.taking_blocks().touching();
    STATFS = 17, 0, LIBFUSE.looking();
    RELEASE = 18, 24, LIBFUSE.in_background();
    FSYNC = 20, size_of::<abi::FsyncIn>(), SERVE;
    SETXATTR = 21, size_of::<abi::SetxattrIn>(), SERVE.by_rights().taking_blocks().touching();
    GETXATTR = 22, size_of::<abi::GetxattrIn>(), LIBFUSE.by_rights().looking();
    LISTXATTR = 23, size_of::<abi::GetxattrIn>(), LIBFUSE.looking();
    REMOVEXATTR = 24, 0, LIBFUSE.taking_blocks().touching();
    FLUSH = 25, 24, LIBFUSE;
    INIT = 26, size_of::<abi::InitIn>(), LIBFUSE;
    OPENDIR = 27, 8, LIBFUSE;
    READDIR = 28, size_of::<abi::ReadIn>(), LIBFUSE.looking();
    RELEASEDIR = 29, 24, LIBFUSE.in_background();
    FSYNCDIR = 30, size_of::<abi::FsyncIn>(), SERVE;
    GETLK = 31, 48, LIBFUSE;
    SETLK = 32, 48, LIBFUSE;
    SETLKW = 33, 48, LIBFUSE;
    ACCESS = 34, 8, LIBFUSE;
    CREATE = 35, size_of::<abi::CreateIn>(), SERVE.taking_blocks().telling_attributes().touching();
    INTERRUPT = 36, 8, LIBFUSE;
    BMAP = 37, 16, LIBFUSE;
    DESTROY = 38, 0, LIBFUSE;
    IOCTL = 39, size_of::<abi::IoctlIn>(), SERVE.touching();
    POLL = 40, 24, LIBFUSE;
    BATCH_FORGET = 42, size_of::<abi::BatchForgetIn>(), LIBFUSE.in_background();
    FALLOCATE = 43, size_of::<abi::FallocateIn>(), SERVE.by_rights().touching();
    READDIRPLUS = 44, size_of::<abi::ReadIn>(), LIBFUSE.looking();
    RENAME2 = 45, size_of::<abi::Rename2In>(), LIBFUSE.taking_blocks().touching();
    LSEEK = 46, size_of::<abi::LseekIn>(), SERVE;
    COPY_FILE_RANGE = 47, size_of::<abi::CopyFileRangeIn>(), SERVE.by_rights().taking_blocks().touching();
    SYNCFS = 50, 8, LIBFUSE;
    TMPFILE = 51, size_of::<abi::CreateIn>(), SERVE.taking_blocks().telling_attributes().touching();
    STATX = 52, size_of::<abi::StatxIn>(), LIBFUSE.looking();
    COPY_FILE_RANGE_64 = 53, size_of::<abi::CopyFileRangeIn>(), SERVE.by_rights().taking_blocks().touching();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/design/mount-loop.md.
    fn table() -> String {
        let mark = |is_so: bool| if is_so { "yes" } else { "" };
        let row = |route: &Route| {
            let rest = match route.rest {
                Fallback::Serve => "`serve`",
                Fallback::Libfuse => "libfuse",
            };
            let marks = [
                route.looks,
                route.is_in_background,
                route.is_by_rights,
                route.takes_blocks,
                route.tells_attributes,
                route.touches,
            ];
            let marks = marks.map(|is_so| format!("{} |", mark(is_so))).join(" ");
            format!("| {} | {rest} | {marks}\n", route.name)
        };
        ROUTES.iter().filter(|route| route.fixed_bytes.is_some()).map(row).collect()
    }

    #[test]
    fn the_document_has_the_routes() {
        let document = include_str!("../../../../docs/design/mount-loop.md");
        assert!(document.contains(&table()), "docs/design/mount-loop.md should have:\n{}", table());
    }
}
