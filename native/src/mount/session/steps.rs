//! Steps of jobs that change files below. Users see only a different number of blocks.

use rustix::fs::Statx;

use crate::mount::requests::entries::status_of;
use crate::mount::session::line::Line;

impl Line {
    /// Starts a step: the inodes that the kernel knows keep their time of change for users.
    pub fn begin_steps(&self, nodes: &[u64]) {
        self.each_known(nodes, |node, status| {
            self.inodes().change_times.begin(node, status.stx_ctime);
        });
    }

    /// Ends a step. The kernel asks for the attributes again.
    pub fn end_steps(&self, nodes: &[u64]) {
        self.each_known(nodes, |node, status| {
            self.inodes().change_times.end(node, status.stx_ctime);
        });
        for &node in nodes {
            // The kernel has no attributes of an inode that it does not know.
            let _ = self.forget_attributes(node);
        }
    }

    fn each_known(&self, nodes: &[u64], note: impl Fn(u64, &Statx)) {
        let inodes = self.inodes();
        for &node in nodes.iter().filter(|&&node| inodes.knows(node)) {
            match inodes.path(node).and_then(status_of) {
                Ok(status) => note(node, &status),
                Err(_) => inodes.change_times.drop(node),
            }
        }
    }
}
