//! Calls to another machine by transport: caller, callee and the network between them.
//!
//! [`identities`] is a small installation: an authority and minted sessions. [`caller`] opens
//! connections in each [`RemoteTransport`], and [`drive`] makes and counts calls. The callee is the
//! real watchdog ([`worker`]) or, for TLS without a caller's certificate, a [`front`]; behind both
//! is the same [`handler`]. [`chain_hop`] is a function that calls the next one. A
//! [`call::RemoteCall`] calls functions of whole applications; their own calls leave the machine
//! through [`outbound`].

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
    /// TCP without TLS.
    Tcp,
    /// TLS 1.2 with certificates on both sides, a full handshake.
    Tls12,
    /// TLS 1.3 with the same certificates.
    Tls13,
    /// TLS 1.3 with a session of an earlier connection.
    Tls13Resumed,
    /// TLS 1.2 with a certificate of the callee only.
    Tls12Server,
    /// TLS 1.3, likewise.
    Tls13Server,
    /// QUIC with a full handshake, certificates on both sides.
    Quic,
    /// QUIC with a session; the call waits for the handshake (1-RTT).
    QuicResumed,
    /// QUIC with a session; the call is in the first flight (0-RTT).
    QuicEarly,
    /// QUIC on a connection opened before the call.
    QuicReady,
}

impl RemoteTransport {
    /// All transports.
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

    /// Returns the name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls12 => "tls 1.2",
            Self::Tls13 => "tls 1.3",
            Self::Tls13Resumed => "tls 1.3 resumed",
            Self::Tls12Server => "tls 1.2, server certificate only",
            Self::Tls13Server => "tls 1.3, server certificate only",
            Self::Quic => "quic 1-rtt",
            Self::QuicResumed => "quic 1-rtt resumed",
            Self::QuicEarly => "quic 0-rtt",
            Self::QuicReady => "quic pre-dialled",
        }
    }

    /// Returns whether the front is the callee: nearpath's workers reject callers without
    /// certificates.
    pub(crate) fn needs_front(self) -> bool {
        matches!(self, Self::Tls12Server | Self::Tls13Server)
    }
}

#[cfg(test)]
mod tests {
    use super::RemoteTransport;

    #[test]
    fn every_transport_has_a_unique_name_and_index() {
        let names: std::collections::BTreeSet<_> = RemoteTransport::ALL
            .iter()
            .map(|transport| transport.name())
            .collect();
        assert_eq!(names.len(), RemoteTransport::ALL.len());
        assert!(
            RemoteTransport::ALL
                .iter()
                .enumerate()
                .all(|(place, transport)| *transport as usize == place)
        );
    }
}
