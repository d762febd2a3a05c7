//! A thread that reads a plain file during a commit gets no byte that the commit has punched
//! (`docs/design/mount-locks.md#reads-next-to-the-loop`).

use dedupd_models::watched::Watched;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::spawn;

const INODE: u64 = 7;

/// An inode of the file system below, which orders accesses with its own locks. This code cannot see
/// them, so both threads use it relaxed: loom may give a load any value.
#[derive(Default)]
struct File {
    watched: Watched,
    has_attribute: AtomicUsize,
    is_punched: AtomicUsize,
}

impl File {
    /// The steps of a commit, in order.
    fn commit(&self) {
        self.watched.add(INODE);
        self.has_attribute.store(1, Relaxed);
        self.is_punched.store(1, Relaxed);
    }

    /// A read in the steps of `requests/reading.rs`: count, attribute, bytes, count.
    fn read(&self) {
        let Some(since) = self.watched.unwatched(INODE) else { return };
        if self.has_attribute.load(Relaxed) == 1 {
            return;
        }
        let found = self.is_punched.load(Relaxed);
        if self.watched.stays_unwatched(INODE, since) {
            assert_eq!(found, 0, "the answer has a byte that a commit has punched");
        }
    }
}

#[test]
fn a_read_beside_a_commit_has_no_punched_byte() {
    loom::model(|| {
        let file = Arc::new(File::default());
        let of_commit = file.clone();
        let commit = spawn(move || of_commit.commit());
        file.read();
        commit.join().unwrap();
    });
}

#[test]
fn nor_has_one_beside_a_commit_that_ends() {
    loom::model(|| {
        let file = Arc::new(File::default());
        let of_commit = file.clone();
        let commit = spawn(move || {
            of_commit.commit();
            of_commit.watched.remove(INODE);
        });
        file.read();
        commit.join().unwrap();
        assert!(!file.watched.has(INODE));
    });
}

#[test]
fn two_reasons_to_watch_an_inode_are_counted() {
    loom::model(|| {
        let watched = Arc::new(Watched::default());
        let before = watched.unwatched(INODE).unwrap();
        let other = {
            let watched = watched.clone();
            spawn(move || {
                watched.add(INODE);
                assert!(watched.has(INODE));
                watched.remove(INODE);
            })
        };
        watched.add(INODE);
        assert!(watched.unwatched(INODE).is_none());
        watched.remove(INODE);
        other.join().unwrap();
        assert!(!watched.has(INODE));
        assert!(!watched.stays_unwatched(INODE, before));
    });
}
