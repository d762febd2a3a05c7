//! Threads started for work that may wait, for example for a disk. For other work, see `pool`.

use std::sync::Mutex;
use std::thread;

use crate::threads::lock::locked;

/// Runs `work` on every task, on up to `threads` threads, each taking the next task when free. If
/// the system refuses more threads, the started threads do all the work.
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
    let next = || locked(&queue).next();
    thread::scope(|scope| {
        let run = || {
            while let Some(task) = next() {
                work(task);
            }
        };
        for _ in 1..threads {
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
}
