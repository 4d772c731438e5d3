//! All sockets of a session, as one source of events.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::punch::candidate::Kind;
use crate::punch::{Event, Transport};

use super::host_addresses;
use super::local_ports::Ports;
use super::observers::{Asking, Observers, Seen};
use super::tcp::Streams;
use super::udp::Datagrams;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Rim {
    pub(super) datagrams: Datagrams,
    pub(super) streams: Streams,
    asking: Asking,
    events: VecDeque<Event>,
}

impl Rim {
    /// The first events are the machine's own addresses; those that the rendezvous sees come when it tells.
    pub(super) fn new(ports: Ports, observers: &Observers, loopback: bool, now: Instant) -> io::Result<Self> {
        let udp: Vec<SocketAddr> = ports.udp.iter().map(|(base, _)| *base).collect();
        let tcp: Vec<SocketAddr> = ports.tcp.iter().map(|(base, _)| *base).collect();
        let own = host_addresses::own(loopback);
        let bases = |transport, all: &[SocketAddr]| all.iter().map(|base| (transport, *base)).collect::<Vec<_>>();
        let bases = [bases(Transport::Tcp, &tcp), bases(Transport::Udp, &udp)].concat();
        let mut events: VecDeque<Event> = own
            .iter()
            .flat_map(|ip| bases.iter().filter_map(|&(transport, base)| host(*ip, transport, base)))
            .collect();
        events.push_back(Event::Gathered);
        let mut asking = Asking::new(observers, &udp, &tcp, now);
        let datagrams = Datagrams::new(ports.udp)?;
        asking.send(&datagrams, now);
        Ok(Self { datagrams, streams: Streams::new(ports.tcp), asking, events })
    }

    /// The next event.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        if let Poll::Ready(seen) = self.asking.poll(cx) {
            return Poll::Ready(self.seen(seen));
        }
        if let Poll::Ready(event) = self.streams.poll(cx) {
            return Poll::Ready(event);
        }
        self.datagrams.poll(cx).map(|(base, from, bytes)| match self.asking.answered(base, from, &bytes) {
            Some(seen) => self.seen(seen),
            None => Event::Datagram { base, from, bytes },
        })
    }

    /// Asks the rendezvous again where it has not answered.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asking.send(&self.datagrams, now);
    }

    /// When to come back for [`Self::ask`].
    pub(super) fn next_ask(&self) -> Option<Instant> {
        self.asking.next()
    }

    /// The peer is told at once: what else is seen follows.
    fn seen(&mut self, seen: Seen) -> Event {
        self.events.push_back(Event::Gathered);
        let Seen { transport, base, at } = seen;
        Event::Local { kind: Kind::Reflexive, transport, addr: at, base }
    }
}

fn host(ip: std::net::IpAddr, transport: Transport, base: SocketAddr) -> Option<Event> {
    let addr = SocketAddr::new(ip, base.port());
    (ip.is_ipv4() == base.is_ipv4()).then_some(Event::Local { kind: Kind::Host, transport, addr, base })
}
