//! The ways a call can take.

use std::fmt;

/// A path, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// Through the memory that the functions of a domain share: a descriptor moves, the payload stays.
    Shm,
    /// HTTP over a pooled connection to the instance's watchdog.
    Http,
}

impl Path {
    /// Its name in records, metrics and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Http => "http",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
