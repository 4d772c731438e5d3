//! Whom to let in: everybody, until too many handshakes are under way; then those who prove that they have the address that they
//! send from. Pure: it is told what happens and knows no socket.
//!
//! A proof costs the client a round trip (Retry, RFC 9000 section 8.1.2) and costs this side nothing: no state is kept, so a flood from
//! forged addresses ends here.

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door {
    /// Handshakes under way from which on newcomers must prove their address; 0: always.
    prove: usize,
    /// Handshakes under way from which on nobody is let in.
    refuse: usize,
    half_open: usize,
}

/// What becomes of a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its handshake begins; [`Door::settled`] is to be called when it ends, whichever way.
    Admit,
    /// It must prove its address first.
    Prove,
    /// It is turned away.
    Refuse,
}

impl Door {
    /// Newcomers prove their address while `prove` handshakes or more are under way. With `prove` times eight, and at least 1,024, none
    /// is let in.
    pub fn new(prove: usize) -> Self {
        Self { prove, refuse: prove.saturating_mul(8).max(1_024), half_open: 0 }
    }

    /// Decides. `proven`: it bears a token that proves its address. `room`: there is room for one more connection.
    pub fn knock(&mut self, proven: bool, room: bool) -> Verdict {
        if !room || self.half_open >= self.refuse {
            return Verdict::Refuse;
        }
        if self.half_open >= self.prove && !proven {
            return Verdict::Prove;
        }
        self.half_open += 1;
        Verdict::Admit
    }

    /// A handshake that was let begin is complete, or was given up.
    pub fn settled(&mut self) {
        self.half_open = self.half_open.saturating_sub(1);
    }

    /// Handshakes under way.
    pub fn half_open(&self) -> usize {
        self.half_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_means_always() {
        assert_eq!(Door::new(0).knock(false, true), Verdict::Prove);
        assert_eq!(Door::new(0).knock(true, true), Verdict::Admit);
    }

    #[test]
    fn a_flood_without_proof_leaves_room_for_those_who_have_one() {
        let mut door = Door::new(4);
        let verdicts: Vec<_> = (0..10_000).map(|_| door.knock(false, true)).collect();
        assert_eq!(verdicts.iter().filter(|one| **one == Verdict::Admit).count(), 4);
        assert_eq!((verdicts.last(), door.knock(true, true)), (Some(&Verdict::Prove), Verdict::Admit));
        door.settled();
        door.settled();
        assert_eq!(door.knock(false, true), Verdict::Admit);
    }

    proptest! {
        #[test]
        fn what_is_under_way_is_counted_and_bounded(prove in 0_usize..300, steps: Vec<(bool, bool, bool)>) {
            let (mut door, mut under_way) = (Door::new(prove), 0_usize);
            for (end, proven, room) in steps {
                if end && under_way > 0 {
                    door.settled();
                    under_way -= 1;
                    continue;
                }
                match door.knock(proven, room) {
                    Verdict::Admit => {
                        prop_assert!(room && (proven || under_way < prove));
                        under_way += 1;
                    }
                    Verdict::Prove => prop_assert!(!proven && under_way >= prove),
                    Verdict::Refuse => prop_assert!(!room || under_way >= 1_024),
                }
                prop_assert_eq!(door.half_open(), under_way);
            }
        }
    }
}
