//! The ways a call can take.

use std::fmt;

/// A path, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// Through the memory that the functions of a domain share: a descriptor moves, the payload stays.
    Shm,
    /// On a stream of a QUIC connection to the instance's watchdog.
    Quic,
    /// HTTP over TLS, certificates on both sides, over a pooled connection to it.
    Tls,
    /// HTTP over a pooled TCP connection to it.
    Http,
}

impl Path {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Shm, Self::Quic, Self::Tls, Self::Http];

    /// Its name in records, metrics and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Quic => "quic",
            Self::Tls => "tls",
            Self::Http => "http",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
