//! Threads that stay, for work of less than a millisecond: starting one takes a tenth of that.
//!
//! Who has work does it himself; a thread of the crew that is free lends a hand. So nobody waits for
//! a thread that the scheduler has not got round to: only for tasks that were begun.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

/// Runs `work` on every number below `count`, on the caller's thread and up to `helpers` more.
pub fn for_each(count: usize, helpers: usize, work: impl Fn(usize) + Sync) {
    let helpers = helpers.min(count.saturating_sub(1));
    if helpers == 0 {
        return (0..count).for_each(work);
    }
    let work: &(dyn Fn(usize) + Sync) = &work;
    // SAFETY: `Finish` does not let this function end, whichever way, before every task that was
    // begun has ended; and none begins after the last one was taken.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let job = Arc::new(Job {
        work,
        count,
        next: AtomicUsize::new(0),
        unfinished: AtomicUsize::new(count),
        owner: thread::current(),
    });
    Crew::of_all().lend(&job, helpers);
    let _finish = Finish(&job);
    job.help();
}

struct Job {
    work: &'static (dyn Fn(usize) + Sync),
    count: usize,
    /// The first task that nobody has taken.
    next: AtomicUsize,
    unfinished: AtomicUsize,
    owner: Thread,
}

impl Job {
    /// Takes tasks until none is left.
    fn help(&self) {
        while let Some(task) = self.take() {
            let _done = Done(self);
            (self.work)(task);
        }
    }

    fn take(&self) -> Option<usize> {
        let task = self.next.fetch_add(1, Ordering::Relaxed);
        (task < self.count).then_some(task)
    }

    fn finish_one(&self) {
        // Release: what the task wrote is seen by the owner, who acquires it.
        if self.unfinished.fetch_sub(1, Ordering::Release) == 1 {
            self.owner.unpark();
        }
    }
}

/// A task is done, even where it panics.
struct Done<'a>(&'a Job);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.finish_one();
    }
}

/// Waits for what others have begun; after a panic, takes what nobody has.
struct Finish<'a>(&'a Job);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        while self.0.take().is_some() {
            self.0.finish_one();
        }
        while self.0.unfinished.load(Ordering::Acquire) > 0 {
            thread::park();
        }
    }
}

#[derive(Default)]
struct Crew {
    /// How many threads there are.
    threads: Mutex<usize>,
    asked: Mutex<VecDeque<Arc<Job>>>,
    called: Condvar,
}

impl Crew {
    fn of_all() -> &'static Crew {
        static CREW: OnceLock<Crew> = OnceLock::new();
        CREW.get_or_init(Crew::default)
    }

    fn lend(&'static self, job: &Arc<Job>, helpers: usize) {
        let mut threads = lock(&self.threads);
        while *threads < helpers {
            let builder = thread::Builder::new().name("crew".into());
            if builder.spawn(|| self.serve()).is_err() {
                break; // the owner does it all
            }
            *threads += 1;
        }
        drop(threads);
        lock(&self.asked).extend((0..helpers).map(|_| Arc::clone(job)));
        (0..helpers).for_each(|_| self.called.notify_one());
    }

    fn serve(&self) {
        loop {
            let mut asked = lock(&self.asked);
            let job = loop {
                match asked.pop_front() {
                    Some(job) => break job,
                    None => {
                        asked = self.called.wait(asked).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(asked);
            // A panic is the task's; the thread goes on.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.help()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once() {
        for count in [0, 1, 2, 7, 1000] {
            for helpers in [0, 1, 3] {
                let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                for_each(count, helpers, |task| {
                    done[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn owners_of_several_jobs_get_their_own() {
        thread::scope(|scope| {
            for owner in 0..8 {
                scope.spawn(move || {
                    for _ in 0..500 {
                        let sum = AtomicUsize::new(0);
                        for_each(10, 2, |task| {
                            sum.fetch_add(owner * 100 + task, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), owner * 1000 + 45);
                    }
                });
            }
        });
    }

    #[test]
    fn a_helper_lends_a_hand() {
        let owner = thread::current().id();
        let helped = AtomicUsize::new(0);
        for_each(2, 1, |_| {
            // Neither task ends before both have begun.
            helped.fetch_add(1, Ordering::SeqCst);
            while helped.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            if thread::current().id() != owner {
                helped.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(helped.into_inner(), 3);
    }

    #[test]
    fn a_panic_reaches_the_owner_after_all_is_done() {
        let done = AtomicUsize::new(0);
        let owner = thread::current().id();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for_each(50, 1, |_| {
                assert!(thread::current().id() != owner, "as planned");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }));
        assert!(outcome.is_err() || done.into_inner() == 50);
    }
}
