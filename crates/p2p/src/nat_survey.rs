//! Detects the kind of NAT in front of this machine, with the observers of the rendezvous, for
//! reports to people.
//!
//! Two sockets send requests. The first queries all four sockets of the rendezvous for its mapped
//! address. The second queries the first of them alone, and then requests unsolicited packets from
//! the others (`punch::nat::NatDetector` explains why). Nothing waits for the result: a driver
//! tries whatever the kinds are (decision 35).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::punch::nat::{NatDetector, NatObservation, NatReport, ObserverSocket};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use crate::reflexive_address::{
    AddressCookie, BindingClient, BindingRequest, BindingResponse, MESSAGE_BYTES, ResponseOrigin,
};

/// Number of request rounds, and the time to wait for responses to each.
const MAX_ROUNDS: u32 = 6;
const ROUND_INTERVAL: Duration = Duration::from_millis(200);
/// Payload that the first socket sends to its own mapped address.
const HAIRPIN_PAYLOAD: &[u8] = b"nearpath turns around";

/// State of one detection.
struct NatSurvey<'a> {
    servers: &'a [(ObserverSocket, SocketAddr)],
    client: &'a BindingClient,
    /// The socket that queries all observers, and the one that queries the first alone.
    sockets: [UdpSocket; 2],
    detector: NatDetector,
    answered: Vec<ObserverSocket>,
    unsolicited: Vec<ObserverSocket>,
    cookie: Option<AddressCookie>,
    hairpinned: bool,
}

/// Detects the NAT, within about a second.
///
/// Properties that stay unknown are `None` in the report. Without any response UDP counts as
/// blocked.
///
/// # Errors
/// Fails when there is no first observer, or no route to it.
pub async fn detect_nat(
    servers: &[(ObserverSocket, SocketAddr)],
    client: &BindingClient,
) -> io::Result<NatReport> {
    let first = servers
        .iter()
        .find(|(server, _)| *server == ObserverSocket::FIRST)
        .map(|(_, addr)| *addr);
    let first = first.ok_or_else(|| io::Error::other("the rendezvous has no observer for UDP"))?;
    let sockets = [bind_any_port(first).await?, bind_any_port(first).await?];
    // The kernel's choice of source address shows whether a NAT translates: a wildcard would not.
    let local = SocketAddr::new(ip_towards(first).await?, sockets[0].local_addr()?.port());
    let (answered, unsolicited) = (Vec::new(), Vec::new());
    let detector = NatDetector::new(local);
    let mut survey = NatSurvey {
        servers,
        client,
        sockets,
        detector,
        answered,
        unsolicited,
        cookie: None,
        hairpinned: false,
    };
    for _ in 0..MAX_ROUNDS {
        survey.send_requests().await;
        survey.receive_until(Instant::now() + ROUND_INTERVAL).await;
        if survey.is_complete() {
            break;
        }
    }
    // After all rounds, missing packets count as filtered; without any response UDP itself is
    // blocked.
    let final_observation = if survey.answered.is_empty() {
        NatObservation::NoResponse
    } else {
        NatObservation::WaitElapsed
    };
    survey.detector.observe(final_observation);
    Ok(survey.detector.report())
}

async fn bind_any_port(towards: SocketAddr) -> io::Result<UdpSocket> {
    match towards {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await,
    }
}

/// Returns this machine's address on the route to a peer. Connecting a UDP socket sends nothing.
async fn ip_towards(peer: SocketAddr) -> io::Result<std::net::IpAddr> {
    let socket = bind_any_port(peer).await?;
    socket.connect(peer).await?;
    Ok(socket.local_addr()?.ip())
}

impl NatSurvey<'_> {
    /// Sends one round of requests. Lost ones are repeated in the next round.
    async fn send_requests(&self) {
        for (server, addr) in self
            .servers
            .iter()
            .filter(|(server, _)| !self.answered.contains(server))
        {
            self.send_request(0, ResponseOrigin::SameSocket, [0; 16], *addr)
                .await;
            if *server == ObserverSocket::FIRST {
                self.send_request(1, ResponseOrigin::SameSocket, [0; 16], *addr)
                    .await;
            }
        }
        self.request_unsolicited().await;
        // The mapped address is known from the first response on; a packet to it tests hairpinning
        // (RFC 4787 section 6).
        if let Some(outside) = self
            .detector
            .report()
            .reflexive
            .filter(|_| !self.hairpinned)
        {
            let _ = self.sockets[0].send_to(HAIRPIN_PAYLOAD, outside).await;
        }
    }

    /// Requests unsolicited packets for the second socket, which has proven that it reads at its
    /// address.
    async fn request_unsolicited(&self) {
        let first = self
            .servers
            .iter()
            .find(|(server, _)| *server == ObserverSocket::FIRST);
        let (Some(cookie), Some((_, first))) = (self.cookie, first) else {
            return;
        };
        for origin in [ResponseOrigin::OtherPort, ResponseOrigin::OtherAddress] {
            self.send_request(1, origin, cookie, *first).await;
        }
    }

    async fn send_request(
        &self,
        socket: usize,
        origin: ResponseOrigin,
        cookie: AddressCookie,
        to: SocketAddr,
    ) {
        let request = BindingRequest {
            origin,
            transaction_id: fastrand::u64(..),
            cookie,
        };
        let _ = self.sockets[socket]
            .send_to(&self.client.encode_request(&request), to)
            .await; // a failed send is like a lost packet
    }

    async fn receive_until(&mut self, until: Instant) {
        // One byte more than a message, so that a longer datagram is not taken for one.
        let (mut one, mut other) = ([0; MESSAGE_BYTES + 1], [0; MESSAGE_BYTES + 1]);
        while !self.is_complete() {
            let [first, second] = &self.sockets;
            let received = timeout_at(until, async {
                tokio::select! {
                    Ok((n, _)) = first.recv_from(&mut one) => Some((0, one[..n].to_vec())),
                    Ok((n, _)) = second.recv_from(&mut other) => Some((1, other[..n].to_vec())),
                    else => None,
                }
            });
            match received.await {
                Ok(Some((socket, bytes))) => self.handle_packet(socket, &bytes).await,
                Ok(None) => (),
                Err(_) => return,
            }
        }
    }

    async fn handle_packet(&mut self, socket: usize, bytes: &[u8]) {
        // The payload proves hairpinning: nothing else is sent to that address.
        if socket == 0 && bytes == HAIRPIN_PAYLOAD {
            self.hairpinned = true;
            return self.detector.observe(NatObservation::Hairpinned);
        }
        let Some(BindingResponse {
            second_address,
            second_port,
            cookie,
            mapped_addr: at,
            ..
        }) = self.client.decode_response(bytes)
        else {
            return;
        };
        let by = ObserverSocket {
            second_address,
            second_port,
        };
        if socket == 0 {
            self.detector.observe(NatObservation::Mapped { by, at });
            self.answered.push(by);
        } else if by == ObserverSocket::FIRST {
            // The first cookie allows requests to the other sockets; they need not wait for the
            // next round.
            if self.cookie.replace(cookie).is_none() {
                self.request_unsolicited().await;
            }
        } else {
            self.detector
                .observe(NatObservation::Unsolicited { from: by });
            self.unsolicited.push(by);
        }
    }

    /// Returns whether no further packet could change the report.
    fn is_complete(&self) -> bool {
        let all = self
            .servers
            .iter()
            .all(|(server, _)| self.answered.contains(server));
        all && self.hairpinned && self.unsolicited.iter().any(|server| server.second_address)
    }
}
