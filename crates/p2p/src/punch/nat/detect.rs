//! Finding out the kind, from what was seen of two sockets (RFC 5780 section 4, without its attributes).
//!
//! The rendezvous has two addresses with two ports each. One socket sends to all four, and is told where it is seen. What
//! comes unasked is looked at with another one, which sends to the first of the four only: what is sent to another opens the
//! filter for it, and what comes from another makes a session by which the NAT then maps.

use std::net::SocketAddr;

use super::{Behaviour, Filtering, Mapping};

/// One of the rendezvous' four sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// On its second address.
    pub second_address: bool,
    /// On its second port.
    pub second_port: bool,
}

impl Server {
    /// The one that is asked first.
    pub const FIRST: Self = Self { second_address: false, second_port: false };
}

/// What was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// A server answered: it saw the first socket there.
    Seen {
        /// Which server.
        by: Server,
        /// Where.
        at: SocketAddr,
    },
    /// A packet came to the second socket, from a server that it had not sent to.
    Unasked {
        /// Which server.
        from: Server,
    },
    /// Those that were asked to send unasked have done so, often enough; what has not come does not.
    Waited,
    /// What a socket sent to the address at which it is seen came back to it.
    TurnedAround,
    /// Nothing came back from any server, for long enough.
    Silence,
}

/// What is known; `None`: not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Where the rendezvous sees the socket.
    pub reflexive: Option<SocketAddr>,
    /// Others see another address than the socket's own.
    pub translates: Option<bool>,
    /// See [`Mapping`].
    pub mapping: Option<Mapping>,
    /// See [`Filtering`].
    pub filtering: Option<Filtering>,
    /// A packet turned around. `false` until one has.
    pub hairpins: bool,
    /// The port that is seen is the socket's own.
    pub preserves_ports: Option<bool>,
    /// UDP comes through.
    pub udp: Option<bool>,
}

impl Report {
    /// All of it, once all that matters is known.
    pub fn behaviour(&self) -> Option<Behaviour> {
        Some(Behaviour {
            translates: self.translates?,
            mapping: self.mapping?,
            filtering: self.filtering?,
            hairpins: self.hairpins,
            preserves_ports: self.preserves_ports?,
            udp: self.udp?,
        })
    }
}

/// Folds observations into what they mean.
#[derive(Debug, Clone)]
pub struct Detector {
    own: SocketAddr,
    seen: Vec<(Server, SocketAddr)>,
    unasked: Vec<Server>,
    waited: bool,
    turned: bool,
    silent: bool,
}

impl Detector {
    /// `own`: the address of the first socket, not a wildcard.
    pub fn new(own: SocketAddr) -> Self {
        Self { own, seen: Vec::new(), unasked: Vec::new(), waited: false, turned: false, silent: false }
    }

    /// One more observation. What a server says twice counts as it was first said.
    pub fn observe(&mut self, observation: Observation) {
        match observation {
            Observation::Seen { by, at } if self.seen_by(by).is_none() => self.seen.push((by, at)),
            Observation::Seen { .. } => (),
            Observation::Unasked { from } => self.unasked.push(from),
            Observation::Waited => self.waited = true,
            Observation::TurnedAround => self.turned = true,
            Observation::Silence => self.silent = true,
        }
    }

    /// What is known so far.
    pub fn report(&self) -> Report {
        let reflexive = self.seen_by(Server::FIRST);
        Report {
            reflexive,
            translates: reflexive.map(|at| at != self.own),
            mapping: self.mapping(),
            filtering: self.filtering(),
            hairpins: self.turned,
            preserves_ports: reflexive.map(|at| at.port() == self.own.port()),
            udp: if self.seen.is_empty() { self.silent.then_some(false) } else { Some(true) },
        }
    }

    fn seen_by(&self, server: Server) -> Option<SocketAddr> {
        self.seen.iter().find(|(by, _)| *by == server).map(|&(_, at)| at)
    }

    /// Three views decide; two that are equal at different addresses do, too.
    fn mapping(&self) -> Option<Mapping> {
        let first = self.seen_by(Server::FIRST)?;
        let elsewhere = self.seen_by(Server { second_address: true, second_port: false })?;
        if elsewhere == first {
            return Some(Mapping::Independent);
        }
        let other_port = self.seen_by(Server { second_address: false, second_port: true })?;
        Some(if other_port == first { Mapping::Address } else { Mapping::AddressAndPort })
    }

    fn filtering(&self) -> Option<Filtering> {
        let from = |wanted: fn(&Server) -> bool| self.unasked.iter().any(wanted);
        match () {
            () if from(|server| server.second_address) => Some(Filtering::Independent),
            () if !self.waited => None,
            () if from(|server| server.second_port) => Some(Filtering::Address),
            () => Some(Filtering::AddressAndPort),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER_PORT: Server = Server { second_address: false, second_port: true };
    const OTHER_ADDRESS: Server = Server { second_address: true, second_port: false };

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn report(observations: &[Observation]) -> Report {
        let mut detector = Detector::new(SocketAddr::from(([10, 0, 0, 1], 5000)));
        observations.iter().for_each(|one| detector.observe(*one));
        detector.report()
    }

    fn seen(by: Server, port: u16) -> Observation {
        Observation::Seen { by, at: at(port) }
    }

    #[test]
    fn views_tell_the_mapping() {
        let first = seen(Server::FIRST, 5000);
        assert_eq!(report(&[first, seen(OTHER_ADDRESS, 5000)]).mapping, Some(Mapping::Independent));
        assert_eq!(report(&[first, seen(OTHER_ADDRESS, 6000)]).mapping, None);
        let address = report(&[first, seen(OTHER_ADDRESS, 6000), seen(OTHER_PORT, 5000)]);
        assert_eq!(address.mapping, Some(Mapping::Address));
        let both = report(&[first, seen(OTHER_ADDRESS, 6000), seen(OTHER_PORT, 7000)]);
        assert_eq!(both.mapping, Some(Mapping::AddressAndPort));
        assert_eq!((both.preserves_ports, both.translates, both.udp), (Some(true), Some(true), Some(true)));
    }

    #[test]
    fn nothing_is_filtered_out_before_it_was_waited_for() {
        let port = Observation::Unasked { from: OTHER_PORT };
        assert_eq!(report(&[port]).filtering, None);
        assert_eq!(report(&[port, Observation::Waited]).filtering, Some(Filtering::Address));
        assert_eq!(report(&[Observation::Waited]).filtering, Some(Filtering::AddressAndPort));
        let address = Observation::Unasked { from: OTHER_ADDRESS };
        assert_eq!(report(&[address]).filtering, Some(Filtering::Independent));
    }

    #[test]
    fn silence_means_blocked_only_if_nothing_was_seen() {
        assert_eq!(report(&[Observation::Silence]).udp, Some(false));
        assert_eq!(report(&[]).udp, None);
        assert_eq!(report(&[seen(Server::FIRST, 1), Observation::Silence]).udp, Some(true));
    }
}
