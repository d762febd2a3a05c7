//! Threads bound to a processor, and threads that are not bound.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that the process may use.
static ALL: OnceLock<CpuSet> = OnceLock::new();

/// Binds the thread to a processor. If the processor is missing, the thread may use any. Its child
/// threads are also bound until they call [`spread`].
pub fn bind_to(processor: usize) {
    note_all();
    let mut processors = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        processors.set(processor);
    }
    let _ = sched_setaffinity(None, &processors);
}

/// Notes the available processors. The calling thread must not be bound.
pub fn note_all() {
    if let Ok(all) = sched_getaffinity(None) {
        let _ = ALL.set(all);
    }
}

/// Returns whether the process may use a processor.
pub fn is_there(processor: usize) -> bool {
    ALL.get().is_some_and(|all| processor < CpuSet::MAX_CPU && all.is_set(processor))
}

/// Makes a thread use all processors, because a bound thread may have started it.
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
