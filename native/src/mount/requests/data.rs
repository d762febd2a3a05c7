//! Requests for the bytes of files.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::fgetxattr;
use rustix::io::Errno;

use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::table::proc_path;
use crate::mount::inodes::watched::Unwatched;
use crate::mount::pages::search::{NamedInode, Search, SeekTarget, found};
use crate::mount::protocol::abi::{
    CopyFileRangeIn, CopyFileRangeOut, LseekIn, LseekOut, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn,
    WriteOut, init,
};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request, put};
use crate::mount::requests::attributes::has_set_ids;
use crate::mount::requests::entries::status_of;
use crate::mount::requests::stubs::{Store, StubView, VALUE_BYTES};
use crate::mount::requests::{effects, tree::Tree};

/// A write to the page cache that takes longer has waited for the disk: 1 MiB takes 0.5 ms, and a busy
/// machine keeps a process waiting for 10 or 20 ms.
const WRITE_WAIT: Duration = Duration::from_millis(50);
/// For so long after such a write, others may have to wait, too.
const WRITES_WAIT: Duration = Duration::from_secs(1);

/// What becomes of a request to search for data or a hole.
pub enum Searching {
    Answered(usize),
    HandedOver,
    /// It is answered once what the kernel may have that is newer is known.
    OfPlain(Search),
}

impl Tree {
    /// The content of a plain file, open, and for writing where `write` is set, for the step that
    /// asks. None of a stub, of a file that is becoming one, and of one that cannot be opened.
    pub fn plain(&self, node: u64, write: bool) -> Option<Arc<DataFile>> {
        let file = self.inodes.data(node, write).ok()?;
        if self.attribute_of(&file, &mut []) == Err(Errno::NODATA) {
            return Some(file);
        }
        self.inodes.close_data(node);
        None
    }

    /// Begins a search for data or a hole in a plain file, or in a small stub; hands over all else.
    pub fn begin_search(&self, request: &Request, out: &mut [u8]) -> Answer<Searching> {
        let (given, node): (LseekIn, u64) = (request.part()?, request.header.node);
        let Some(since) = self.inodes.watched.unwatched(node) else {
            return Ok(Searching::HandedOver);
        };
        let Ok(file) = self.inodes.data(node, false) else { return Ok(Searching::HandedOver) };
        let mut value = [0; VALUE_BYTES];
        let found = match (self.attribute_of(&file, &mut value), self.store.get()) {
            (Err(Errno::NODATA), _) => return self.search_plain(file, node, since, &given, out),
            (Ok(length), Some(store)) => store.seek(&file, node, &value[..length], &given),
            _ => None,
        };
        let Some(offset) = found else {
            // Python opens it.
            self.inodes.close_data(node);
            return Ok(Searching::HandedOver);
        };
        Ok(Searching::Answered(put(out, &LseekOut { offset: offset? })?))
    }

