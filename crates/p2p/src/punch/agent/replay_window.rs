//! Which of the peer's asks have come already: a sliding window, as RFC 4303 section 3.4.3 has it.

/// Asks further behind the newest count as old.
const WIDTH: u64 = 64;

/// The numbers that have come.
#[derive(Debug, Default)]
pub(super) struct Window {
    newest: u64,
    /// Bit n: `newest - n` has come.
    come: u64,
}

impl Window {
    /// Whether this number comes for the first time. It has come from now on.
    pub(super) fn is_new(&mut self, number: u64) -> bool {
        if number > self.newest {
            let step = number - self.newest;
            self.come = if step < WIDTH { self.come << step } else { 0 } | 1;
            self.newest = number;
            return true;
        }
        let age = self.newest - number;
        let new = age < WIDTH && self.come & (1 << age) == 0;
        if new {
            self.come |= 1 << age;
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
            let (mut window, mut come) = (Window::default(), BTreeSet::new());
            for number in numbers {
                let young = come.last().is_none_or(|newest| number + WIDTH > *newest);
                let new = window.is_new(number);
                prop_assert_eq!(new, young && come.insert(number));
            }
        }
    }
}
