//! How many requests an HTTP/2 peer may open and abandon before its connection is cut (CVE-2023-44487, "rapid reset").
//! Abandoning is legitimate, doing nothing else is not.

use std::cell::Cell;

/// Requests that may be abandoned beyond those that were answered.
const BURST: u32 = 100;

/// One connection's account: each abandoned request costs one, each answered one earns one, up to [`BURST`].
#[derive(Debug)]
pub(super) struct Resets(Cell<u32>);

impl Default for Resets {
    fn default() -> Self {
        Self(Cell::new(BURST))
    }
}

impl Resets {
    /// A request was answered.
    pub(super) fn answered(&self) {
        self.0.set((self.0.get() + 1).min(BURST));
    }

    /// A request was abandoned. True: that was one too many.
    pub(super) fn abandoned(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoning_is_cut_after_the_burst() {
        let resets = Resets::default();
        assert_eq!((0..1_000).take_while(|_| !resets.abandoned()).count() as u32, BURST - 1);
    }

    #[test]
    fn abandoning_every_second_one_is_not() {
        let resets = Resets::default();
        assert!((0..10_000).all(|_| {
            resets.answered();
            !resets.abandoned()
        }));
    }
}
