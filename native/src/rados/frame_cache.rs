//! Frames from a cluster on this host's disk: never trusted, and never waited for.
//!
//! Frames lie in segments, which only grow; this cache knows their places. A Python thread writes
//! the pending frames (`dedupd_core/rados/reading/disk_cache.py`), so that Python makes every
//! change to the disk. If it does not keep up, frames are dropped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::format::cluster::kept_frame::{Name, Row};
use crate::threads::lock::locked;

/// Limit for the frames that wait to be written.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// A frame from the oldest segments (1 / this of all) is written again when it is read.
const OLD_SHARE: usize = 4;

#[derive(Clone, Copy)]
struct FramePosition {
    segment: u32,
    offset: u32,
    length: u32,
}

#[derive(Default)]
struct State {
    places: HashMap<Name, FramePosition>,
    segments: BTreeMap<u32, Arc<File>>,
    /// Segments with lower numbers are among the oldest.
    old_below: u32,
    waiting: VecDeque<(Name, Vec<u8>)>,
    waiting_bytes: usize,
    /// The names of frames that wait or are being written.
    expected: HashSet<Name>,
    is_closed: bool,
}

/// Maximum of frames per batch: the kernel accepts 1,024 parts per call.
const BATCH_FRAMES_MAX: usize = 512;

/// Frames to be written to the disk.
#[derive(Default)]
pub struct Batch {
    pub frames: Vec<Vec<u8>>,
    /// Rows for the segment's list.
    pub rows: Vec<u8>,
}

pub struct FrameCache {
    state: Mutex<State>,
    called: Condvar,
    /// Longer frames are not kept.
    frame_bytes_max: usize,
}

impl FrameCache {
    pub fn new(frame_bytes_max: usize) -> FrameCache {
        FrameCache { state: Mutex::default(), called: Condvar::new(), frame_bytes_max }
    }

    /// Adds the frames of a segment, at the places in the rows of its list.
    pub fn add_segment(&self, number: u32, file: File, list: &[u8]) {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut state = locked(&self.state);
        state.segments.insert(number, Arc::new(file));
        state.look_for_old();
        for row in Row::all(list, number) {
            if u64::from(row.offset) + u64::from(row.length) <= length {
                state.place(&row, number);
            }
        }
    }

    pub fn drop_segment(&self, number: u32) {
        let mut state = locked(&self.state);
        let gone = state.segments.remove(&number);
        state.places.retain(|_, place| place.segment != number);
        state.look_for_old();
        drop(state);
        drop(gone);
    }

    /// The result of `decode` for a frame. If it is None, the frame is forgotten.
    pub fn decoded<T>(&self, name: &Name, decode: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let (place, segment, is_old) = {
            let state = locked(&self.state);
            let place = *state.places.get(name)?;
            let segment = Arc::clone(state.segments.get(&place.segment)?);
            (place, segment, place.segment < state.old_below)
        };
        let mut frame = vec![0; place.length as usize];
        let is_read = segment.read_exact_at(&mut frame, u64::from(place.offset)).is_ok();
        let found = if is_read { decode(&frame) } else { None };
        match found {
            None => self.forget(name),
            Some(_) if is_old => self.wait(*name, frame),
            Some(_) => {}
        }
        found
    }

    pub fn forget(&self, name: &Name) {
        locked(&self.state).places.remove(name);
    }

    /// Returns whether a frame that was read should be given to [`FrameCache::keep`].
    pub fn wants(&self, name: &Name) -> bool {
        let state = locked(&self.state);
        !state.places.contains_key(name) && !state.expected.contains(name)
    }

    /// Keeps a verified frame, unless too many are waiting.
    pub fn keep(&self, name: Name, frame: Vec<u8>) {
        if self.wants(&name) {
            self.wait(name, frame);
        }
    }

    fn wait(&self, name: Name, frame: Vec<u8>) {
        let mut state = locked(&self.state);
        let has_room = state.waiting_bytes + frame.len() <= WAITING_BYTES_MAX;
        let may_wait = has_room && frame.len() <= self.frame_bytes_max && !state.is_closed;
        if !may_wait || !state.expected.insert(name) {
            return;
        }
        state.waiting_bytes += frame.len();
        state.waiting.push_back((name, frame));
        if state.waiting.len() == 1 {
            self.called.notify_all();
        }
    }

    /// The next frames for `offset` of a segment, together up to `room` bytes. Empty if the next
    /// frame is longer, unless it is the segment's first. None if no frame arrives within `limit`.
    pub fn next(&self, segment: u32, offset: u32, room: usize, limit: Duration) -> Option<Batch> {
        let state = locked(&self.state);
        let rests = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let waited = self.called.wait_timeout_while(state, limit, rests);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.waiting.is_empty() {
            return None;
        }
        let (mut batch, mut end) = (Batch::default(), 0);
        while batch.frames.len() < BATCH_FRAMES_MAX {
            let Some((name, frame)) = state.waiting.pop_front() else { break };
            let is_first = offset == 0 && end == 0;
            if !is_first && end + frame.len() > room {
                state.waiting.push_front((name, frame));
                break;
            }
            let row = Row { name, offset: offset + end as u32, length: frame.len() as u32 };
            batch.rows.extend_from_slice(&row.to_bytes(segment));
            end += frame.len();
            state.waiting_bytes -= frame.len();
            batch.frames.push(frame);
        }
        Some(batch)
    }

    /// Marks frames of [`FrameCache::next`] as written to the places in their rows, or as not kept.
    pub fn settle(&self, segment: u32, rows: &[u8], are_written: bool) {
        let mut state = locked(&self.state);
        for row in Row::all(rows, segment) {
            state.expected.remove(&row.name);
            if are_written {
                state.place(&row, segment);
            }
        }
    }

    /// Drops the waiting frames, because there is no room for them.
    pub fn give_up_waiting(&self) {
        let mut state = locked(&self.state);
        let waiting = std::mem::take(&mut state.waiting);
        state.waiting_bytes = 0;
        for (name, _) in &waiting {
            state.expected.remove(name);
        }
    }

    /// Ends all waits.
    pub fn close(&self) {
        locked(&self.state).is_closed = true;
        self.called.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        locked(&self.state).is_closed
    }

    /// Number of frames that wait or are being written.
    pub fn expected(&self) -> usize {
        locked(&self.state).expected.len()
    }

    /// Number of frames that can be read.
    pub fn count(&self) -> usize {
        locked(&self.state).places.len()
    }
}

impl State {
    fn place(&mut self, row: &Row, segment: u32) {
        let place = FramePosition { segment, offset: row.offset, length: row.length };
        self.places.insert(row.name, place);
    }

    fn look_for_old(&mut self) {
        let count = self.segments.len() / OLD_SHARE;
        self.old_below = self.segments.keys().nth(count).copied().unwrap_or(0);
    }
}
