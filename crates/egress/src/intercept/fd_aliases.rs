//! Searches the caller's other descriptors for aliases: duplicates of the socket, or epoll
//! instances that watch it. Replacing one number would split what belongs together.

use nearpath_kernel::remote_thread::FdRelation;

use super::decision::PassThroughReason;

/// Maximum descriptors that are searched: each costs a system call.
const MAX_SEARCHED_FDS: u64 = 256;
/// Length of a run of closed numbers that ends the search by counting; the remaining descriptors
/// are listed instead.
const MAX_CLOSED_RUN: u32 = 64;

/// A search through descriptor numbers from 0 until all open ones were visited. Most programs have
/// few, with low numbers. Pure: the caller asks the kernel.
#[derive(Debug)]
pub(super) struct AliasSearch {
    own_fd: i32,
    next_unvisited: i32,
    remaining: u64,
    closed_run: u32,
}

impl AliasSearch {
    /// Starts a search for aliases of `own_fd` among `open` descriptors.
    pub(super) fn new(own_fd: i32, open: u64) -> Result<Self, PassThroughReason> {
        // The socket itself is not among the others.
        let remaining = open.saturating_sub(1);
        if open > MAX_SEARCHED_FDS {
            Err(PassThroughReason::TooManyDescriptors)
        } else {
            Ok(Self {
                own_fd,
                next_unvisited: 0,
                remaining,
                closed_run: 0,
            })
        }
    }

    /// Returns the next number to check; `None` when all were visited or the rest has to be listed.
    pub(super) fn next_fd(&mut self) -> Option<i32> {
        if self.next_unvisited == self.own_fd {
            self.next_unvisited += 1;
        }
        (self.remaining > 0 && self.closed_run < MAX_CLOSED_RUN).then_some(self.next_unvisited)
    }

    /// Records the relation of the last number.
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

    /// Returns the numbers of `open` that were not visited.
    pub(super) fn unvisited_fds(&self, open: Vec<i32>) -> impl Iterator<Item = i32> {
        let (own_fd, next) = (self.own_fd, self.next_unvisited);
        open.into_iter()
            .filter(move |number| *number >= next && *number != own_fd)
    }

    /// Returns true if the rest has to be listed. A counted descriptor may have been closed
    /// meanwhile, which costs only time.
    pub(super) fn is_unfinished(&self) -> bool {
        self.remaining > 0
    }
}

/// Returns true for an unrelated descriptor and false for a closed one.
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

    fn run_search(own_fd: i32, table: &[FdRelation]) -> Result<(), PassThroughReason> {
        let at = |number: i32| {
            table
                .get(number as usize)
                .copied()
                .unwrap_or(FdRelation::Closed)
        };
        let open: Vec<i32> = (0..table.len() as i32)
            .filter(|number| at(*number) != FdRelation::Closed)
            .collect();
        let mut search = AliasSearch::new(own_fd, open.len() as u64)?;
        while let Some(number) = search.next_fd() {
            assert_ne!(number, own_fd);
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
        fn an_alias_at_any_descriptor_is_found(
            mut table in prop::collection::vec(any_relation(), 2..400), own_fd: prop::sample::Index, at: prop::sample::Index,
            watches: bool,
        ) {
            let (own_fd, at) = (own_fd.index(table.len()), at.index(table.len()));
            table[own_fd] = FdRelation::Unrelated;
            prop_assert_eq!(run_search(own_fd as i32, &table), Ok(()));
            if own_fd != at {
                table[at] = if watches { FdRelation::EpollOf } else { FdRelation::Duplicate };
                let reason = if watches { PassThroughReason::Watched } else { PassThroughReason::Duplicated };
                prop_assert_eq!(run_search(own_fd as i32, &table), Err(reason));
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
    fn the_search_stops_after_a_long_run_of_closed_numbers() {
        let (mut search, mut searched) = (AliasSearch::new(3, 9).unwrap(), 0);
        while search.next_fd().is_some() {
            searched += 1;
            search.record_relation(FdRelation::Closed).unwrap();
        }
        assert_eq!((searched, search.is_unfinished()), (MAX_CLOSED_RUN, true));
    }
}
