//! Paths and obstacles as text.

use std::fmt;

use crate::{Obstacle, Path};

impl Path {
    /// The path of that name; none: a later release knows it, or nobody.
    pub fn from_name(name: &str) -> Option<Self> {
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
