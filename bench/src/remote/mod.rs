//! Calls to another machine, by the transports: who calls, who answers and what lies between them.
//!
//! [`identities`] is an installation in small: an authority, and sessions that are minted. [`caller`]
//! opens connections in each [`RemoteTransport`], [`drive`] makes calls with it and counts. On the other side
//! is the real watchdog ([`worker`]) or, for TLS where callers show no certificate, a [`front`] in
//! its place; behind both the same [`handler`]. [`chain_hop`] is a function that calls the next one.
//! Functions of whole applications are called with a [`call::RemoteCall`]; the calls that they make leave
//! their machine by [`outbound`].

pub(crate) mod all_transports;
pub(crate) mod call;
pub(crate) mod caller;
pub(crate) mod chain_hop;
pub(crate) mod drive;
pub(crate) mod front;
pub(crate) mod handler;
pub(crate) mod identities;
pub(crate) mod outbound;
mod port;
pub(crate) mod sink;
mod tls;
pub(crate) mod worker;

/// Error of a comparison, shown to the user.
pub(crate) type BenchError = Box<dyn std::error::Error + Send + Sync>;

/// Transports of calls to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoteTransport {
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

impl RemoteTransport {
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

    /// Returns true if the front answers: nearpath's workers take no callers without certificates.
    pub(crate) fn needs_front(self) -> bool {
        matches!(self, Self::Tls12Server | Self::Tls13Server)
    }
}

#[cfg(test)]
mod tests {
    use super::RemoteTransport;

    #[test]
    fn every_way_has_a_name_and_a_place_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            RemoteTransport::ALL.iter().map(|way| way.name()).collect();
        assert_eq!(names.len(), RemoteTransport::ALL.len());
        assert!(
            RemoteTransport::ALL
                .iter()
                .enumerate()
                .all(|(place, way)| *way as usize == place)
        );
    }
}
