//! Paths and obstacles as text.

use std::fmt;

use crate::{Obstacle, Path};

impl Path {
    /// Returns the path of that name. `None`: the name is unknown, or of a later release.
    pub fn from_name(name: &str) -> Option<Self> {
        // A linear search: the list has fewer than ten entries.
        Self::ALL.iter().copied().find(|path| path.name() == name)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
