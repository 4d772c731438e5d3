//! Which path does this call take, and why: pure decisions over facts that the caller already has.
//!
//! Paths are tried from the nearest to the farthest. The first one that nothing stands against is taken, and what stood
//! against the one before it is told: in the completion record, on request in the answer, and by `nearpath paths`.
#![forbid(unsafe_code)]

mod facts;
mod obstacle;
mod path;

pub use facts::{Call, Edge, Facts};
pub use obstacle::Obstacle;
pub use path::Path;

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The nearest path that is open.
    pub path: Path,
    /// What stands against the next nearer one; `None`: there is no nearer one.
    pub obstacle: Option<Obstacle>,
}

/// Decides for one call to one instance.
pub fn choose(facts: &Facts) -> Choice {
    match shared_memory(facts) {
        None => Choice { path: Path::Shm, obstacle: None },
        obstacle => Choice { path: Path::Http, obstacle },
    }
}

/// What stands against shared memory, the most lasting first: that is what its reader can mend.
fn shared_memory(facts: &Facts) -> Option<Obstacle> {
    let Facts { edge, call } = facts;
    let standing = [
        (!edge.same_node, Obstacle::OtherNode),
        (!edge.callee_in_domain, Obstacle::NoDomain),
        (!edge.same_domain, Obstacle::OtherDomain),
        (!edge.caller_is_party, Obstacle::CallerNoParty),
        (!edge.callee_is_party, Obstacle::NoParty),
        (call.upgrade, Obstacle::Upgrade),
        (call.grpc, Obstacle::Grpc),
    ];
    standing.into_iter().find_map(|(stands, obstacle)| stands.then_some(obstacle))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Edge = Edge {
        same_node: true,
        callee_in_domain: true,
        same_domain: true,
        caller_is_party: true,
        callee_is_party: true,
    };
    const PLAIN: Call = Call { upgrade: false, grpc: false };

    #[test]
    fn nothing_in_the_way_is_shared_memory() {
        let choice = choose(&Facts { edge: NEAR, call: PLAIN });
        assert_eq!(choice, Choice { path: Path::Shm, obstacle: None });
    }

    #[test]
    fn each_obstacle_leads_to_http_and_is_told() {
        let table = [
            (Edge { same_node: false, ..NEAR }, PLAIN, Obstacle::OtherNode),
            (Edge { callee_in_domain: false, ..NEAR }, PLAIN, Obstacle::NoDomain),
            (Edge { same_domain: false, ..NEAR }, PLAIN, Obstacle::OtherDomain),
            (Edge { caller_is_party: false, ..NEAR }, PLAIN, Obstacle::CallerNoParty),
            (Edge { callee_is_party: false, ..NEAR }, PLAIN, Obstacle::NoParty),
            (NEAR, Call { upgrade: true, ..PLAIN }, Obstacle::Upgrade),
            (NEAR, Call { grpc: true, ..PLAIN }, Obstacle::Grpc),
        ];
        assert_eq!(table.len() + 1, Obstacle::ALL.len(), "every obstacle has its line; NoRoom shows only when sending");
        for (edge, call, obstacle) in table {
            let choice = choose(&Facts { edge, call });
            assert_eq!(choice, Choice { path: Path::Http, obstacle: Some(obstacle) });
        }
    }

    #[test]
    fn the_most_lasting_obstacle_is_told() {
        let edge = Edge { callee_in_domain: false, callee_is_party: false, ..NEAR };
        let choice = choose(&Facts { edge, call: Call { upgrade: true, ..PLAIN } });
        assert_eq!(choice.obstacle, Some(Obstacle::NoDomain));
    }

    #[test]
    fn names_are_words_and_texts_are_sentences() {
        for obstacle in Obstacle::ALL {
            assert!(obstacle.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{obstacle}");
            assert!(obstacle.to_string().len() > 10, "{obstacle}");
        }
    }
}
