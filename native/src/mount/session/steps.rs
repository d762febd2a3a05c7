//! Steps of jobs that change files below, and nothing that users see of them but the number of blocks.

use rustix::fs::Statx;

use crate::mount::requests::entries::status_of;
use crate::mount::session::line::Line;

impl Line {
    /// Such a step begins: those of the inodes that the kernel knows keep their time of change for
    /// users.
    pub fn begin_steps(&self, nodes: &[u64]) {
        self.each_known(nodes, |node, status| {
            self.inodes().change_times.begin(node, status.stx_ctime);
        });
    }

    /// Such a step has ended. The kernel asks for the attributes again.
    pub fn end_steps(&self, nodes: &[u64]) {
        self.each_known(nodes, |node, status| {
            self.inodes().change_times.end(node, status.stx_ctime);
        });
        for &node in nodes {
            // Of one that it does not know it has nothing to forget.
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
