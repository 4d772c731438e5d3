//! Which kind of NAT stands before this machine: asked of the rendezvous, told to people.
//!
//! Two sockets ask. The first asks all four of the rendezvous' sockets where they see it; the second asks the first of them
//! alone, and then for answers from the others, which come unasked (`punch::detect_nat::NatDetector` says why there are two). Nothing
//! waits for it: a driver tries whatever the kinds are.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::punch::nat::{NatDetector, NatObservation, NatReport, ObserverSocket};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use crate::reflexive_address::{
    AddressCookie, BindingClient, BindingRequest, BindingResponse, MESSAGE_BYTES, ResponseOrigin,
};

/// Questions are asked so often, and answers to each round waited for so long.
const MAX_ROUNDS: u32 = 6;
const ROUND_INTERVAL: Duration = Duration::from_millis(200);
/// What the first socket sends to where it is seen.
const HAIRPIN_PAYLOAD: &[u8] = b"nearpath turns around";

/// What is asked, and what is known so far.
struct NatSurvey<'a> {
    servers: &'a [(ObserverSocket, SocketAddr)],
    client: &'a BindingClient,
    /// The one that asks all, and the one that asks the first alone.
    sockets: [UdpSocket; 2],
    detector: NatDetector,
    answered: Vec<ObserverSocket>,
    unsolicited: Vec<ObserverSocket>,
    cookie: Option<AddressCookie>,
    hairpinned: bool,
}

/// Asks, for a second or less. What is not known then is `NoConnection` in the report; without any answer UDP does not pass.
///
/// # Errors
/// When there is no first server, or no way to it.
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
    let local = SocketAddr::new(ip_towards(first).await?, sockets[0].local_addr()?.port());
    let (answered, unsolicited) = (Vec::new(), Vec::new());
    let detector = NatDetector::new(local);
    let mut survey = NatSurvey {
        servers,
        client: client,
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

/// This machine's address on the way there. Nothing is sent.
async fn ip_towards(peer: SocketAddr) -> io::Result<std::net::IpAddr> {
    let socket = bind_any_port(peer).await?;
    socket.connect(peer).await?;
    Ok(socket.local_addr()?.ip())
}

impl NatSurvey<'_> {
    /// What is lost on the way is asked again in the next round.
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
        if let Some(outside) = self
            .detector
            .report()
            .reflexive
            .filter(|_| !self.hairpinned)
        {
            let _ = self.sockets[0].send_to(HAIRPIN_PAYLOAD, outside).await;
        }
    }

    /// The second socket has shown that it reads at its address: answers from elsewhere may come to it.
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
            origin: origin,
            transaction_id: fastrand::u64(..),
            cookie,
        };
        let _ = self.sockets[socket]
            .send_to(&self.client.encode_request(&request), to)
            .await; // as if it was lost
    }

    async fn receive_until(&mut self, until: Instant) {
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
            if self.cookie.replace(cookie).is_none() {
                self.request_unsolicited().await;
            }
        } else {
            self.detector
                .observe(NatObservation::Unsolicited { from: by });
            self.unsolicited.push(by);
        }
    }

    /// Nothing that may still come would change the report.
    fn is_complete(&self) -> bool {
        let all = self
            .servers
            .iter()
            .all(|(server, _)| self.answered.contains(server));
        all && self.hairpinned && self.unsolicited.iter().any(|server| server.second_address)
    }
}
