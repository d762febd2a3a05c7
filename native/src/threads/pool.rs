//! Permanent threads for work of less than a millisecond: starting a thread takes a tenth of that.
//!
//! The caller does its own work, and idle threads of the pool help. So the caller waits only for
//! tasks in progress, and never for a thread that is not scheduled yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;

use crate::threads::lock::{locked, unlocked, woken};

/// Runs `work` on every task, on up to `threads` threads, including the caller's.
///
/// Work that waits, for example for a disk, would block the pool for other callers: use `scoped`
/// for such work.
pub fn for_each_of<T: Send>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    threads: usize,
    work: impl Fn(T) + Sync,
) {
    let count = tasks.len();
    let tasks = Mutex::new(tasks);
    for_each(count, threads.saturating_sub(1), |_| {
        let task = locked(&tasks).next();
        task.into_iter().for_each(&work);
    });
}

/// The results of `work` for every number below `count`, in order; otherwise as [`for_each`].
pub fn map<T: Send>(count: usize, helpers: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let made: Vec<_> = (0..count).map(|_| Mutex::new(None)).collect();
    for_each(count, helpers, |at| *locked(&made[at]) = Some(work(at)));
    made.into_iter().map(|one| unlocked(one).expect("all have run")).collect()
}

/// Runs `work` on every number below `count`, in the caller's thread and up to `helpers` other
/// threads. Panics if a helper panicked.
pub fn for_each(count: usize, helpers: usize, work: impl Fn(usize) + Sync) {
    let helpers = helpers.min(count.saturating_sub(1));
    if helpers == 0 {
        return (0..count).for_each(work);
    }
    let work: &(dyn Fn(usize) + Sync) = &work;
    // SAFETY: `RunningTasks` prevents this function from returning or unwinding before every started task
    // has ended. No task starts after the last one was taken.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let begun = begin(count, helpers, work);
    begun.finish();
    assert!(!begun.0.has_panicked.load(Ordering::Acquire), "a helper panicked");
}

/// Starts `work` on every number below `count`, on up to `helpers` threads.
pub fn begin(
    count: usize,
    helpers: usize,
    work: impl Fn(usize) + Send + Sync + 'static,
) -> RunningTasks {
    let job = Arc::new(Job {
        work: Box::new(work),
        count,
        next: AtomicUsize::new(0),
        unfinished: AtomicUsize::new(count),
        has_panicked: AtomicBool::new(false),
        ending: Mutex::new(()),
        ended: Condvar::new(),
    });
    Pool::of_all().lend(&job, helpers.min(count));
    RunningTasks(job)
}

/// Tasks that the pool may be working on. Dropping this ends the work.
pub struct RunningTasks(Arc<Job>);

impl RunningTasks {
    /// Runs the tasks that no thread has started, and waits for the others.
    pub fn finish(&self) {
        self.0.help();
        self.0.wait();
    }
}

impl Drop for RunningTasks {
    /// Cancels the tasks that no thread has started, and waits for the others.
    fn drop(&mut self) {
        while self.0.take().is_some() {
            self.0.finish_one();
        }
        self.0.wait();
    }
}

struct Job {
    work: Box<dyn Fn(usize) + Send + Sync>,
    count: usize,
    /// The first task that no thread has taken.
    next: AtomicUsize,
    unfinished: AtomicUsize,
    has_panicked: AtomicBool,
    ending: Mutex<()>,
    ended: Condvar,
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
        // Release: pairs with the acquire of the waiting thread, which then sees the task's writes.
        if self.unfinished.fetch_sub(1, Ordering::Release) == 1 {
            let _guard = locked(&self.ending);
            self.ended.notify_all();
        }
    }

    fn wait(&self) {
        let mut guard = locked(&self.ending);
        while self.unfinished.load(Ordering::Acquire) > 0 {
            guard = woken(&self.ended, guard);
        }
    }
}

/// Marks a task as done, even if it panics.
struct Done<'a>(&'a Job);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.has_panicked.store(true, Ordering::Release);
        }
        self.0.finish_one();
    }
}

#[derive(Default)]
struct Pool {
    /// Number of threads.
    threads: Mutex<usize>,
    asked: Mutex<VecDeque<Arc<Job>>>,
    called: Condvar,
}

impl Pool {
    fn of_all() -> &'static Pool {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(Pool::default)
    }

    fn lend(&'static self, job: &Arc<Job>, helpers: usize) {
        let mut threads = locked(&self.threads);
        while *threads < helpers {
            let builder = thread::Builder::new().name("pool".into());
            if builder.spawn(|| self.serve()).is_err() {
                break; // the caller does all tasks
            }
            *threads += 1;
        }
        // A job that no thread takes would stay in the queue, with all its references.
        let helpers = helpers.min(*threads);
        drop(threads);
        locked(&self.asked).extend((0..helpers).map(|_| Arc::clone(job)));
        (0..helpers).for_each(|_| self.called.notify_one());
    }

    fn serve(&self) {
        loop {
            let mut asked = locked(&self.asked);
            let job = loop {
                match asked.pop_front() {
                    Some(job) => break job,
                    None => {
                        asked = woken(&self.called, asked);
                    }
                }
            };
            drop(asked);
            // A panic ends only the task; the thread continues.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.help()));
        }
    }
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
    fn what_was_begun_is_finished_once() {
        for count in [0, 1, 2, 100] {
            let done: Arc<Vec<AtomicUsize>> =
                Arc::new((0..count).map(|_| AtomicUsize::new(0)).collect());
            let own = Arc::clone(&done);
            let begun = begin(count, 2, move |task| {
                own[task].fetch_add(1, Ordering::Relaxed);
            });
            begun.finish();
            begun.finish();
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn nothing_runs_once_what_was_begun_is_dropped() {
        for _ in 0..500 {
            let running = Arc::new(AtomicUsize::new(0));
            let own = Arc::clone(&running);
            let begun = begin(10, 2, move |_| {
                own.fetch_add(1, Ordering::SeqCst);
                thread::yield_now();
                own.fetch_sub(1, Ordering::SeqCst);
            });
            drop(begun);
            assert_eq!(running.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_helper_lends_a_hand() {
        let owner = thread::current().id();
        let helped = AtomicUsize::new(0);
        for_each(2, 1, |_| {
            // No task ends before both have started.
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
    fn every_task_of_several_is_given_out_once() {
        for threads in 0..4 {
            let mut done = vec![0; 100];
            for_each_of(done.chunks_mut(7), threads, |own| own.iter_mut().for_each(|n| *n += 1));
            assert_eq!(done, [1; 100]);
        }
    }

    #[test]
    fn a_panic_of_a_helper_reaches_the_owner() {
        let owner = thread::current().id();
        let begun = AtomicUsize::new(0);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for_each(2, 1, |_| {
                // No task ends before both have started.
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                assert!(thread::current().id() == owner, "as planned");
            });
        }));
        assert!(outcome.is_err());
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
