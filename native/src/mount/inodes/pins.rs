//! Number of inodes without a name that each user has left open.

use crate::mount::counted::Counted;

pub const SUPERUSER: u32 = 0;

/// The inodes without a name that a descriptor keeps, by the user who removed the last name. A user
/// may have no more of them than remain for others.
pub struct Pins {
    left: usize,
    of_users: Counted<u32>,
}

impl Pins {
    pub fn new(count_max: usize) -> Pins {
        Pins { left: count_max, of_users: Counted::default() }
    }

    pub fn may_have(&self, uid: u32) -> bool {
        self.left > 0 && (uid == SUPERUSER || self.of_users.of(&uid) < self.left)
    }

    pub fn take(&mut self, uid: u32) {
        self.left = self.left.saturating_sub(1);
        self.of_users.add(uid);
    }

    pub fn give_back(&mut self, uid: u32) {
        self.left = self.left.saturating_add(1);
        self.of_users.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all inodes that a user gets, and returns their number.
    fn taken(pins: &mut Pins, uid: u32) -> usize {
        let mut count = 0;
        while pins.may_have(uid) {
            pins.take(uid);
            count += 1;
        }
        count
    }

    #[test]
    fn each_user_leaves_as_many_as_the_user_has() {
        let mut pins = Pins::new(100);
        assert_eq!([1, 2, SUPERUSER].map(|uid| taken(&mut pins, uid)), [50, 25, 25]);
        pins.give_back(1);
        assert!(pins.may_have(SUPERUSER));
        assert!(!pins.may_have(1));
    }
}
