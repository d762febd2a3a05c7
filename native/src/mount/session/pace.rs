//! How the thread of the loop is getting on, and when others are to take requests beside it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::mount::protocol::opcode as op;

/// Requests for whose answers nobody waits: a program alone has them beside its own, where the
/// kernel forgets what was removed.
pub const NO_LOAD: [u32; 2] = [op::FORGET, op::BATCH_FORGET];

/// What the loop's thread says of itself. Counters, which go up.
#[derive(Default)]
pub struct Pace {
    /// Looks for a request.
    looks: AtomicU64,
    /// Looks that found one.
    taken: AtomicU64,
    /// Looks that found none at once.
    empty: AtomicU64,
    /// Whether the last one found none. Else the thread is at work on one, or has been.
    is_resting: AtomicBool,
}

impl Pace {
    pub fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.is_resting.store(false, Ordering::Relaxed);
    }

    pub fn take(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub fn find_none(&self) {
        self.empty.fetch_add(1, Ordering::Relaxed);
    }

    pub fn rest(&self) {
        self.is_resting.store(true, Ordering::Relaxed);
    }

    pub fn seen(&self) -> Seen {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Seen {
            looks: of(&self.looks),
            taken: of(&self.taken),
            empty: of(&self.empty),
            is_resting: self.is_resting.load(Ordering::Relaxed),
            ..Seen::default()
        }
    }
}

/// What is seen at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub looks: u64,
    pub taken: u64,
    pub empty: u64,
    pub is_resting: bool,
    /// Requests that others took, and those of them that did not come alone.
    pub beside: u64,
    pub together: u64,
    /// Whether the kernel has a request, and whether one waits for the loop's thread.
    pub is_waiting: bool,
    pub has_returns: bool,
}

/// So many requests in a millisecond are a load: a program alone is answered 20 to 40.
const LOAD_MIN: u64 = 16;
/// Milliseconds in a row of a load that one thread does not keep up with.
const CROWDED_MIN: u32 = 2;
/// Milliseconds in a row without one.
const CALM_MIN: u32 = 20;

/// Decides whether others are to take requests, once a millisecond.
#[derive(Default)]
pub struct Judgement {
    last: Seen,
    crowded: u32,
    calm: u32,
    is_called: bool,
}

impl Judgement {
    pub fn is_called(&self) -> bool {
        self.is_called
    }

    /// Whether anything has happened since the last look; whether others are needed is for
    /// [`Judgement::is_called`] to say.
    pub fn look(&mut self, now: Seen) -> bool {
        let last = std::mem::replace(&mut self.last, now);
        let taken = now.taken - last.taken;
        let is_stuck = now.looks == last.looks;
        // One request after the other is there when the one before is answered.
        let is_crowded = taken >= LOAD_MIN && (now.empty - last.empty) * 4 <= taken;
        if self.is_called {
            let beside = now.beside - last.beside;
            let is_needed = is_crowded
                || is_stuck && (now.has_returns || !now.is_resting && beside > 0)
                || beside > 0 && (now.together - last.together) * 4 >= beside;
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
    use super::*;

    /// What is seen a millisecond after another look.
    fn after(last: Seen, looks: u64, taken: u64, empty: u64) -> Seen {
        Seen {
            looks: last.looks + looks,
            taken: last.taken + taken,
            empty: last.empty + empty,
            is_waiting: false,
            has_returns: false,
            ..last
        }
    }

    #[test]
    fn a_program_alone_is_served_by_one_thread() {
        let (mut judgement, mut now) = (Judgement::default(), Seen::default());
        for _ in 0..100 {
            now = after(now, 80, 40, 40);
            judgement.look(now);
            assert!(!judgement.is_called());
        }
    }

    #[test]
    fn a_thread_that_does_not_keep_up_gets_others_beside_it() {
        let (mut judgement, mut now) = (Judgement::default(), Seen::default());
        now = after(now, 80, 80, 2);
        judgement.look(now);
        assert!(!judgement.is_called());
        now = after(now, 80, 80, 2);
        judgement.look(now);
        assert!(judgement.is_called());
    }

    #[test]
    fn a_request_that_waits_while_nobody_looks_calls_others() {
        let (mut judgement, mut now) = (Judgement::default(), Seen::default());
        now = Seen { is_waiting: true, ..after(now, 1, 1, 0) };
        judgement.look(now);
        assert!(!judgement.is_called());
        judgement.look(now);
        assert!(judgement.is_called());
    }

    #[test]
    fn others_go_when_they_find_nothing_together_and_stay_while_the_loop_is_stuck() {
        let (mut judgement, now) = (Judgement::default(), Seen::default());
        let mut now = Seen { is_waiting: true, is_resting: false, ..now };
        judgement.look(now);
        assert!(judgement.is_called());
        for _ in 0..100 {
            now = Seen { beside: now.beside + 10, ..now }; // the loop has not looked
            judgement.look(now);
            assert!(judgement.is_called());
        }
        for _ in 0..100 {
            now =
                Seen { beside: now.beside + 10, together: now.together + 5, ..after(now, 1, 0, 1) };
            judgement.look(now);
            assert!(judgement.is_called());
        }
        for _ in 0..CALM_MIN {
            assert!(judgement.is_called());
            now = Seen { beside: now.beside + 10, ..after(now, 1, 0, 1) };
            judgement.look(now);
        }
        assert!(!judgement.is_called());
    }

    #[test]
    fn others_go_when_nothing_is_asked_for_whatever_the_loop_does() {
        for is_resting in [false, true] {
            let mut judgement = Judgement::default();
            judgement.look(Seen { is_waiting: true, is_resting, ..Seen::default() });
            assert!(judgement.is_called());
            for _ in 0..CALM_MIN {
                judgement.look(Seen { is_resting, ..Seen::default() });
            }
            assert!(!judgement.is_called());
        }
    }

    #[test]
    fn nothing_happens_where_nothing_is_seen() {
        let mut judgement = Judgement::default();
        assert!(!judgement.look(Seen::default()));
        assert!(judgement.look(after(Seen::default(), 1, 1, 0)));
    }
}
