//! Which kind of NAT stands before this machine: asked of the rendezvous, told to people.
//!
//! Two sockets ask. The first asks all four of the rendezvous' sockets where they see it; the second asks the first of them
//! alone, and then for answers from the others, which come unasked (`punch::nat::Detector` says why there are two). Nothing
//! waits for it: a driver tries whatever the kinds are.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::punch::nat::{Detector, Observation, Report, Server};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use crate::reflexive_address::{Answer, Asker, Cookie, From, Question, SIZE};

/// Questions are asked so often, and answers to each round waited for so long.
const ROUNDS: u32 = 6;
const ROUND: Duration = Duration::from_millis(200);
/// What the first socket sends to where it is seen.
const MARK: &[u8] = b"nearpath turns around";

/// What is asked, and what is known so far.
struct Survey<'a> {
    servers: &'a [(Server, SocketAddr)],
    asker: &'a Asker,
    /// The one that asks all, and the one that asks the first alone.
    sockets: [UdpSocket; 2],
    detector: Detector,
    seen: Vec<Server>,
    unasked: Vec<Server>,
    cookie: Option<Cookie>,
    turned: bool,
}

/// Asks, for a second or less. What is not known then is `None` in the report; without any answer UDP does not pass.
///
/// # Errors
/// When there is no first server, or no way to it.
pub async fn detect(servers: &[(Server, SocketAddr)], asker: &Asker) -> io::Result<Report> {
    let first = servers.iter().find(|(server, _)| *server == Server::FIRST).map(|(_, addr)| *addr);
    let first = first.ok_or_else(|| io::Error::other("the rendezvous has no observer for UDP"))?;
    let sockets = [bind(first).await?, bind(first).await?];
    let own = SocketAddr::new(ip_towards(first).await?, sockets[0].local_addr()?.port());
    let (seen, unasked) = (Vec::new(), Vec::new());
    let detector = Detector::new(own);
    let mut survey = Survey { servers, asker, sockets, detector, seen, unasked, cookie: None, turned: false };
    for _ in 0..ROUNDS {
        survey.ask().await;
        survey.listen(Instant::now() + ROUND).await;
        if survey.is_complete() {
            break;
        }
    }
    let unheard = if survey.seen.is_empty() { Observation::Silence } else { Observation::Waited };
    survey.detector.observe(unheard);
    Ok(survey.detector.report())
}

async fn bind(towards: SocketAddr) -> io::Result<UdpSocket> {
    match towards {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await,
    }
}

/// This machine's address on the way there. Nothing is sent.
async fn ip_towards(there: SocketAddr) -> io::Result<std::net::IpAddr> {
    let socket = bind(there).await?;
    socket.connect(there).await?;
    Ok(socket.local_addr()?.ip())
}

impl Survey<'_> {
    /// What is lost on the way is asked again in the next round.
    async fn ask(&self) {
        for (server, addr) in self.servers.iter().filter(|(server, _)| !self.seen.contains(server)) {
            self.send(0, From::Here, [0; 16], *addr).await;
            if *server == Server::FIRST {
                self.send(1, From::Here, [0; 16], *addr).await;
            }
        }
        self.ask_for_others().await;
        if let Some(outside) = self.detector.report().reflexive.filter(|_| !self.turned) {
            let _ = self.sockets[0].send_to(MARK, outside).await;
        }
    }

    /// The second socket has shown that it reads at its address: answers from elsewhere may come to it.
    async fn ask_for_others(&self) {
        let first = self.servers.iter().find(|(server, _)| *server == Server::FIRST);
        let (Some(cookie), Some((_, first))) = (self.cookie, first) else { return };
        for from in [From::OtherPort, From::OtherAddress] {
            self.send(1, from, cookie, *first).await;
        }
    }

    async fn send(&self, socket: usize, from: From, cookie: Cookie, to: SocketAddr) {
        let question = Question { from, number: fastrand::u64(..), cookie };
        let _ = self.sockets[socket].send_to(&self.asker.ask(&question), to).await; // as if it was lost
    }

    async fn listen(&mut self, until: Instant) {
        let (mut one, mut other) = ([0; SIZE + 1], [0; SIZE + 1]);
        while !self.is_complete() {
            let [first, second] = &self.sockets;
            let came = timeout_at(until, async {
                tokio::select! {
                    Ok((n, _)) = first.recv_from(&mut one) => Some((0, one[..n].to_vec())),
                    Ok((n, _)) = second.recv_from(&mut other) => Some((1, other[..n].to_vec())),
                    else => None,
                }
            });
            match came.await {
                Ok(Some((socket, bytes))) => self.hear(socket, &bytes).await,
                Ok(None) => (),
                Err(_) => return,
            }
        }
    }

    async fn hear(&mut self, socket: usize, bytes: &[u8]) {
        if socket == 0 && bytes == MARK {
            self.turned = true;
            return self.detector.observe(Observation::TurnedAround);
        }
        let Some(Answer { second_address, second_port, cookie, seen: at, .. }) = self.asker.read(bytes) else { return };
        let by = Server { second_address, second_port };
        if socket == 0 {
            self.detector.observe(Observation::Seen { by, at });
            self.seen.push(by);
        } else if by == Server::FIRST {
            if self.cookie.replace(cookie).is_none() {
                self.ask_for_others().await;
            }
        } else {
            self.detector.observe(Observation::Unasked { from: by });
            self.unasked.push(by);
        }
    }

    /// Nothing that may still come would change the report.
    fn is_complete(&self) -> bool {
        let all = self.servers.iter().all(|(server, _)| self.seen.contains(server));
        all && self.turned && self.unasked.iter().any(|server| server.second_address)
    }
}
