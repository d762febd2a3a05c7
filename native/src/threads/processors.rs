//! Threads that are bound to a processor, among others that are not.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that the process may use.
static ALL: OnceLock<CpuSet> = OnceLock::new();

/// Binds the thread to a processor; where that is not there, it uses any. What it starts is bound, too,
/// until it calls [`spread`].
pub fn bind_to(processor: usize) {
    note_all();
    let mut processors = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        processors.set(processor);
    }
    let _ = sched_setaffinity(None, &processors);
}

/// Notes which processors there are, in a thread that is bound to none of them.
pub fn note_all() {
    if let Ok(all) = sched_getaffinity(None) {
        let _ = ALL.set(all);
    }
}

/// Whether the process may use a processor.
pub fn is_there(processor: usize) -> bool {
    ALL.get().is_some_and(|all| processor < CpuSet::MAX_CPU && all.is_set(processor))
}

/// Has a thread use all processors that a bound one may have started.
pub fn spread() {
    if let Some(all) = ALL.get() {
        let _ = sched_setaffinity(None, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bound_thread_starts_uses_all_processors() {
        std::thread::spawn(|| {
            note_all();
            let all = sched_getaffinity(None).unwrap();
            let last = (0..CpuSet::MAX_CPU).rfind(|&processor| all.is_set(processor)).unwrap();
            assert!(is_there(last));
            bind_to(last);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            let started = std::thread::spawn(|| {
                spread();
                sched_getaffinity(None).unwrap()
            });
            assert_eq!(started.join().unwrap(), all);
        })
        .join()
        .unwrap();
    }
}
