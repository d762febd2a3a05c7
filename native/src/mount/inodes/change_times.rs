//! The times of change that users see of inodes that jobs change.
//!
//! A file that becomes a stub, or plain again, keeps its content and attributes, but the file
//! system gives it a new time of change. Archivers (GNU tar, borg) would conclude that the file was
//! written to while they read it. So the kernel gets the earlier time until another change, or
//! until it forgets the inode. It does not forget open files.
//!
//! A job encloses each step in [`ChangeTimes::begin`] and [`ChangeTimes::end`]; steps of an inode
//! never overlap. A request of a user that changes an inode drops its kept time, after the change
//! and before the answer. A request that changes an inode by name (a rename or a removal) does not
//! identify the inode. It drops the kept times of all recent steps, because they may equal the time
//! of the change.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::StatxTimestamp;

use crate::threads::lock::locked;

/// Seconds and nanoseconds.
type Time = (i64, u32);

/// Changes further apart have different times: several times the coarsest clock of file systems.
const TICK: Duration = Duration::from_millis(50);

struct ShownTime {
    shown: Time,
    /// Time that the file system reports since the last step. None during a step.
    after: Option<Time>,
}

#[derive(Default)]
struct Table {
    kept: HashMap<u64, ShownTime>,
    /// Nodes with a step that started or ended recently, and when.
    recent: VecDeque<(u64, Instant)>,
}

#[derive(Default)]
pub struct ChangeTimes {
    /// Lets requests skip the lock if no time is kept.
    count: AtomicUsize,
    table: Mutex<Table>,
}

impl ChangeTimes {
    /// Starts a step of a node whose last change was at `now`.
    pub fn begin(&self, node: u64, now: StatxTimestamp) {
        self.change(|table| {
            let now = time(now);
            let shown = match table.kept.get(&node) {
                Some(kept) if kept.after == Some(now) => kept.shown,
                _ => now,
            };
            table.kept.insert(node, ShownTime { shown, after: None });
            table.recent.push_back((node, Instant::now()));
        });
    }

    /// Ends a step. If the node was also changed otherwise, no time is kept.
    pub fn end(&self, node: u64, now: StatxTimestamp) {
        self.change(|table| {
            if let Some(kept) = table.kept.get_mut(&node) {
                kept.after = Some(time(now));
                table.recent.push_back((node, Instant::now()));
            }
            while table.recent.front().is_some_and(|(_, when)| when.elapsed() > TICK) {
                let Some((node, when)) = table.recent.pop_front() else { break };
                if table.kept.get(&node).is_some_and(|kept| kept.after.is_none()) {
                    table.recent.push_front((node, when));
                    break;
                }
            }
        });
    }

    /// Drops the time of a node that a user has changed, or that the kernel has forgotten.
    pub fn drop(&self, node: u64) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.change(|table| _ = table.kept.remove(&node));
        }
    }

    /// Drops recent times after a user has changed an unknown node.
    pub fn drop_recent(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.change(|table| {
                for (node, when) in std::mem::take(&mut table.recent) {
                    let is_under_way =
                        table.kept.get(&node).is_some_and(|kept| kept.after.is_none());
                    if is_under_way || when.elapsed() <= TICK {
                        table.kept.remove(&node);
                    }
                }
            });
        }
    }

    /// The time that a user sees if the file system reports `now`.
    pub fn shown(&self, node: u64, mut now: StatxTimestamp) -> StatxTimestamp {
        if self.count.load(Ordering::SeqCst) == 0 {
            return now;
        }
        match locked(&self.table).kept.get(&node) {
            // A time in this range comes from a step, before its end.
            Some(ShownTime { shown, after })
                if after.is_none_or(|after| (*shown..=after).contains(&time(now))) =>
            {
                (now.tv_sec, now.tv_nsec) = *shown;
            }
            _ => {}
        }
        now
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = locked(&self.table);
        change(&mut table);
        self.count.store(table.kept.len(), Ordering::SeqCst);
    }
}

fn time(of: StatxTimestamp) -> Time {
    (of.tv_sec, of.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;
    use crate::mount::requests::entries::status_of;

    fn at(tv_sec: i64) -> StatxTimestamp {
        let mut time = status_of(std::fs::File::open("/").unwrap()).unwrap().stx_ctime;
        (time.tv_sec, time.tv_nsec) = (tv_sec, 0);
        time
    }

    fn seen(times: &ChangeTimes, now: i64) -> i64 {
        times.shown(7, at(now)).tv_sec
    }

    fn stepped(times: &ChangeTimes, before: i64, after: i64) {
        times.begin(7, at(before));
        times.end(7, at(after));
    }

    #[test]
    fn steps_do_not_show_one_after_another() {
        let times = ChangeTimes::default();
        assert_eq!(seen(&times, 1), 1);
        times.begin(7, at(1));
        assert_eq!(seen(&times, 2), 1, "during the step");
        times.end(7, at(3));
        assert_eq!(seen(&times, 3), 1);
        stepped(&times, 3, 5);
        assert_eq!(seen(&times, 5), 1);
        assert_eq!(seen(&times, 4), 1, "looked at during the step");
        assert_eq!(times.shown(8, at(5)).tv_sec, 5, "another node");
    }

    #[test]
    fn what_a_user_changes_shows() {
        let times = ChangeTimes::default();
        stepped(&times, 1, 3);
        assert_eq!(seen(&times, 4), 4, "by its time");
        stepped(&times, 4, 5);
        assert_eq!(seen(&times, 5), 4);
        times.drop(7);
        assert_eq!(seen(&times, 5), 5, "also at the same time");
        times.begin(7, at(5));
        times.drop(7);
        times.end(7, at(6));
        assert_eq!(seen(&times, 6), 6, "also within a step");
    }

    #[test]
    fn a_rename_drops_what_may_have_its_time() {
        let times = ChangeTimes::default();
        stepped(&times, 1, 3);
        times.drop_recent();
        assert_eq!(seen(&times, 3), 3);
        stepped(&times, 3, 4);
        sleep(2 * TICK);
        times.drop_recent();
        assert_eq!(seen(&times, 4), 3, "long after the step");
        times.begin(7, at(4));
        sleep(2 * TICK);
        times.drop_recent();
        times.end(7, at(6));
        assert_eq!(seen(&times, 6), 6, "within a long step");
    }
}
