//! A part of the table of inodes: state and open descriptors of each inode.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::handle::Handle;

/// The state of an inode.
pub struct Node {
    pub handle: Handle,
    pub lookups: u64,
    pub path: Option<Arc<OwnedFd>>,
    pub data: Option<Arc<DataFile>>,
    /// Keeps `path`: the inode has no name, or cannot be opened by its handle.
    pub is_pinned: bool,
    /// The user who removed the last name.
    pub pinned_by: Option<u32>,
    /// True if the node is in `recent`.
    is_recent: bool,
    /// True if a descriptor was used since the node was last considered for closing.
    pub is_used: bool,
    /// True if `data` was written to since `Inodes::close_idle` last checked.
    pub is_written: bool,
}

impl Node {
    /// Creates a node without a lookup.
    pub fn new(handle: Handle) -> Node {
        Node {
            handle,
            lookups: 0,
            path: None,
            data: None,
            is_pinned: false,
            pinned_by: None,
            is_recent: false,
            is_used: false,
            is_written: false,
        }
    }

    /// Number of descriptors that may be closed at any time.
    fn closable(&self) -> usize {
        usize::from(self.path.is_some() && !self.is_pinned) + usize::from(self.data.is_some())
    }
}

/// The nodes of a part of the table.
#[derive(Default)]
pub struct Shard {
    nodes: HashMap<u64, Node>,
    /// Nodes with open descriptors, the longest unused first.
    recent: VecDeque<u64>,
    /// Number of these descriptors that may be closed at any time.
    closable: usize,
}

impl Shard {
    pub fn nodes(&self) -> &HashMap<u64, Node> {
        &self.nodes
    }

    /// Adds a node if the inode has none.
    pub fn add(&mut self, inode: u64, node: impl FnOnce() -> Node) {
        self.nodes.entry(inode).or_insert_with(node);
    }

    /// Reads or changes a node. Returns None if the inode has none.
    pub fn change<T>(&mut self, inode: u64, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let node = self.nodes.get_mut(&inode)?;
        let before = node.closable();
        let result = change(node);
        self.closable = self.closable - before + node.closable();
        Some(result)
    }

    pub fn remove(&mut self, inode: u64) -> Option<Node> {
        let node = self.nodes.remove(&inode)?;
        self.closable -= node.closable();
        if node.is_recent {
            // A file that was created and removed immediately is usually at the end.
            if let Some(at) = self.recent.iter().rposition(|one| *one == inode) {
                self.recent.remove(at);
            }
        }
        Some(node)
    }

    /// Notes that a node has a descriptor. Closes the longest unused descriptors if more than
    /// `closable_max` are open.
    pub fn opened(&mut self, inode: u64, closable_max: usize) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.is_used = true;
            if !node.is_recent {
                node.is_recent = true;
                self.recent.push_back(inode);
            }
        }
        while self.closable > closable_max {
            let Some(oldest) = self.recent.pop_front() else { return };
            let Some(node) = self.nodes.get_mut(&oldest) else { continue };
            if std::mem::take(&mut node.is_used) {
                self.recent.push_back(oldest);
                continue;
            }
            node.is_recent = false;
            self.change(oldest, |node| {
                node.data = None;
                if !node.is_pinned {
                    node.path = None;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known inodes must be small: a million must stay below 400 MB with all related data.
    #[test]
    fn an_inode_takes_little_memory() {
        assert!(size_of::<(u64, Node)>() <= 80);
    }

    fn descriptor() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/").unwrap().into())
    }

    fn named(shard: &mut Shard, inode: u64) {
        shard.add(inode, || Node::new(Handle::new(&[])));
        shard.change(inode, |node| node.path = Some(descriptor()));
    }

    fn read(shard: &mut Shard, inode: u64) {
        let fd = descriptor().try_clone().unwrap();
        let data = Arc::new(DataFile { fd, is_writable: false });
        shard.change(inode, |node| node.data = Some(data));
    }

    fn open(shard: &Shard) -> usize {
        shard.nodes.values().map(Node::closable).sum()
    }

    #[test]
    fn each_descriptor_counts_and_the_longest_unused_ones_are_closed() {
        let shard = &mut Shard::default();
        for inode in 0..8 {
            named(shard, inode);
            read(shard, inode);
            shard.opened(inode, 10);
            assert!(open(shard) <= 10);
            assert_eq!(shard.closable, open(shard));
        }
        let kept: Vec<_> = (0..8).filter(|inode| shard.nodes[inode].path.is_some()).collect();
        assert_eq!(kept, [3, 4, 5, 6, 7]);
    }

    #[test]
    fn pinned_descriptors_do_not_count_and_stay() {
        let shard = &mut Shard::default();
        for inode in 0..4 {
            named(shard, inode);
            shard.change(inode, |node| node.is_pinned = true);
            shard.opened(inode, 1);
        }
        named(shard, 4);
        shard.opened(4, 0);
        assert!((0..4).all(|inode| shard.nodes[&inode].path.is_some()));
        assert!(shard.nodes[&4].path.is_none());
        shard.change(0, |node| node.is_pinned = false);
        shard.opened(0, 0);
        assert!(shard.nodes[&0].path.is_none());
        assert_eq!((shard.closable, open(shard)), (0, 0));
    }

    #[test]
    fn what_a_node_had_open_counts_no_more_once_it_is_removed() {
        let shard = &mut Shard::default();
        for inode in 0..4 {
            named(shard, inode);
            shard.opened(inode, 4);
        }
        for inode in [1, 3, 0, 2] {
            assert!(shard.remove(inode).is_some());
            assert_eq!(shard.closable, open(shard));
        }
        assert!(shard.recent.is_empty());
    }
}
