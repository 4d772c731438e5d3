//! The other descriptors of the caller: one of them may mean the same socket, or watch it. Replacing one number would then tear apart what belongs
//! together.

use nearpath_kernel::remote_thread::FdRelation;

use super::decision::PassThroughReason;

/// More descriptors than this are not looked at: each costs a system call.
const MAX_SEARCHED_FDS: u64 = 256;
/// So many numbers in a row that are not open end the search by counting: the rest lies far off.
const MAX_CLOSED_RUN: u32 = 64;

/// A search through the numbers from 0 up, until as many descriptors were met as are open. Most programs have few, and the lowest numbers. Pure: who
/// asks the kernel gives the answers.
#[derive(Debug)]
pub(super) struct AliasSearch {
    own_fd: i32,
    next_unvisited: i32,
    remaining: u64,
    closed_run: u32,
}

impl AliasSearch {
    /// For the neighbours of descriptor `own` among `open` descriptors.
    pub(super) fn new(own: i32, open: u64) -> Result<Self, PassThroughReason> {
        let left = open.saturating_sub(1);
        if open > MAX_SEARCHED_FDS {
            Err(PassThroughReason::TooManyDescriptors)
        } else {
            Ok(Self {
                own_fd: own,
                next_unvisited: 0,
                remaining: left,
                closed_run: 0,
            })
        }
    }

    /// The number to ask about; `NoConnection`: all were met, or the rest has to be listed.
    pub(super) fn next_fd(&mut self) -> Option<i32> {
        if self.next_unvisited == self.own_fd {
            self.next_unvisited += 1;
        }
        (self.remaining > 0 && self.closed_run < MAX_CLOSED_RUN).then_some(self.next_unvisited)
    }

    /// What it was.
    pub(super) fn record_relation(
        &mut self,
        relation: FdRelation,
    ) -> Result<(), PassThroughReason> {
        self.next_unvisited += 1;
        if check_relation(relation)? {
            (self.remaining, self.closed_run) = (self.remaining - 1, 0);
        } else {
            self.closed_run += 1;
        }
        Ok(())
    }

    /// Of all numbers that are open, those that were not met.
    pub(super) fn unvisited_fds(&self, open: Vec<i32>) -> impl Iterator<Item = i32> {
        let (own, next) = (self.own_fd, self.next_unvisited);
        open.into_iter()
            .filter(move |number| *number >= next && *number != own)
    }

    /// Whether the rest has to be listed. A descriptor that was counted may have been closed meanwhile: that costs time and no more.
    pub(super) fn is_unfinished(&self) -> bool {
        self.remaining > 0
    }
}

/// Whether there is such a descriptor, one that does not matter.
pub(super) fn check_relation(relation: FdRelation) -> Result<bool, PassThroughReason> {
    match relation {
        FdRelation::Closed => Ok(false),
        FdRelation::Unrelated => Ok(true),
        FdRelation::Duplicate => Err(PassThroughReason::Duplicated),
        FdRelation::EpollOf => Err(PassThroughReason::Watched),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run_search(own: i32, table: &[FdRelation]) -> Result<(), PassThroughReason> {
        let at = |number: i32| {
            table
                .get(number as usize)
                .copied()
                .unwrap_or(FdRelation::Closed)
        };
        let open: Vec<i32> = (0..table.len() as i32)
            .filter(|number| at(*number) != FdRelation::Closed)
            .collect();
        let mut search = AliasSearch::new(own, open.len() as u64)?;
        while let Some(number) = search.next_fd() {
            assert_ne!(number, own);
            search.record_relation(at(number))?;
        }
        assert!(search.is_unfinished() || search.unvisited_fds(open.clone()).count() == 0);
        search
            .unvisited_fds(open)
            .try_for_each(|number| check_relation(at(number)).map(drop))
    }

    fn any_relation() -> impl Strategy<Value = FdRelation> {
        prop_oneof![1 => Just(FdRelation::Unrelated), 20 => Just(FdRelation::Closed)]
    }

    proptest! {
        #[test]
        fn one_neighbour_in_any_place_is_found(
            mut table in prop::collection::vec(any_relation(), 2..400), own: prop::sample::Index, at: prop::sample::Index,
            watches: bool,
        ) {
            let (own, at) = (own.index(table.len()), at.index(table.len()));
            table[own] = FdRelation::Unrelated;
            prop_assert_eq!(run_search(own as i32, &table), Ok(()));
            if own != at {
                table[at] = if watches { FdRelation::EpollOf } else { FdRelation::Duplicate };
                let doubt = if watches { PassThroughReason::Watched } else { PassThroughReason::Duplicated };
                prop_assert_eq!(run_search(own as i32, &table), Err(doubt));
            }
        }
    }

    #[test]
    fn too_many_descriptors_are_not_searched() {
        assert_eq!(
            run_search(3, &[FdRelation::Unrelated; 300]),
            Err(PassThroughReason::TooManyDescriptors)
        );
    }

    #[test]
    fn counting_ends_when_the_rest_is_far_off() {
        let (mut search, mut asked) = (AliasSearch::new(3, 9).unwrap(), 0);
        while search.next_fd().is_some() {
            asked += 1;
            search.record_relation(FdRelation::Closed).unwrap();
        }
        assert_eq!((asked, search.is_unfinished()), (MAX_CLOSED_RUN, true));
    }
}
