//! Replay window over the numbers of the peer's requests, as in RFC 4303 section 3.4.3.

/// Width of the window; older numbers count as received.
const WINDOW_WIDTH: u64 = 64;

/// Received numbers.
#[derive(Debug, Default)]
pub(super) struct ReplayWindow {
    newest: u64,
    /// Bit n: `newest - n` was received.
    received: u64,
}

impl ReplayWindow {
    /// Records a number. Returns whether it is new.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if number > self.newest {
            let step = number - self.newest;
            // Shifting by the full width would overflow.
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
        fn no_number_is_new_twice_and_recent_numbers_are_new_once(numbers in prop::collection::vec(1u64..200, 0..300)) {
            let (mut window, mut come) = (ReplayWindow::default(), BTreeSet::new());
            for number in numbers {
                let young = come.last().is_none_or(|newest| number + WINDOW_WIDTH > *newest);
                let new = window.insert(number);
                prop_assert_eq!(new, young && come.insert(number));
            }
        }
    }
}
