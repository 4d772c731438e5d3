//! The other descriptors of the caller: one of them may mean the same socket, or watch it. Replacing one number would then tear apart what belongs
//! together.

use nearpath_kernel::foreign::Relation;

use super::decide::Doubt;

/// More descriptors than this are not looked at: each costs a system call.
const MOST: u64 = 256;
/// So many numbers in a row that are not open end the search: one that was counted has been closed meanwhile, or lies far off.
const GAP: u32 = 64;

/// A search through the numbers from 0 up, until as many descriptors were met as are open. Pure: who asks the kernel gives the answers.
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
        if open > MOST { Err(Doubt::Crowded) } else { Ok(Self { own, next: 0, left: open.saturating_sub(1), gap: 0 }) }
    }

    /// The number to ask about; `None`: all were met.
    pub(super) fn ask(&mut self) -> Result<Option<i32>, Doubt> {
        if self.next == self.own {
            self.next += 1;
        }
        match self.left {
            0 => Ok(None),
            _ if self.gap == GAP => Err(Doubt::Crowded),
            _ => Ok(Some(self.next)),
        }
    }

    /// What it was.
    pub(super) fn met(&mut self, relation: Relation) -> Result<(), Doubt> {
        self.next += 1;
        match relation {
            Relation::Closed => {
                self.gap += 1;
                Ok(())
            }
            Relation::None => {
                (self.left, self.gap) = (self.left - 1, 0);
                Ok(())
            }
            Relation::Same => Err(Doubt::Duplicated),
            Relation::Watches => Err(Doubt::Watched),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn search(own: i32, table: &[Relation]) -> Result<(), Doubt> {
        let open = table.iter().filter(|relation| **relation != Relation::Closed).count();
        let mut search = Search::new(own, open as u64)?;
        while let Some(number) = search.ask()? {
            assert_ne!(number, own);
            search.met(table.get(number as usize).copied().unwrap_or(Relation::Closed))?;
        }
        Ok(())
    }

    fn relation() -> impl Strategy<Value = Relation> {
        prop_oneof![4 => Just(Relation::None), 3 => Just(Relation::Closed)] // no gap as long as `GAP`
    }

    proptest! {
        #[test]
        fn one_neighbour_in_any_place_is_found(
            mut table in prop::collection::vec(relation(), 2..200), own: prop::sample::Index, at: prop::sample::Index,
            watches: bool,
        ) {
            let (own, at) = (own.index(table.len()), at.index(table.len()));
            table[own] = Relation::None;
            prop_assert_eq!(search(own as i32, &table), Ok(()));
            if own != at {
                table[at] = if watches { Relation::Watches } else { Relation::Same };
                let doubt = if watches { Doubt::Watched } else { Doubt::Duplicated };
                prop_assert_eq!(search(own as i32, &table), Err(doubt));
            }
        }
    }

    #[test]
    fn a_search_ends() {
        assert_eq!(search(3, &[Relation::None; 300]), Err(Doubt::Crowded));
        let mut search = Search::new(3, 9).unwrap();
        let mut asked = 0;
        while let Ok(Some(_)) = search.ask() {
            asked += 1;
            search.met(Relation::Closed).unwrap();
        }
        assert_eq!((asked, search.ask()), (GAP, Err(Doubt::Crowded)));
    }
}
