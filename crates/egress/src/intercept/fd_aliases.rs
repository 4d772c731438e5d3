//! The other descriptors of the caller: one of them may mean the same socket, or watch it. Replacing one number would then tear apart what belongs
//! together.

use nearpath_kernel::remote_thread::FdRelation;

use super::decision::Doubt;

/// More descriptors than this are not looked at: each costs a system call.
const MOST: u64 = 256;
/// So many numbers in a row that are not open end the search by counting: the rest lies far off.
const GAP: u32 = 64;

/// A search through the numbers from 0 up, until as many descriptors were met as are open. Most programs have few, and the lowest numbers. Pure: who
/// asks the kernel gives the answers.
#[derive(Debug)]
pub(super) struct Search {
    own: i32,
    next: i32,
    left: u64,
    gap: u32,
}

impl Search {
    /// For the neighbours of descriptor `own` among `open` descriptors.
    pub(super) fn new(own: i32, open: u64) -> Result<Self, Doubt> {
        let left = open.saturating_sub(1);
        if open > MOST { Err(Doubt::Crowded) } else { Ok(Self { own, next: 0, left, gap: 0 }) }
    }

    /// The number to ask about; `None`: all were met, or the rest has to be listed.
    pub(super) fn ask(&mut self) -> Option<i32> {
        if self.next == self.own {
            self.next += 1;
        }
        (self.left > 0 && self.gap < GAP).then_some(self.next)
    }

    /// What it was.
    pub(super) fn met(&mut self, relation: FdRelation) -> Result<(), Doubt> {
        self.next += 1;
        if judge(relation)? {
            (self.left, self.gap) = (self.left - 1, 0);
        } else {
            self.gap += 1;
        }
        Ok(())
    }

    /// Of all numbers that are open, those that were not met.
    pub(super) fn unmet(&self, open: Vec<i32>) -> impl Iterator<Item = i32> {
        let (own, next) = (self.own, self.next);
        open.into_iter().filter(move |number| *number >= next && *number != own)
    }

    /// Whether the rest has to be listed. A descriptor that was counted may have been closed meanwhile: that costs time and no more.
    pub(super) fn is_unfinished(&self) -> bool {
        self.left > 0
    }
}

/// Whether there is such a descriptor, one that does not matter.
pub(super) fn judge(relation: FdRelation) -> Result<bool, Doubt> {
    match relation {
        FdRelation::Closed => Ok(false),
        FdRelation::Unrelated => Ok(true),
        FdRelation::Duplicate => Err(Doubt::Duplicated),
        FdRelation::EpollOf => Err(Doubt::Watched),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn search(own: i32, table: &[FdRelation]) -> Result<(), Doubt> {
        let at = |number: i32| table.get(number as usize).copied().unwrap_or(FdRelation::Closed);
        let open: Vec<i32> = (0..table.len() as i32).filter(|number| at(*number) != FdRelation::Closed).collect();
        let mut search = Search::new(own, open.len() as u64)?;
        while let Some(number) = search.ask() {
            assert_ne!(number, own);
            search.met(at(number))?;
        }
        assert!(search.is_unfinished() || search.unmet(open.clone()).count() == 0);
        search.unmet(open).try_for_each(|number| judge(at(number)).map(drop))
    }

    fn relation() -> impl Strategy<Value = FdRelation> {
        prop_oneof![1 => Just(FdRelation::Unrelated), 20 => Just(FdRelation::Closed)]
    }

    proptest! {
        #[test]
        fn one_neighbour_in_any_place_is_found(
            mut table in prop::collection::vec(relation(), 2..400), own: prop::sample::Index, at: prop::sample::Index,
            watches: bool,
        ) {
            let (own, at) = (own.index(table.len()), at.index(table.len()));
            table[own] = FdRelation::Unrelated;
            prop_assert_eq!(search(own as i32, &table), Ok(()));
            if own != at {
                table[at] = if watches { FdRelation::EpollOf } else { FdRelation::Duplicate };
                let doubt = if watches { Doubt::Watched } else { Doubt::Duplicated };
                prop_assert_eq!(search(own as i32, &table), Err(doubt));
            }
        }
    }

    #[test]
    fn too_many_are_not_looked_at() {
        assert_eq!(search(3, &[FdRelation::Unrelated; 300]), Err(Doubt::Crowded));
    }

    #[test]
    fn counting_ends_when_the_rest_is_far_off() {
        let (mut search, mut asked) = (Search::new(3, 9).unwrap(), 0);
        while search.ask().is_some() {
            asked += 1;
            search.met(FdRelation::Closed).unwrap();
        }
        assert_eq!((asked, search.is_unfinished()), (GAP, true));
    }
}
