//! The kernel keeps no old attributes after the notification of a change
//! (`native/src/mount/inodes/changes.rs`).

use dedupd_models::changes::Changes;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread::spawn;

const INODE: u64 = 7;

#[derive(Default)]
struct Mount {
    changes: Changes,
    /// The attributes of the inode below.
    status: AtomicUsize,
    /// True if the kernel was notified of the change. The kernel orders answers with its own lock.
    is_told: AtomicUsize,
}

/// An answer with the attributes of an inode. Asserts that they are old only for a moment, or
/// precede the notification of the change.
fn answer(mount: &Mount, has_changed: impl Fn(&Changes, u64) -> bool) {
    let since = mount.changes.now();
    let status = mount.status.load(Relaxed);
    let is_late = mount.is_told.load(Acquire) == 1;
    assert!(
        !is_late || status == 1 || has_changed(&mount.changes, since),
        "the kernel keeps the status of before the change"
    );
}

fn explore(note: fn(&Changes), has_changed: fn(&Changes, u64) -> bool) {
    loom::model(move || {
        let mount = Arc::new(Mount::default());
        let change = {
            let mount = mount.clone();
            spawn(move || {
                mount.status.store(1, Relaxed);
                note(&mount.changes);
                mount.is_told.store(1, Release);
            })
        };
        answer(&mount, has_changed);
        change.join().unwrap();
    });
}

#[test]
fn a_status_of_before_a_change_is_not_kept() {
    explore(|changes| changes.note(INODE), |changes, since| changes.has(INODE, since));
}

#[test]
fn a_status_of_before_a_move_is_not_kept() {
    explore(Changes::note_move, Changes::has_moves);
}

#[test]
fn the_later_of_two_changes_stays() {
    loom::model(|| {
        let changes = Arc::new(Changes::default());
        let other = {
            let changes = changes.clone();
            spawn(move || changes.note(INODE))
        };
        let since = changes.now();
        changes.note(INODE);
        assert!(changes.has(INODE, since));
        other.join().unwrap();
        assert!(changes.has(INODE, since) && !changes.has(INODE, changes.now()));
    });
}
