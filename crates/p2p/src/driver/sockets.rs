//! All sockets of a session, as one source of events.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::punch::candidate::CandidateKind;
use crate::punch::{AgentEvent, Transport};

use super::host_addresses;
use super::local_ports::LocalPorts;
use super::observers::{ObserverQueries, ObserverSet, ReflexiveAddress};
use super::tcp::TcpStreams;
use super::udp::UdpSockets;

/// Sockets of a session; see the module.
#[derive(Debug)]
pub(super) struct DriverSockets {
    pub(super) datagrams: UdpSockets,
    pub(super) streams: TcpStreams,
    queries: ObserverQueries,
    events: VecDeque<AgentEvent>,
}

impl DriverSockets {
    /// Creates the sockets.
    ///
    /// The first events are requests to observers and host candidates; mapped addresses follow when observers respond.
    pub(super) fn new(
        ports: LocalPorts,
        observers: &ObserverSet,
        loopback: bool,
        now: Instant,
    ) -> io::Result<Self> {
        let udp: Vec<SocketAddr> = ports.udp.iter().map(|(base, _)| *base).collect();
        let tcp: Vec<SocketAddr> = ports.tcp.iter().map(|(base, _)| *base).collect();
        let host_ips = host_addresses::list_addresses(loopback);
        let bases = |transport, all: &[SocketAddr]| {
            all.iter()
                .map(|base| (transport, *base))
                .collect::<Vec<_>>()
        };
        let bases = [bases(Transport::Tcp, &tcp), bases(Transport::Udp, &udp)].concat();
        let mut queries = ObserverQueries::new(observers, &udp, &tcp, now);
        let mut events: VecDeque<AgentEvent> = queries
            .requested()
            .map(|(transport, base)| AgentEvent::ObserverAsked { transport, base })
            .collect();
        events.extend(host_ips.iter().flat_map(|ip| {
            bases
                .iter()
                .filter_map(|&(transport, base)| host_candidate_event(*ip, transport, base))
        }));
        // The offer goes at once: waiting for observers would delay the peer's first probes.
        events.push_back(AgentEvent::Gathered);
        let datagrams = UdpSockets::new(ports.udp)?;
        // Sent before the loop runs: responses take a round trip to the rendezvous.
        queries.send_due(&datagrams, now);
        Ok(Self {
            datagrams,
            streams: TcpStreams::new(ports.tcp),
            queries,
            events,
        })
    }

    /// Polls the next event.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<AgentEvent> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        if let Poll::Ready(address) = self.queries.poll_responses(cx) {
            return Poll::Ready(self.reflexive_event(address));
        }
        if let Poll::Ready(event) = self.streams.poll_event(cx) {
            return Poll::Ready(event);
        }
        self.datagrams.poll_datagram(cx).map(|(base, from, bytes)| {
            match self.queries.take_response(base, from, &bytes) {
                Some(address) => self.reflexive_event(address),
                None => AgentEvent::Datagram { base, from, bytes },
            }
        })
    }

    /// Repeats requests without a response.
    pub(super) fn send_requests(&mut self, now: Instant) {
        self.queries.send_due(&self.datagrams, now);
    }

    /// Returns when [`Self::send_requests`] must be called again.
    pub(super) fn next_request_at(&self) -> Option<Instant> {
        self.queries.next_send_at()
    }

    /// Reports a mapped address, and offers it to the peer at once: others may follow.
    fn reflexive_event(&mut self, address: ReflexiveAddress) -> AgentEvent {
        self.events.push_back(AgentEvent::Gathered);
        let ReflexiveAddress {
            transport,
            base,
            addr: at,
        } = address;
        AgentEvent::LocalCandidate {
            kind: CandidateKind::Reflexive,
            transport,
            addr: at,
            base,
        }
    }
}

fn host_candidate_event(
    ip: std::net::IpAddr,
    transport: Transport,
    base: SocketAddr,
) -> Option<AgentEvent> {
    let addr = SocketAddr::new(ip, base.port());
    (ip.is_ipv4() == base.is_ipv4()).then_some(AgentEvent::LocalCandidate {
        kind: CandidateKind::Host,
        transport,
        addr,
        base,
    })
}