    /// What reports no hole is answered at once.
    fn search_plain(
        &self,
        file: Arc<DataFile>,
        node: u64,
        since: Unwatched,
        given: &LseekIn,
        out: &mut [u8],
    ) -> Answer<Searching> {
        let sought = match given.whence as i32 {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Failure(libc::EINVAL)),
        };
        let found = found(file.as_fd(), given.offset, sought)?;
        if found.hole(given.offset, sought).is_none() {
            let answer = LseekOut { offset: found.answer()? };
            return Ok(Searching::Answered(put(out, &answer)?));
        }
        let (watched, inode) = (Arc::clone(&self.inodes.watched), self.in_mount(node)?);
        let offset = given.offset;
        Ok(Searching::OfPlain(Search { file, offset, sought, since, watched, inode }))
    }

    /// An inode as it is found in the mount.
    pub fn in_mount(&self, node: u64) -> Answer<NamedInode> {
        let generation = self.inodes.generation(node).ok_or(Failure(libc::ESTALE))?;
        let path = match self.inodes.by_handle {
            true => Vec::new(),
            false => path_below(self.inodes.root(), &*self.inodes.path(node)?),
        };
        Ok(NamedInode { inode: node, generation, path, pages: self.pages.get().cloned() })
    }

    /// The length of the value of the attribute that makes a file a stub.
    pub fn attribute_of(&self, file: &DataFile, value: &mut [u8]) -> Result<usize, Errno> {
        fgetxattr(file, self.reserved.as_c_str(), value)
    }

    /// Writes to a plain file, or to a stub ([`Store::write`]); hands over while writes wait for the
    /// disk or for room, what clears set-user-id or set-group-id, and all other writes to stubs.
    pub fn write_at_once(&self, request: &Request, agreed: u64, out: &mut [u8]) -> Answer<Outcome> {
        let given: WriteIn = request.part()?;
        let data = request.rest.get(..given.size as usize).ok_or(Failure(libc::EINVAL))?;
        let is_mapping = given.write_flags & WRITE_CACHE != 0;
        let has_room = is_mapping || self.may_write(given.size.into());
        let may_write = !self.writes_wait.is_now() && has_room;
        if agreed & init::HANDLE_KILLPRIV_V2 == 0 || !may_write {
            return Ok(Outcome::HandedOver);
        }
        let node = request.header.node;
        let Ok(file) = self.inodes.data(node, true) else { return Ok(Outcome::HandedOver) };
        if given.write_flags & WRITE_KILL_SUIDGID != 0 && has_set_ids(&*file)? {
            return Ok(Outcome::HandedOver);
        }
        let mut value = [0; VALUE_BYTES];
        let stub = match self.attribute_of(&file, &mut value) {
            Err(Errno::NODATA) => None,
            found => {
                let value = found.ok().and_then(|length| value.get(..length));
                let Some(stub) = value.and_then(|value| self.lent_stub(&file, node, value)) else {
                    return Ok(self.left(node));
                };
                Some(stub)
            }
        };
        self.note_write(node, given.offset, u64::from(given.size));
        let mut size = 0;
        // Of a mapping the kernel takes all of it for written, unless this fails.
        while size == 0 || (is_mapping && size < data.len()) {
            let (rest, at) = (&data[size..], given.offset + size as u64);
            let written = self.watch_time(|| match &stub {
                None => Some(effects::write(&*file, rest, at)),
                Some((store, look)) => {
                    let (written, is_torn) = store.write(&file, look, at, rest)?;
                    if is_torn {
                        self.inodes.lent.note_torn(node);
                    }
                    Some(written)
                }
            });
            let Some(written) = written else { return Ok(self.left(node)) };
            match written? {
                0 if data.is_empty() => break,
                0 => return Err(Failure(libc::ENOSPC)),
                count => size += count,
            }
        }
        Ok(Outcome::Answered(put(out, &WriteOut { size: size as u32, unused: 0 })?))
    }

    /// For Python, which opens the file.
    fn left(&self, node: u64) -> Outcome {
        self.inodes.close_data(node);
        Outcome::HandedOver
    }

    /// A stub that native code may write to.
    fn lent_stub(
        &self,
        file: &DataFile,
        node: u64,
        value: &[u8],
    ) -> Option<(&Arc<Store>, StubView)> {
        let store = self.store.get().filter(|_| self.inodes.lent.uses(node))?;
        Some((store, store.look(file, node, value, true)?))
    }

    /// Has later writes handed over for a while if this one waits for the disk.
    fn watch_time<T>(&self, write: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let written = write();
        if began.elapsed() > WRITE_WAIT {
            self.writes_wait.begin(WRITES_WAIT);
        }
        written
    }

    /// Copies a short range of a plain file that the page cache has to another plain file; hands over
    /// all else.
    pub fn copy_at_once(&self, request: &Request, out: &mut [u8], wide: bool) -> Answer<Outcome> {
        let (given, node): (CopyFileRangeIn, u64) = (request.part()?, request.header.node);
        let watched = |inode| self.inodes.watched.has(inode);
        if node == given.node_out || watched(node) || watched(given.node_out) {
            return Ok(Outcome::HandedOver);
        }
        let (from, to) = (self.plain(node, false), self.plain(given.node_out, true));
        let (Some(from), Some(to)) = (from, to) else { return Ok(Outcome::HandedOver) };
        let left = status_of(&*from)?.stx_size.saturating_sub(given.offset_in);
        let size = given.length.min(left).min(out.len() as u64) as u32;
        let may_copy = left <= out.len() as u64
            && !has_set_ids(&*to)?
            && !self.writes_wait.is_now()
            && self.may_write(size.into());
        if !may_copy {
            return Ok(Outcome::HandedOver);
        }
        let Some(length) = from.read_cached(given.offset_in, &mut out[..size as usize]) else {
            return Ok(Outcome::HandedOver);
        };
        self.note_write(given.node_out, given.offset_out, u64::from(size));
        self.watch_time(|| {
            if self.inodes.shares_extents {
                return self.copy_range(request, out, wide);
            }
            // The bytes are at hand: the kernel would take them through a pipe.
            let copied = effects::write(&*to, &out[..length], given.offset_out)?;
            copied_bytes(copied, out, wide)
        })
    }

    /// `wide`: the answer has 64 bits for the number of bytes.
    fn copy_range(&self, request: &Request, out: &mut [u8], wide: bool) -> Answer<Outcome> {
        let given: CopyFileRangeIn = request.part()?;
        let from = self.inodes.data(request.header.node, false)?;
        let to = self.inodes.data(given.node_out, true)?;
        let length = if wide { given.length as usize } else { given.length as u32 as usize };
        let bytes = effects::copy_range(&*from, given.offset_in, &*to, given.offset_out, length)?;
        copied_bytes(bytes, out, wide)
    }
}

/// The path of an inode relative to a directory; one that leads nowhere where the inode has none.
fn path_below(root: impl AsFd, path: impl AsFd) -> Vec<u8> {
    let name = |fd: &dyn AsFd| {
        let link = std::fs::read_link(proc_path(fd.as_fd().as_raw_fd()));
        link.map(|path| path.into_os_string().into_vec()).unwrap_or_default()
    };
    let (root, path) = (name(&root), name(&path));
    let rest = path.strip_prefix(&root[..]).and_then(|rest| rest.strip_prefix(b"/"));
    rest.filter(|rest| !rest.is_empty()).unwrap_or(b".").to_vec()
}

fn copied_bytes(bytes: usize, out: &mut [u8], wide: bool) -> Answer<Outcome> {
    Ok(Outcome::Answered(if wide {
        put(out, &CopyFileRangeOut { bytes: bytes as u64 })?
    } else {
        put(out, &WriteOut { size: bytes as u32, unused: 0 })?
    }))
}
