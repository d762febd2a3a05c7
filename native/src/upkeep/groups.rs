//! Differences that may leave their base together: nothing but them needs it any more.

use std::collections::{HashMap, HashSet};

use crate::format::ids::RecordId;

/// What has become of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Open,
    Stays,
    /// This one of it, which came first, stands alone, and the others lean on it.
    LeansOn(RecordId),
}

/// The records that lean on one base.
pub struct Group {
    pub base: RecordId,
    pub members: Vec<RecordId>,
    pub decision: Decision,
}

/// Groups, by their members.
#[derive(Default)]
pub struct Groups {
    groups: Vec<Group>,
    of: HashMap<RecordId, usize>,
    by_base: HashMap<RecordId, usize>,
    alone: HashSet<RecordId>,
}

impl Groups {
    pub fn add(&mut self, base: RecordId, members: Vec<RecordId>) {
        self.of.extend(members.iter().map(|&member| (member, self.groups.len())));
        self.by_base.insert(base, self.groups.len());
        self.groups.push(Group { base, members, decision: Decision::Open });
    }

    pub fn group(&mut self, member: RecordId) -> Option<&mut Group> {
        let place = *self.of.get(&member)?;
        self.groups.get_mut(place)
    }

    /// Another record has come to lean on a base: its group does not leave it, if it has not yet.
    pub fn keep(&mut self, base: RecordId) {
        let group = self.by_base.get(&base).and_then(|&place| self.groups.get_mut(place));
        if let Some(group) = group.filter(|group| group.decision == Decision::Open) {
            group.decision = Decision::Stays;
        }
    }

    /// A member gets a payload of its own in the generation that is being made.
    pub fn stand_alone(&mut self, member: RecordId) {
        self.alone.insert(member);
    }

    pub fn stands_alone(&self, member: RecordId) -> bool {
        self.alone.contains(&member)
    }

    /// The bases that were left.
    pub fn left(&self) -> impl Iterator<Item = RecordId> {
        let has_left = |group: &&Group| matches!(group.decision, Decision::LeansOn(_));
        self.groups.iter().filter(has_left).map(|group| group.base)
    }
}
