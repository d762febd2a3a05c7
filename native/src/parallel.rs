//! Threads for work that is worth starting them; see `crew` for less.

use std::sync::{Mutex, PoisonError};

/// Runs `work` on every task, on up to `threads` threads, each taking the next task when free.
pub fn for_each<T: Send>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    threads: usize,
    work: impl Fn(T) + Sync,
) {
    let threads = threads.min(tasks.len());
    if threads <= 1 {
        return tasks.for_each(work);
    }
    let queue = Mutex::new(tasks);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let run = || {
            while let Some(task) = next() {
                work(task);
            }
        };
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}
