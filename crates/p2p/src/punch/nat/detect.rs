//! Detects the kind of NAT from the mapped addresses of two sockets (RFC 5780 section 4, without
//! its attributes).
//!
//! The rendezvous has two addresses with two ports each. One socket sends to all four and learns
//! its mapped addresses. Unsolicited packets are awaited on another socket, which sends to the
//! first of the four only: a packet to another one would open the filter for it, and a packet from
//! another one creates a session that affects the mapping.

use std::net::SocketAddr;

use super::{FilteringBehaviour, MappingBehaviour, NatBehaviour};

/// Socket of the rendezvous, one of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObserverSocket {
    /// True if it is on the second address.
    pub second_address: bool,
    /// True if it is on the second port.
    pub second_port: bool,
}

impl ObserverSocket {
    /// Socket that is queried first.
    pub const FIRST: Self = Self {
        second_address: false,
        second_port: false,
    };
}

/// Observation of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatObservation {
    /// Observer responded with the first socket's mapped address.
    Mapped {
        /// Responding observer.
        by: ObserverSocket,
        /// Mapped address.
        at: SocketAddr,
    },
    /// Packet came to the second socket, from an observer that it had not sent to.
    Unsolicited {
        /// Sending observer.
        from: ObserverSocket,
    },
    /// Requested unsolicited packets were sent often enough; missing ones are filtered.
    WaitElapsed,
    /// Packet to a socket's own mapped address came back.
    Hairpinned,
    /// No observer responded for long enough.
    NoResponse,
}

/// Result of a survey; `None`: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NatReport {
    /// Mapped address of the socket.
    pub reflexive: Option<SocketAddr>,
    /// True if the mapped address differs from the socket's own.
    pub translates: Option<bool>,
    /// See [`MappingBehaviour`].
    pub mapping: Option<MappingBehaviour>,
    /// See [`FilteringBehaviour`].
    pub filtering: Option<FilteringBehaviour>,
    /// True if a packet hairpinned; `false` until one has.
    pub hairpins: bool,
    /// True if the mapped port is the socket's own.
    pub preserves_ports: Option<bool>,
    /// True if UDP passes.
    pub udp: Option<bool>,
}

impl NatReport {
    /// Returns the behaviour, once all relevant properties are known.
    pub fn behaviour(&self) -> Option<NatBehaviour> {
        Some(NatBehaviour {
            translates: self.translates?,
            mapping: self.mapping?,
            filtering: self.filtering?,
            hairpins: self.hairpins,
            preserves_ports: self.preserves_ports?,
            udp: self.udp?,
        })
    }
}

/// Folds observations into a report.
#[derive(Debug, Clone)]
pub struct NatDetector {
    own: SocketAddr,
    mapped: Vec<(ObserverSocket, SocketAddr)>,
    unsolicited: Vec<ObserverSocket>,
    waited: bool,
    hairpinned: bool,
    silent: bool,
}

impl NatDetector {
    /// `own`: address of the first socket, not a wildcard.
    pub fn new(own: SocketAddr) -> Self {
        Self {
            own,
            mapped: Vec::new(),
            unsolicited: Vec::new(),
            waited: false,
            hairpinned: false,
            silent: false,
        }
    }

    /// Adds an observation. The first response of an observer counts.
    pub fn observe(&mut self, observation: NatObservation) {
        match observation {
            // A mapping may change when a NAT restarts: mixed observations would show a wrong kind.
            NatObservation::Mapped { by, at } if self.mapped_by(by).is_none() => {
                self.mapped.push((by, at))
            }
            NatObservation::Mapped { .. } => (),
            NatObservation::Unsolicited { from } => self.unsolicited.push(from),
            NatObservation::WaitElapsed => self.waited = true,
            NatObservation::Hairpinned => self.hairpinned = true,
            NatObservation::NoResponse => self.silent = true,
        }
    }

    /// Returns the report so far.
    pub fn report(&self) -> NatReport {
        let reflexive = self.mapped_by(ObserverSocket::FIRST);
        NatReport {
            reflexive,
            translates: reflexive.map(|at| at != self.own),
            mapping: self.mapping(),
            filtering: self.filtering(),
            hairpins: self.hairpinned,
            preserves_ports: reflexive.map(|at| at.port() == self.own.port()),
            udp: if self.mapped.is_empty() {
                self.silent.then_some(false)
            } else {
                Some(true)
            },
        }
    }

