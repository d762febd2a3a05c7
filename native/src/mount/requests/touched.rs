//! What a request changes, as far as it says so.

use crate::mount::inodes::change_times::ChangeTimes;
use crate::mount::inodes::changes::Changes;
use crate::mount::protocol::abi::{CopyFileRangeIn, LinkIn, Rename2In, RenameIn};
use crate::mount::protocol::message::Request;
use crate::mount::protocol::opcode as op;

/// The inodes whose attributes a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    node: u64,
    other: Option<u64>,
    /// Another one gets a new place, too.
    moves: bool,
    /// Another one loses a name.
    removes: bool,
    /// Only the access time changes.
    reads: bool,
}

impl Touched {
    /// None of a request that only looks. (One to read moves the access time.)
    pub fn of(request: &Request) -> Option<Touched> {
        if !op::route(request.header.opcode).touches {
            return None;
        }
        let (other, moves) = match request.header.opcode {
            op::RENAME => (request.part().ok().map(|given: RenameIn| given.new_parent), true),
            op::RENAME2 => (request.part().ok().map(|given: Rename2In| given.new_parent), true),
            op::LINK => (request.part().ok().map(|given: LinkIn| given.node), false),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                (request.part().ok().map(|given: CopyFileRangeIn| given.node_out), false)
            }
            _ => (None, false),
        };
        let opcode = request.header.opcode;
        let (removes, reads) = (opcode == op::UNLINK, opcode == op::READ);
        Some(Touched { node: request.header.node, other, moves, removes, reads })
    }

    /// The change is made.
    pub fn note(&self, changes: &Changes, times: &ChangeTimes) {
        for node in [Some(self.node), self.other].into_iter().flatten() {
            if !self.reads {
                times.drop(node);
            }
            changes.note(node);
        }
        if self.moves || self.removes {
            times.drop_recent();
        }
        if self.moves {
            changes.note_move();
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::mount::protocol::abi::InHeader;

    fn touched(opcode: u32, fixed: &[u8]) -> Option<Touched> {
        let mut header = InHeader::new_zeroed();
        (header.opcode, header.node) = (opcode, 7);
        Touched::of(&Request { header, fixed, rest: &[] })
    }

    #[test]
    fn both_directories_of_a_rename_change_and_what_is_moved() {
        let given = RenameIn { new_parent: 9 };
        let expected =
            Touched { node: 7, other: Some(9), moves: true, removes: false, reads: false };
        assert_eq!(touched(op::RENAME, given.as_bytes()), Some(expected));
        let changes = Changes::default();
        expected.note(&changes, &ChangeTimes::default());
        assert!([7, 9].iter().all(|node| changes.has(*node, 0)) && changes.has_moves(0));
    }

    #[test]
    fn a_copy_changes_where_it_goes_to_and_looking_changes_nothing() {
        let given = CopyFileRangeIn { node_out: 9, ..CopyFileRangeIn::new_zeroed() };
        let expected =
            Touched { node: 7, other: Some(9), moves: false, removes: false, reads: false };
        assert_eq!(touched(op::COPY_FILE_RANGE, given.as_bytes()), Some(expected));
        for opcode in [op::LOOKUP, op::GETATTR, op::READDIRPLUS, op::FORGET, op::GETXATTR] {
            assert_eq!(touched(opcode, &[]), None);
        }
    }
}
