//! Reads without an answer: the next read of the same chunk need not wait as long again.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::format::cluster::kept_frame::Name;
use crate::threads::lock::locked;

/// Lifetime of a failure record; Python takes over sooner.
const NOTED: Duration = Duration::from_secs(2);

/// Recent failures of reads, with the library's errno.
#[derive(Default)]
pub struct Failures(Mutex<HashMap<Name, Failure>>);

type Failure = (i32, Instant);

fn is_recent(&(_, at): &Failure) -> bool {
    at.elapsed() < NOTED
}

impl Failures {
    pub fn note(&self, name: &Name, errno: i32) {
        let mut noted = locked(&self.0);
        noted.retain(|_, failure| is_recent(failure));
        noted.insert(*name, (errno, Instant::now()));
    }

    /// The errno of a recent failure.
    pub fn of(&self, name: &Name) -> Option<i32> {
        locked(&self.0).get(name).filter(|failure| is_recent(failure)).map(|&(errno, _)| errno)
    }

    /// The errno of one of these failures, which are all dropped; 0 if there is none.
    pub fn take<'a>(&self, names: impl Iterator<Item = &'a Name>) -> i32 {
        let mut noted = locked(&self.0);
        let taken: Vec<_> = names.filter_map(|name| noted.remove(name)).collect();
        taken.into_iter().find(is_recent).map_or(0, |(errno, _)| errno)
    }

    /// The errno of any failure; 0 if there is none.
    pub fn any(&self) -> i32 {
        let noted = locked(&self.0);
        noted.values().find(|failure| is_recent(failure)).map_or(0, |&(errno, _)| errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once() {
        let failures = Failures::default();
        failures.note(&[1; 32], 110);
        assert_eq!((failures.of(&[1; 32]), failures.of(&[2; 32])), (Some(110), None));
        assert_eq!((failures.any(), failures.any()), (110, 110));
        assert_eq!(failures.take([[2; 32], [1; 32]].iter()), 110);
        assert_eq!(failures.take([[2; 32], [1; 32]].iter()), 0);
        assert_eq!(failures.of(&[1; 32]), None);
        assert_eq!(failures.any(), 0);
    }
}