    fn mapped_by(&self, server: ObserverSocket) -> Option<SocketAddr> {
        self.mapped
            .iter()
            .find(|(by, _)| *by == server)
            .map(|&(_, at)| at)
    }

    /// Three mapped addresses decide; two suffice when they are equal at different addresses.
    fn mapping(&self) -> Option<MappingBehaviour> {
        let first = self.mapped_by(ObserverSocket::FIRST)?;
        let elsewhere = self.mapped_by(ObserverSocket {
            second_address: true,
            second_port: false,
        })?;
        if elsewhere == first {
            return Some(MappingBehaviour::EndpointIndependent);
        }
        let other_port = self.mapped_by(ObserverSocket {
            second_address: false,
            second_port: true,
        })?;
        Some(if other_port == first {
            MappingBehaviour::AddressDependent
        } else {
            MappingBehaviour::AddressAndPortDependent
        })
    }

    fn filtering(&self) -> Option<FilteringBehaviour> {
        let from = |wanted: fn(&ObserverSocket) -> bool| self.unsolicited.iter().any(wanted);
        match () {
            () if from(|server| server.second_address) => {
                Some(FilteringBehaviour::EndpointIndependent)
            }
            // Before the wait has elapsed, a missing packet proves nothing.
            () if !self.waited => None,
            () if from(|server| server.second_port) => Some(FilteringBehaviour::AddressDependent),
            () => Some(FilteringBehaviour::AddressAndPortDependent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER_PORT: ObserverSocket = ObserverSocket {
        second_address: false,
        second_port: true,
    };
    const OTHER_ADDRESS: ObserverSocket = ObserverSocket {
        second_address: true,
        second_port: false,
    };

    fn mapped_at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn report(observations: &[NatObservation]) -> NatReport {
        let mut detector = NatDetector::new(SocketAddr::from(([10, 0, 0, 1], 5000)));
        observations.iter().for_each(|one| detector.observe(*one));
        detector.report()
    }

    fn mapped_observation(by: ObserverSocket, port: u16) -> NatObservation {
        NatObservation::Mapped {
            by,
            at: mapped_at(port),
        }
    }

    #[test]
    fn mapped_addresses_decide_the_mapping() {
        let first = mapped_observation(ObserverSocket::FIRST, 5000);
        assert_eq!(
            report(&[first, mapped_observation(OTHER_ADDRESS, 5000)]).mapping,
            Some(MappingBehaviour::EndpointIndependent)
        );
        assert_eq!(
            report(&[first, mapped_observation(OTHER_ADDRESS, 6000)]).mapping,
            None
        );
        let address = report(&[
            first,
            mapped_observation(OTHER_ADDRESS, 6000),
            mapped_observation(OTHER_PORT, 5000),
        ]);
        assert_eq!(address.mapping, Some(MappingBehaviour::AddressDependent));
        let both = report(&[
            first,
            mapped_observation(OTHER_ADDRESS, 6000),
            mapped_observation(OTHER_PORT, 7000),
        ]);
        assert_eq!(
            both.mapping,
            Some(MappingBehaviour::AddressAndPortDependent)
        );
        assert_eq!(
            (both.preserves_ports, both.translates, both.udp),
            (Some(true), Some(true), Some(true))
        );
    }

    #[test]
    fn filtering_is_unknown_before_the_wait_elapsed() {
        let port = NatObservation::Unsolicited { from: OTHER_PORT };
        assert_eq!(report(&[port]).filtering, None);
        assert_eq!(
            report(&[port, NatObservation::WaitElapsed]).filtering,
            Some(FilteringBehaviour::AddressDependent)
        );
        assert_eq!(
            report(&[NatObservation::WaitElapsed]).filtering,
            Some(FilteringBehaviour::AddressAndPortDependent)
        );
        let address = NatObservation::Unsolicited {
            from: OTHER_ADDRESS,
        };
        assert_eq!(
            report(&[address]).filtering,
            Some(FilteringBehaviour::EndpointIndependent)
        );
    }

    #[test]
    fn no_response_means_blocked_only_without_a_mapped_address() {
        assert_eq!(report(&[NatObservation::NoResponse]).udp, Some(false));
        assert_eq!(report(&[]).udp, None);
        assert_eq!(
            report(&[
                mapped_observation(ObserverSocket::FIRST, 1),
                NatObservation::NoResponse
            ])
            .udp,
            Some(true)
        );
    }
}
