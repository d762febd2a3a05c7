//! One thread at a time has the turn, and no thread waits for it forever
//! (`native/src/mount/session/turn.rs`). loom reports a model in which all threads wait.

use dedupd_models::turn::Turn;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread::spawn;

/// Data that only the thread with the turn may access: loom reports two unordered accesses.
struct Mount {
    turn: Turn,
    guarded: UnsafeCell<usize>,
}

impl Mount {
    fn new() -> Arc<Mount> {
        Arc::new(Mount { turn: Turn::default(), guarded: UnsafeCell::new(0) })
    }

    fn touch(&self) {
        // SAFETY: the caller has the turn; loom checks that this is sufficient.
        self.guarded.with_mut(|value| unsafe { *value += 1 });
    }

    fn touched(&self) -> usize {
        // SAFETY: as above.
        self.guarded.with(|value| unsafe { *value })
    }
}

/// `others` threads take the turn once each, while a loop runs `of_loop` with it.
fn explore(others: usize, preemptions: Option<usize>, of_loop: fn(&Mount)) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let mount = Mount::new();
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let mount = mount.clone();
                spawn(move || {
                    let held = mount.turn.take();
                    mount.touch();
                    drop(held);
                })
            })
            .collect();
        mount.touch();
        of_loop(&mount);
        mount.turn.give();
        for thread in threads {
            thread.join().unwrap();
        }
        mount.turn.take_back();
        assert_eq!(mount.touched(), others + 2);
    });
}

#[test]
fn the_loop_and_one_other_are_never_inside_together() {
    explore(1, None, |mount| {
        mount.turn.give();
        mount.turn.take_back();
        mount.touch();
    });
}

#[test]
fn nor_is_any_of_two_others() {
    explore(2, Some(3), |mount| {
        mount.turn.give();
        mount.turn.take_back();
        mount.touch();
    });
}

#[test]
fn a_loop_that_does_not_wait_gets_the_turn_or_leaves_it() {
    explore(2, Some(3), |mount| {
        mount.turn.give();
        if !mount.turn.takes_back_at_once() {
            mount.turn.take_back();
        }
        mount.touch();
    });
}
