//! Requests for the bytes of files.

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::mount::protocol::abi::{
    CopyFileRangeIn, CopyFileRangeOut, FSYNC_DATA, FallocateIn, FsyncIn, IoctlIn, IoctlOut,
    LseekIn, LseekOut, ReadIn, WRITE_KILL_SUIDGID, WriteIn, WriteOut, control,
};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request, put};
use crate::mount::requests::attributes::drop_set_ids;
use crate::mount::requests::{effects, tree::Tree};

impl Tree {
    pub fn read(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: ReadIn = request.part()?;
        let file = self.inodes.data(request.header.node, false)?;
        let room = out.get_mut(..given.size as usize).ok_or(Failure(libc::EINVAL))?;
        let mut done = 0;
        while done < room.len() {
            match rustix::io::pread(&*file, &mut room[done..], given.offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::Answered(done))
    }

    pub fn write(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: WriteIn = request.part()?;
        let data = request.rest.get(..given.size as usize).ok_or(Failure(libc::EINVAL))?;
        let file = self.inodes.data(request.header.node, true)?;
        if given.write_flags & WRITE_KILL_SUIDGID != 0 {
            drop_set_ids(&*file)?;
        }
        let size = effects::write(&*file, data, given.offset)? as u32;
        Ok(Outcome::Answered(put(out, &WriteOut { size, unused: 0 })?))
    }

    /// Of a file or of a directory.
    pub fn sync(&self, request: &Request) -> Answer<Outcome> {
        let given: FsyncIn = request.part()?;
        let file = self.inodes.data(request.header.node, false)?;
        effects::sync(&*file, given.flags & FSYNC_DATA != 0)?;
        Ok(Outcome::Answered(0))
    }

    pub fn allocate(&self, request: &Request) -> Answer<Outcome> {
        let given: FallocateIn = request.part()?;
        let file = self.inodes.data(request.header.node, true)?;
        effects::allocate(&*file, given.mode, given.offset, given.length)?;
        Ok(Outcome::Answered(0))
    }

    pub fn seek(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: LseekIn = request.part()?;
        let to = match given.whence as i32 {
            libc::SEEK_DATA => SeekFrom::Data(given.offset),
            libc::SEEK_HOLE => SeekFrom::Hole(given.offset),
            _ => return Err(Failure(libc::EINVAL)),
        };
        let file = self.inodes.data(request.header.node, false)?;
        let offset = rustix::fs::seek(&*file, to)?;
        Ok(Outcome::Answered(put(out, &LseekOut { offset })?))
    }

    /// Programs ask whether a file is a terminal (Python does whenever it opens one); `lsattr` asks
    /// for the flags of an inode. Nothing else is known.
    pub fn control(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: IoctlIn = request.part()?;
        if given.command != control::GET_FLAGS || given.out_bytes as usize != size_of::<u32>() {
            return Err(Failure(libc::ENOTTY));
        }
        let file = self.inodes.data(request.header.node, false)?;
        let flags = rustix::fs::ioctl_getflags(&*file)?.bits();
        let length = put(out, &IoctlOut::default())?;
        Ok(Outcome::Answered(length + put(&mut out[length..], &flags)?))
    }

    /// `wide`: the answer has 64 bits for the number of bytes.
    pub fn copy_range(&self, request: &Request, out: &mut [u8], wide: bool) -> Answer<Outcome> {
        let given: CopyFileRangeIn = request.part()?;
        let from = self.inodes.data(request.header.node, false)?;
        let to = self.inodes.data(given.node_out, true)?;
        let length = if wide { given.length as usize } else { given.length as u32 as usize };
        let bytes = effects::copy_range(&*from, given.offset_in, &*to, given.offset_out, length)?;
        let length = if wide {
            put(out, &CopyFileRangeOut { bytes: bytes as u64 })?
        } else {
            put(out, &WriteOut { size: bytes as u32, unused: 0 })?
        };
        Ok(Outcome::Answered(length))
    }
}
