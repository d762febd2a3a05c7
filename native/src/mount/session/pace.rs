//! The load of the event-loop thread, and when overflow readers take requests.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use zerocopy::FromBytes;

use crate::mount::protocol::abi::InHeader;
use crate::mount::protocol::opcode as op;

/// Counters of the event-loop thread and of the requests. They only increase.
#[derive(Default)]
pub struct Pace {
    /// Times that the thread asked for a request.
    looks: AtomicU64,
    /// Times that it found one.
    taken: AtomicU64,
    /// Requests that were queued, and are of another caller than the request before.
    queued: AtomicU64,
    /// Queued requests that overflow readers can answer.
    queued_looks: AtomicU64,
    /// True if the thread found no request last. Otherwise it may be working on one.
    is_resting: AtomicBool,
    /// Requests that overflow readers took.
    beside: AtomicU64,
    /// Requests of `beside` that overflow readers can answer.
    answered: AtomicU64,
    /// Requests of `beside` that were queued or taken at the same time as others.
    together: AtomicU64,
    /// The caller of the last request.
    caller: AtomicU32,
    /// A bit for each caller since the last check; callers may share a bit.
    callers: AtomicU64,
}

impl Pace {
    pub fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.is_resting.store(false, Ordering::Relaxed);
    }

    pub fn rest(&self) {
        self.is_resting.store(true, Ordering::Relaxed);
    }

    /// Counts a message of the event-loop thread. `waited`: it arrived before the thread asked.
    pub fn take(&self, message: &[u8], waited: bool) {
        let Some(header) = load(message) else { return };
        self.taken.fetch_add(1, Ordering::Relaxed);
        if self.is_of_another(header.pid) && waited {
            self.queued.fetch_add(1, Ordering::Relaxed);
            let looks = op::route(header.opcode).looks;
            self.queued_looks.fetch_add(u64::from(looks), Ordering::Relaxed);
        }
    }

    /// Counts a message of another thread. `waited`: it was pending, or other threads have one.
    pub fn take_beside(&self, message: &[u8], waited: bool) {
        let Some(header) = load(message) else { return };
        self.beside.fetch_add(1, Ordering::Relaxed);
        let looks = op::route(header.opcode).looks;
        self.answered.fetch_add(u64::from(looks), Ordering::Relaxed);
        let together = self.is_of_another(header.pid) && waited;
        self.together.fetch_add(u64::from(together), Ordering::Relaxed);
    }

    /// Returns whether the caller differs from the last one. A single program has its next request
    /// ready immediately after its answer.
    fn is_of_another(&self, caller: u32) -> bool {
        self.callers.fetch_or(1 << (caller % u64::BITS), Ordering::Relaxed);
        self.caller.swap(caller, Ordering::Relaxed) != caller
    }

    pub fn seen(&self) -> LoadSample {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LoadSample {
            looks: of(&self.looks),
            taken: of(&self.taken),
            queued: of(&self.queued),
            queued_looks: of(&self.queued_looks),
            is_resting: self.is_resting.load(Ordering::Relaxed),
            beside: of(&self.beside),
            answered: of(&self.answered),
            together: of(&self.together),
            callers: self.callers.swap(0, Ordering::Relaxed).count_ones(),
            ..LoadSample::default()
        }
    }
}

/// The header of a message that counts as load.
fn load(message: &[u8]) -> Option<InHeader> {
    let (header, _) = InHeader::read_from_prefix(message).ok()?;
    (!op::route(header.opcode).is_in_background).then_some(header)
}

/// The counters at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSample {
    pub looks: u64,
    pub taken: u64,
    pub queued: u64,
    pub queued_looks: u64,
    pub is_resting: bool,
    pub beside: u64,
    pub answered: u64,
    pub together: u64,
    /// Number of callers since the last check.
    pub callers: u32,
    /// True if the kernel has a request; `has_returns`: if a request was returned.
    pub is_waiting: bool,
    pub has_returns: bool,
}

