//! How many requests an HTTP/2 peer may open and abandon (CVE-2023-44487, "rapid reset"). Abandoning is legitimate: a call
//! with a deadline ends so. Doing little else is not.

use std::cell::Cell;

/// Requests that may be abandoned beyond those that were answered.
const BURST: i32 = 100;
/// What is forgiven with every tick: 24 a second.
const FORGIVEN: u32 = 6;

/// One connection's account: each abandoned request costs one, each answered one and the time earn some, up to [`BURST`].
#[derive(Debug)]
pub(super) struct Resets {
    left: Cell<i32>,
    tick: Cell<u32>,
}

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on.
    Fine,
    /// It takes no new requests (GOAWAY); an honest peer opens another one and loses nothing.
    Leave,
    /// It goes on abandoning nevertheless.
    Cut,
}

impl Resets {
    /// A connection that begins at tick `now`.
    pub(super) fn new(now: u32) -> Self {
        Self { left: Cell::new(BURST), tick: Cell::new(now) }
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        self.left.set((self.left.get() + 1).min(BURST));
    }

    /// A request was abandoned at tick `now`.
    pub(super) fn abandoned(&self, now: u32) -> Verdict {
        let ticks = now.wrapping_sub(self.tick.replace(now)).min(BURST.unsigned_abs());
        let forgiven = i32::try_from(ticks * FORGIVEN).unwrap_or(BURST);
        self.left.set((self.left.get() + forgiven).min(BURST) - 1);
        match self.left.get() {
            1.. => Verdict::Fine,
            left if left > -BURST => Verdict::Leave,
            _ => Verdict::Cut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoning_is_told_to_leave_after_the_burst_and_cut_after_another() {
        let resets = Resets::new(7);
        let verdicts: Vec<_> = (0..BURST * 2).map(|_| resets.abandoned(7)).collect();
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Fine).count() as i32, BURST - 1);
        assert_eq!(verdicts.last(), Some(&Verdict::Cut));
    }

    #[test]
    fn abandoning_every_second_one_is_fine() {
        let resets = Resets::new(0);
        assert!((0..10_000).all(|_| {
            resets.answered();
            resets.abandoned(0) == Verdict::Fine
        }));
    }

    #[test]
    fn a_call_with_a_deadline_now_and_then_is_fine_for_ever() {
        let resets = Resets::new(0);
        assert!((0..10_000).all(|n| resets.abandoned(n / FORGIVEN) == Verdict::Fine));
    }
}
