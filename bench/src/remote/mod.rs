//! Calls to another machine, by the transports: who calls, who answers and what lies between them.
//!
//! [`site`] is an installation in small: an authority, and sessions that are minted. [`caller`] opens connections in each [`Way`],
//! [`drive`] makes calls with it and counts. On the other side is the real watchdog ([`worker`]) or, for TLS where callers show no
//! certificate, a [`front`] in its place; behind both the same [`handler`]. [`relay`] is a function that calls the next one.
//! Functions of whole applications are called with a [`call::Call`]; the calls that they make leave their machine by [`outward`].

pub(crate) mod call;
pub(crate) mod caller;
pub(crate) mod drive;
pub(crate) mod everywhere;
pub(crate) mod front;
pub(crate) mod handler;
pub(crate) mod outward;
mod port;
pub(crate) mod relay;
pub(crate) mod sink;
pub(crate) mod site;
mod tls;
pub(crate) mod worker;

/// What goes wrong here is told to whoever started the comparison.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// How a call gets to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing but TCP.
    Tcp,
    /// TLS 1.2 with certificates on both sides, a full handshake.
    Tls12,
    /// TLS 1.3, likewise.
    Tls13,
    /// TLS 1.3 with a session of an earlier connection.
    Tls13Resumed,
    /// TLS 1.2 where only the callee has a certificate.
    Tls12Server,
    /// TLS 1.3, likewise.
    Tls13Server,
    /// QUIC with a full handshake, certificates on both sides.
    Quic,
    /// QUIC with a session; the call waits for the handshake.
    QuicResumed,
    /// QUIC with a session; the call is in the first flight.
    QuicEarly,
    /// QUIC on a connection that was opened before there was a call.
    QuicReady,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 10] = [
        Self::Tcp,
        Self::Tls12,
        Self::Tls13,
        Self::Tls13Resumed,
        Self::Tls12Server,
        Self::Tls13Server,
        Self::Quic,
        Self::QuicResumed,
        Self::QuicEarly,
        Self::QuicReady,
    ];

    /// As tables have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls12 => "tls 1.2",
            Self::Tls13 => "tls 1.3",
            Self::Tls13Resumed => "tls 1.3 resumed",
            Self::Tls12Server => "tls 1.2, server's certificate only",
            Self::Tls13Server => "tls 1.3, server's certificate only",
            Self::Quic => "quic 1-rtt",
            Self::QuicResumed => "quic 1-rtt resumed",
            Self::QuicEarly => "quic 0-rtt",
            Self::QuicReady => "quic pre-dialled",
        }
    }

    /// Whether the front answers: no worker of nearpath's takes callers without certificates.
    pub(crate) fn needs_front(self) -> bool {
        matches!(self, Self::Tls12Server | Self::Tls13Server)
    }
}

#[cfg(test)]
mod tests {
    use super::Way;

    #[test]
    fn every_way_has_a_name_and_a_place_of_its_own() {
        let names: std::collections::BTreeSet<_> = Way::ALL.iter().map(|way| way.name()).collect();
        assert_eq!(names.len(), Way::ALL.len());
        assert!(
            Way::ALL
                .iter()
                .enumerate()
                .all(|(place, way)| *way as usize == place)
        );
    }
}
