//! The turn: only its holder may change state that the event loop relies on between two awaits.
//!
//! The event-loop thread has the turn, except while trio waits for events. So a ring thread with
//! the turn makes its changes between two awaits of the loop, as the event-loop thread does. When
//! the event-loop thread releases the turn, all threads that already wait get it first. Threads
//! that come later let the event-loop thread in first, so neither side blocks the other.

use crate::threads::lock::{locked, woken};
use crate::threads::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    is_held: bool,
    /// True while the event-loop thread waits.
    loop_waits: bool,
    /// Number of other threads that wait.
    waiting: usize,
    /// Number of other threads that have the turn before the event-loop thread; at most `waiting`.
    let_in: usize,
}

/// The turn of one mount.
pub struct Turn {
    state: Mutex<State>,
    /// Wakes the event-loop thread.
    taken_back: Condvar,
    /// Wakes all other threads.
    given: Condvar,
}

/// The turn of a thread other than the event-loop thread, until this is dropped.
pub struct TurnGuard<'a>(&'a Turn);

impl Default for Turn {
    /// Creates the turn, held by the event-loop thread.
    fn default() -> Turn {
        let state = State { is_held: true, ..State::default() };
        Turn { state: Mutex::new(state), taken_back: Condvar::new(), given: Condvar::new() }
    }
}

impl Turn {
    /// Releases the turn of the event-loop thread, until [`Turn::take_back`].
    pub fn give(&self) {
        let mut state = locked(&self.state);
        state.is_held = false;
        state.let_in = state.waiting;
        self.pass_on(&state);
    }

    /// Takes the turn back for the event-loop thread if that needs no wait; returns whether it did.
    pub fn takes_back_at_once(&self) -> bool {
        let mut state = locked(&self.state);
        let is_free = !state.is_held && state.let_in == 0;
        state.is_held |= is_free;
        is_free
    }

    pub fn take_back(&self) {
        let mut state = locked(&self.state);
        state.loop_waits = true;
        while state.is_held || state.let_in > 0 {
            state = woken(&self.taken_back, state);
        }
        state.loop_waits = false;
        state.is_held = true;
    }

    /// Takes the turn for a thread other than the event-loop thread.
    pub fn take(&self) -> TurnGuard<'_> {
        let mut state = locked(&self.state);
        state.waiting += 1;
        while state.is_held || state.loop_waits && state.let_in == 0 {
            state = woken(&self.given, state);
        }
        state.waiting -= 1;
        state.let_in = state.let_in.saturating_sub(1);
        state.is_held = true;
        TurnGuard(self)
    }

    fn pass_on(&self, state: &State) {
        if state.loop_waits && state.let_in == 0 {
            self.taken_back.notify_one();
        } else if state.waiting > 0 {
            self.given.notify_one();
        }
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.is_held = false;
        self.0.pass_on(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread::{sleep, spawn};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn one_at_a_time_has_it_and_nobody_is_kept_out() {
        let turn = Arc::new(Turn::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let has_ended = Arc::new(AtomicBool::new(false));
        let counts: Vec<_> = (0..4).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let threads: Vec<_> = counts
            .iter()
            .map(|count| {
                let (turn, inside) = (Arc::clone(&turn), Arc::clone(&inside));
                let (count, has_ended) = (Arc::clone(count), Arc::clone(&has_ended));
                spawn(move || {
                    while !has_ended.load(Ordering::Relaxed) {
                        let held = turn.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let end = Instant::now() + Duration::from_secs(60);
        let mut rounds = 0;
        while rounds < 5000 || counts.iter().any(|count| count.load(Ordering::Relaxed) == 0) {
            assert!(Instant::now() < end, "a thread has never had the turn");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            inside.fetch_sub(1, Ordering::SeqCst);
            turn.give();
            if !turn.takes_back_at_once() {
                turn.take_back();
            }
            rounds += 1;
        }
        has_ended.store(true, Ordering::Relaxed);
        turn.give();
        for thread in threads {
            thread.join().unwrap();
        }
        turn.take_back();
    }

    #[test]
    fn others_that_wait_have_it_before_the_loop_has_it_again() {
        let turn = Arc::new(Turn::default());
        let done = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (turn, done) = (Arc::clone(&turn), Arc::clone(&done));
                spawn(move || {
                    let _held = turn.take();
                    done.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        while locked(&turn.state).waiting < 3 {
            sleep(Duration::from_millis(1));
        }
        turn.give();
        turn.take_back();
        assert_eq!(done.load(Ordering::SeqCst), 3);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn one_who_comes_later_lets_the_loop_in_first() {
        let turn = Arc::new(Turn::default());
        turn.give();
        let held = turn.take();
        let again = Arc::clone(&turn);
        let has_loop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&has_loop);
        let of_loop = spawn(move || {
            again.take_back();
            told.store(true, Ordering::SeqCst);
            sleep(Duration::from_millis(20));
            again.give();
        });
        while !locked(&turn.state).loop_waits {
            sleep(Duration::from_millis(1));
        }
        let later = Arc::clone(&turn);
        let other = spawn(move || {
            let _held = later.take();
            assert!(has_loop.load(Ordering::SeqCst));
        });
        while locked(&turn.state).waiting == 0 {
            sleep(Duration::from_millis(1));
        }
        drop(held);
        of_loop.join().unwrap();
        other.join().unwrap();
    }
}
