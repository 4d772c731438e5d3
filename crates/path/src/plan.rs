//! The outcome of a selection.

use crate::generated::MAX_CANDIDATES;
use crate::{Obstacle, Path};

/// The paths of one kind of traffic with what stands against each, nearest first.
///
/// A plan is a few bytes and lives on the stack: the gateway makes one for every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathPlan {
    candidates: [Option<(Path, Option<Obstacle>)>; MAX_CANDIDATES],
}

/// The path that is taken, as it stands in records and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathChoice {
    /// The path.
    pub path: Path,
    /// The obstacle of the next nearer path that no setting excludes; none: there is no nearer path.
    pub obstacle: Option<Obstacle>,
}

impl PathPlan {
    pub(crate) const EMPTY: Self = Self {
        candidates: [None; MAX_CANDIDATES],
    };

    pub(crate) fn with_candidate(mut self, path: Path, obstacle: Option<Obstacle>) -> Self {
        let free = self
            .candidates
            .iter_mut()
            .find(|candidate| candidate.is_none());
        *free.expect("the generated bound is the longest list of candidates") =
            Some((path, obstacle));
        self
    }

    /// The paths to try, in order; none when something stands against each of them.
    pub fn usable_paths(&self) -> impl Iterator<Item = Path> {
        self.all_candidates()
            .filter_map(|(path, obstacle)| obstacle.is_none().then_some(path))
    }

    /// The other paths, with what stands against each.
    pub fn obstacles(&self) -> impl Iterator<Item = (Path, Obstacle)> {
        self.all_candidates()
            .filter_map(|(path, obstacle)| Some((path, obstacle?)))
    }

    /// Returns whether the path is one of those to try.
    pub fn allows_path(&self, path: Path) -> bool {
        self.usable_paths().any(|allowed| allowed == path)
    }

    /// The first path to try. When something stands against all of them, it is the last one that no setting excludes: opening
    /// that fails, and the failure names the cause.
    pub fn first_choice(&self) -> PathChoice {
        let mut choice = PathChoice {
            path: self.nearest_path(),
            obstacle: None,
        };
        let mut nearer = None;
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
            nearer = obstacle;
        }
        choice
    }

    /// The plan that is left after a path has failed.
    #[must_use]
    pub fn without_path(mut self, failed: Path, obstacle: Obstacle) -> Self {
        let all = self.candidates.iter_mut().flatten();
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
        self.candidates.iter().map_while(|candidate| *candidate)
    }
}