/// Requests per millisecond that count as load. A single program gets 20 to 40 answers.
const LOAD_MIN: u64 = 16;
/// With this many callers, requests that only read wait too long behind all others.
const CALLERS_MIN: u32 = 8;
/// Consecutive milliseconds of load that one thread does not keep up with, before help is called.
const CROWDED_MIN: u32 = 2;
/// Consecutive milliseconds without such load, before help is dismissed.
const CALM_MIN: u32 = 5;

/// Decides once per millisecond whether overflow readers take requests.
#[derive(Default)]
pub struct Judgement {
    last: LoadSample,
    crowded: u32,
    calm: u32,
    is_called: bool,
}

impl Judgement {
    pub fn is_called(&self) -> bool {
        self.is_called
    }

    /// Returns whether any request arrived since the last check. [`Judgement::is_called`] tells
    /// whether overflow readers are needed.
    pub fn look(&mut self, now: LoadSample) -> bool {
        let last = std::mem::replace(&mut self.last, now);
        let taken = now.taken - last.taken;
        let queued = now.queued - last.queued;
        let is_stuck = now.looks == last.looks;
        // A request that overflow readers hand over costs more than without them.
        let are_many = now.callers >= CALLERS_MIN;
        let is_crowded = taken >= LOAD_MIN
            && queued * 4 >= taken * 3
            && (are_many || (now.queued_looks - last.queued_looks) * 2 >= queued);
        if self.is_called {
            let beside = now.beside - last.beside;
            let is_needed = is_crowded
                || is_stuck && (now.has_returns || !now.is_resting && beside > 0)
                || beside > 0 && are_many
                || beside > 0
                    && (now.together - last.together) * 4 >= beside
                    && (now.answered - last.answered) * 2 >= beside;
            self.calm = if is_needed { 0 } else { self.calm + 1 };
            self.is_called = self.calm < CALM_MIN;
        } else {
            self.crowded = if is_crowded { self.crowded + 1 } else { 0 };
            self.is_called = self.crowded >= CROWDED_MIN || is_stuck && now.is_waiting;
        }
        if !self.is_called {
            self.calm = 0;
        } else if self.crowded > 0 {
            self.crowded = 0;
        }
        last != now
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    /// The counters one millisecond after `last`. In it, `taken` requests were found, and `queued`
    /// of them were behind other callers.
    fn after(last: LoadSample, looks: u64, taken: u64, queued: u64) -> LoadSample {
        LoadSample {
            looks: last.looks + looks,
            taken: last.taken + taken,
            queued: last.queued + queued,
            queued_looks: last.queued_looks + queued,
            is_waiting: false,
            has_returns: false,
            ..last
        }
    }

    fn message(opcode: u32, pid: u32) -> Vec<u8> {
        let mut header = InHeader::new_zeroed();
        (header.opcode, header.pid) = (opcode, pid);
        header.as_bytes().to_vec()
    }

    #[test]
    fn a_program_alone_is_served_by_one_thread() {
        let (pace, mut judgement) = (Pace::default(), Judgement::default());
        for _ in 0..100 {
            // A single program has its next request ready as soon as it has its answer.
            for opcode in [op::LOOKUP, op::CREATE, op::GETXATTR, op::WRITE, op::SETATTR].repeat(8) {
                pace.look();
                pace.take(&message(opcode, 7), true);
                pace.take(&message(op::RELEASE, 0), true);
                pace.take(&message(op::FORGET, 0), true);
            }
            judgement.look(pace.seen());
            assert!(!judgement.is_called());
        }
    }

    #[test]
    fn others_that_were_called_leave_a_program_alone() {
        let (pace, mut judgement) = (Pace::default(), Judgement::default());
        judgement.look(LoadSample { is_waiting: true, ..pace.seen() });
        assert!(judgement.is_called());
        for _ in 0..=CALM_MIN {
            for opcode in [op::LOOKUP, op::CREATE, op::GETXATTR, op::WRITE, op::SETATTR].repeat(8) {
                pace.look();
                pace.take_beside(&message(opcode, 7), true);
                pace.take_beside(&message(op::RELEASE, 0), true);
            }
            judgement.look(pace.seen());
        }
        assert!(!judgement.is_called());
    }

    #[test]
    fn others_that_were_called_stay_for_many_callers() {
        let (pace, mut judgement) = (Pace::default(), Judgement::default());
        judgement.look(LoadSample { is_waiting: true, ..pace.seen() });
        for _ in 0..=2 * CALM_MIN {
            for caller in 0..CALLERS_MIN {
                pace.look();
                pace.take_beside(&message(op::CREATE, caller), false);
            }
            judgement.look(pace.seen());
            assert!(judgement.is_called());
        }
    }

    /// Returns whether this many programs, each at full speed, need overflow readers.
    fn are_called(programs: u32, opcode: u32) -> bool {
        let (pace, mut judgement) = (Pace::default(), Judgement::default());
        for _ in 0..CROWDED_MIN {
            for at in 0..40 {
                pace.look();
                pace.take(&message(opcode, at % programs), true);
            }
            judgement.look(pace.seen());
        }
        judgement.is_called()
    }

    #[test]
    fn others_are_called_for_what_they_answer_and_where_many_wait_behind_the_rest() {
        assert!(!are_called(1, op::GETATTR));
        assert!(are_called(2, op::GETATTR));
        assert!(!are_called(2, op::CREATE));
        assert!(are_called(CALLERS_MIN, op::CREATE));
        assert!(!are_called(CALLERS_MIN, op::READ));
    }

    #[test]
    fn a_thread_that_does_not_keep_up_gets_others_beside_it() {
        let (mut judgement, mut now) = (Judgement::default(), LoadSample::default());
        now = after(now, 80, 80, 78);
        judgement.look(now);
        assert!(!judgement.is_called());
        now = after(now, 80, 80, 78);
        judgement.look(now);
        assert!(judgement.is_called());
    }

    #[test]
    fn a_request_that_waits_while_nobody_looks_calls_others() {
        let (mut judgement, mut now) = (Judgement::default(), LoadSample::default());
        now = LoadSample { is_waiting: true, ..after(now, 1, 1, 0) };
        judgement.look(now);
        assert!(!judgement.is_called());
        judgement.look(now);
        assert!(judgement.is_called());
    }

    #[test]
    fn others_go_when_they_find_nothing_together_and_stay_while_the_loop_is_stuck() {
        let (mut judgement, now) = (Judgement::default(), LoadSample::default());
        let mut now = LoadSample { is_waiting: true, is_resting: false, ..now };
        judgement.look(now);
        assert!(judgement.is_called());
        for _ in 0..100 {
            now = LoadSample { beside: now.beside + 10, ..now }; // the loop is busy
            judgement.look(now);
            assert!(judgement.is_called());
        }
        for _ in 0..100 {
            now = LoadSample {
                beside: now.beside + 10,
                answered: now.answered + 8,
                together: now.together + 5,
                ..after(now, 1, 0, 0)
            };
            judgement.look(now);
            assert!(judgement.is_called());
        }
        for _ in 0..CALM_MIN {
            assert!(judgement.is_called());
            now = LoadSample { beside: now.beside + 10, ..after(now, 1, 0, 0) };
            judgement.look(now);
        }
        assert!(!judgement.is_called());
    }

    #[test]
    fn others_go_when_nothing_is_asked_for_whatever_the_loop_does() {
        for is_resting in [false, true] {
            let mut judgement = Judgement::default();
            judgement.look(LoadSample { is_waiting: true, is_resting, ..LoadSample::default() });
            assert!(judgement.is_called());
            for _ in 0..CALM_MIN {
                judgement.look(LoadSample { is_resting, ..LoadSample::default() });
            }
            assert!(!judgement.is_called());
        }
    }

    #[test]
    fn nothing_happens_where_nothing_is_seen() {
        let mut judgement = Judgement::default();
        assert!(!judgement.look(LoadSample::default()));
        assert!(judgement.look(after(LoadSample::default(), 1, 1, 0)));
    }
}
