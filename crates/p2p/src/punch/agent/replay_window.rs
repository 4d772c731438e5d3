//! Which of the peer's asks have come already: a sliding window, as RFC 4303 section 3.4.3 has it.

/// Asks further behind the newest count as old.
const WINDOW_WIDTH: u64 = 64;

/// The numbers that have come.
#[derive(Debug, Default)]
pub(super) struct ReplayWindow {
    newest: u64,
    /// Bit n: `newest - n` has come.
    received: u64,
}

impl ReplayWindow {
    /// Whether this number comes for the first time. It has come from now on.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if number > self.newest {
            let step = number - self.newest;
            self.received = if step < WINDOW_WIDTH {
                self.received << step
            } else {
                0
            } | 1;
            self.newest = number;
            return true;
        }
        let age = self.newest - number;
        let new = age < WINDOW_WIDTH && self.received & (1 << age) == 0;
        if new {
            self.received |= 1 << age;
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_new_twice_and_what_is_young_is_new_once(numbers in prop::collection::vec(1u64..200, 0..300)) {
            let (mut window, mut come) = (ReplayWindow::default(), BTreeSet::new());
            for number in numbers {
                let young = come.last().is_none_or(|newest| number + WINDOW_WIDTH > *newest);
                let new = window.insert(number);
                prop_assert_eq!(new, young && come.insert(number));
            }
        }
    }
}
