//! Changes of a stub's blocks that keep its content: fill blocks from the store, and free them.

use std::io::Result;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

use super::open_stub::{Done, OpenStub, State};
use crate::fingerprint::is_zero;
use crate::format::stub::{RESTORING, StubHead};
use crate::system::calls::fgetxattr;
use crate::system::extents::present;
use crate::system::files::{CAPABILITY, status_of, times_ns};

/// A fail point; `dedupd_core/stub/filling.py` describes it.
const RESTORING_SET: &str = "stub.restoring";

/// Size of one comparison, a large chunk; if a piece differs, all of it is kept.
const COMPARE_BYTES: u64 = 128 << 10;

/// An offset in a file, and the bytes there.
pub type Piece = (u64, Vec<u8>);

impl State {
    /// Selects bytes of the store: runs of missing blocks of the file below `end` that are not all
    /// zeros. So the data of a sparse file needs no more blocks than before.
    pub fn missing_pieces(
        &self,
        fd: RawFd,
        loaded: &[(u64, &[u8])],
        end: u64,
        block_bytes: u64,
    ) -> Result<Vec<Piece>> {
        let (mut pieces, size) = (Vec::<Piece>::new(), status_of(fd)?.st_size as u64);
        for &(start, data) in loaded {
            for part in self.missing(fd, start..end.min(start + data.len() as u64))? {
                // After the covered bytes, the last block is zeros, up to the file's end.
                let stop = part.end.next_multiple_of(block_bytes).min(size).max(part.end);
                let within = (part.start - start) as usize..(part.end - start) as usize;
                let mut bytes = data[within].to_vec();
                bytes.resize((stop - part.start) as usize, 0);
                let mut goes_on = false;
                for (at, block) in (part.start..)
                    .step_by(block_bytes as usize)
                    .zip(bytes.chunks(block_bytes as usize))
                {
                    let is_zero = is_zero(block);
                    match pieces.last_mut() {
                        _ if is_zero => {}
                        Some((_, run)) if goes_on => run.extend_from_slice(block),
                        _ => pieces.push((at, block.to_vec())),
                    }
                    goes_on = !is_zero;
                }
            }
        }
        Ok(pieces)
    }
}

impl OpenStub<'_> {
    /// Writes pieces of the store's bytes.
    pub fn fill(&mut self, pieces: &[Piece]) -> Done<()> {
        self.unseen(|stub| pieces.iter().try_for_each(|(start, data)| stub.write_all(*start, data)))
    }

    /// Punches the filled blocks of a range: all, or only those that equal the store's bytes.
    pub fn take_back(&mut self, range: Range<u64>, is_whole: bool) -> Done<()> {
        self.unseen(|stub| match is_whole {
            true => stub.punch(range.start..stub.block_end(range.end)),
            false => stub.punch_equal(range).map(drop),
        })
    }

    /// Punches the blocks of a range that equal the recipe's bytes. Returns false if a block
    /// differs. The range consists of complete blocks, or ends with the file.
    pub fn punch_equal(&mut self, range: Range<u64>) -> Done<bool> {
        let mut all_equal = true;
        for (start, end) in present(self.fd.as_raw_fd(), range.start as i64, range.end as i64)? {
            let (mut low, end) = (start as u64, end as u64);
            while low < end {
                let high = end.min(low + COMPARE_BYTES);
                if self.is_equal(low..high)? {
                    self.punch(low..self.block_end(high))?;
                } else {
                    all_equal = false;
                }
                low = high;
            }
        }
        Ok(all_equal)
    }

    fn is_equal(&self, range: Range<u64>) -> Done<bool> {
        let mut bytes = [(); 2].map(|()| vec![0; (range.end - range.start) as usize]);
        let (head, [stored, own]) = (&self.state.head, &mut bytes);
        self.bytes.fill(self.fd, head, [], range.clone(), self.reads, stored)?;
        self.bytes.fill(self.fd, head, [(range.start, range.end)], range, self.reads, own)?;
        Ok(stored == own)
    }

    /// Changes blocks without changing content, times or capabilities.
    ///
    /// After a crash, the stub is marked as restoring; settling then restores its time.
    fn unseen(&mut self, change: impl FnOnce(&mut Self) -> Done<()>) -> Done<()> {
        self.uncount()?;
        let fd = self.fd.as_raw_fd();
        let (atime_ns, exactly_ns) = times_ns(&status_of(fd)?);
        let mtime_ns = exactly_ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let at_rest = self.state.head.clone();
        let flags = at_rest.flags | RESTORING;
        self.write_attribute(&StubHead { flags, mtime_ns, ..at_rest.clone() })?;
        self.effects.reach(RESTORING_SET)?;
        let capability = fgetxattr(fd, CAPABILITY);
        let changed = match &capability {
            Ok(_) => change(self),
            Err(_) => Ok(()),
        };
        // Each step runs, even if the previous step has failed.
        let kept = capability.and_then(|value| match value {
            Some(value) => self.effects.set_attribute(fd, CAPABILITY, &value),
            None => Ok(()),
        });
        let times = self.effects.set_times(fd, atime_ns, exactly_ns);
        self.write_attribute(&at_rest)?;
        times?;
        kept?;
        changed
    }
}
