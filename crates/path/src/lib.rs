//! Selects the path of a call, a link or a connection: pure decisions over facts that the caller
//! already has.
//!
//! Each path has a module in `paths` with one function, `obstacle`, that returns the obstacle of the
//! path. [`select_paths`] calls those of one kind of traffic, nearest first. The [`PathPlan`] has
//! the paths without an obstacle, and the obstacles of the others. Gateway, watchdog and node carry
//! plans out. They report the obstacle in the completion record, in the response, and by
//! `nearpath paths`.
//!
//! `contract/paths.toml` lists paths and obstacles; `docs/guide/adding-a-path.md` shows how to add
//! a path.
#![forbid(unsafe_code)]

#[rustfmt::skip]
mod candidates;
mod facts;
#[rustfmt::skip]
mod generated;
mod names;
mod paths;
mod plan;

pub use facts::{
    CallFacts, CallNeeds, DirectSearch, EdgeFacts, EgressFacts, LinkFacts, SocketState,
    TransportFacts,
};
pub use generated::{Obstacle, Path};
pub use plan::{PathChoice, PathPlan};

/// Facts for the selection of one kind of traffic.
pub trait Facts: Sized + 'static {
    /// The paths of this kind of traffic, nearest first.
    const CANDIDATES: &'static [Candidate<Self>];
}

/// A path that can be selected.
#[derive(Debug)]
pub struct Candidate<F> {
    pub(crate) path: Path,
    /// Returns the obstacle to the path, the most lasting one first: users can remove that one.
    pub(crate) obstacle: fn(&F) -> Option<Obstacle>,
}

/// Decides which paths to try, and why not the others.
pub fn select_paths<F: Facts>(facts: &F) -> PathPlan {
    // The candidates are listed nearest first, and a plan keeps their order.
    F::CANDIDATES
        .iter()
        .fold(PathPlan::EMPTY, |plan, candidate| {
            plan.with_candidate(candidate.path, (candidate.obstacle)(facts))
        })
}

/// Returns the first obstacle whose condition holds.
fn first_obstacle(obstacles: &[(bool, Obstacle)]) -> Option<Obstacle> {
    // The first one counts: callers list the most lasting obstacle first, which a reader can mend.
    obstacles
        .iter()
        .find_map(|(is_there, obstacle)| is_there.then_some(*obstacle))
}

#[cfg(test)]
mod tests;
