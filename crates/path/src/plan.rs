//! Outcome of a selection.

use std::fmt;

use crate::generated::MAX_CANDIDATES;
use crate::{Obstacle, Path};

/// Paths of one kind of traffic with their obstacles, nearest first.
///
/// A plan is a few bytes and lives on the stack: the gateway makes one for every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathPlan {
    candidates: [Option<(Path, Option<Obstacle>)>; MAX_CANDIDATES],
}

/// Path that is taken, for records and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathChoice {
    /// The path.
    pub path: Path,
    /// The obstacle of the next nearer path that no setting excludes; none: there is no nearer
    /// path.
    pub obstacle: Option<Obstacle>,
}

impl fmt::Display for PathChoice {
    /// Writes `shm`, or for example `http; obstacle=no_domain`: the value of `X-Nearpath-Path`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path.name())?;
        match self.obstacle {
            Some(obstacle) => write!(f, "; obstacle={}", obstacle.name()),
            None => Ok(()),
        }
    }
}

impl PathPlan {
    pub(crate) const EMPTY: Self = Self {
        candidates: [None; MAX_CANDIDATES],
    };

    pub(crate) fn with_candidate(mut self, path: Path, obstacle: Option<Obstacle>) -> Self {
        // An array instead of a `Vec`: the gateway makes a plan for each call, without allocation.
        let free = self
            .candidates
            .iter_mut()
            .find(|candidate| candidate.is_none());
        *free.expect("the generated bound is the longest list of candidates") =
            Some((path, obstacle));
        self
    }

    /// Returns the paths to try, in order; none if each has an obstacle.
    pub fn usable_paths(&self) -> impl Iterator<Item = Path> {
        self.all_candidates()
            .filter_map(|(path, obstacle)| obstacle.is_none().then_some(path))
    }

    /// Returns the other paths, with the obstacle of each.
    pub fn obstacles(&self) -> impl Iterator<Item = (Path, Obstacle)> {
        self.all_candidates()
            .filter_map(|(path, obstacle)| Some((path, obstacle?)))
    }

    /// Returns whether the path is one of those to try.
    pub fn allows_path(&self, path: Path) -> bool {
        self.usable_paths().any(|allowed| allowed == path)
    }

    /// Returns the first path to try. If each has an obstacle, it is the last one that no setting
    /// excludes: opening that fails, and the failure names the cause.
    pub fn first_choice(&self) -> PathChoice {
        // Begins with the nearest path, so that there is a choice even if settings exclude all of
        // them.
        let mut choice = PathChoice {
            path: self.nearest_path(),
            obstacle: None,
        };
        let mut nearer = None;
        // An excluded path is no candidate: a record must not name a setting as an obstacle (ADR
        // 67).
        for (path, obstacle) in self
            .all_candidates()
            .filter(|(_, obstacle)| *obstacle != Some(Obstacle::Excluded))
        {
            choice = PathChoice {
                path,
                obstacle: nearer,
            };
            if obstacle.is_none() {
                break;
            }
            // Remembered for the next candidate, whose record says why no nearer path was taken.
            nearer = obstacle;
        }
        choice
    }

    /// Returns the plan without a path that has failed.
    #[must_use]
    pub fn without_path(mut self, failed: Path, obstacle: Obstacle) -> Self {
        let all = self.candidates.iter_mut().flatten();
        // A path of another kind of traffic is not in the plan, so nothing changes.
        all.filter(|(path, _)| *path == failed)
            .for_each(|(_, known)| *known = Some(obstacle));
        self
    }

    fn nearest_path(&self) -> Path {
        self.candidates[0]
            .expect("each kind of traffic has a path")
            .0
    }

    fn all_candidates(&self) -> impl Iterator<Item = (Path, Option<Obstacle>)> {
        // Unused entries are at the end, because plans are filled from the front.
        self.candidates.iter().map_while(|candidate| *candidate)
    }
}
