// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.
//! The paths of each kind of traffic, nearest first.

use crate::facts::{CallFacts, LinkFacts, EgressFacts};
use crate::generated::Path;
use crate::paths::{http, loopback, pool, punch, quic, relay, shm, tls};
use crate::{Candidate, Facts};

impl Facts for CallFacts {
    const CANDIDATES: &'static [Candidate<Self>] = &[
        Candidate { path: Path::Shm, obstacle: shm::obstacle },
        Candidate { path: Path::Loopback, obstacle: loopback::obstacle },
        Candidate { path: Path::Quic, obstacle: quic::obstacle },
        Candidate { path: Path::Tls, obstacle: tls::obstacle },
        Candidate { path: Path::Http, obstacle: http::obstacle },
    ];
}

impl Facts for LinkFacts {
    const CANDIDATES: &'static [Candidate<Self>] = &[
        Candidate { path: Path::Punch, obstacle: punch::obstacle },
        Candidate { path: Path::Relay, obstacle: relay::obstacle },
    ];
}

impl Facts for EgressFacts {
    const CANDIDATES: &'static [Candidate<Self>] = &[
        Candidate { path: Path::Pool, obstacle: pool::obstacle },
    ];
}
