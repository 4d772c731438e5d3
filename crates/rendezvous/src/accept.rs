//! The door: takes connections, looks at tickets, and says what is behind which path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response, StatusCode, header};
use nearpath_daemon::drain::Watch;
use nearpath_types::SpiffeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::accept_hdr_async_with_config;
use tokio_tungstenite::tungstenite::handshake::server::ErrorResponse;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::metrics::Turned;
use super::rate_limits::{Buckets, Rate};
use super::relay::Exchange;
use super::settings::household;
use super::shared_state::Hall;
use super::state::Moment;
use super::{control_connection, relay};
use nearpath_p2p::message::{Observe, Observer};
use nearpath_p2p::reflexive_address::Judge;
use nearpath_p2p::ticket::{BadSeal, Crossing, Job, Key, Ticket};
use nearpath_p2p::websocket::{self, Socket, Web};

/// So many addresses, and so many workers, are known at a time; see [`Buckets::new`].
const HOUSEHOLDS: usize = 65_536;
const WORKERS: usize = 65_536;

/// Who may connect now. A connection costs its address, which is all that is known of it. When it shows a ticket or a pass its
/// worker pays instead, as long as it can: so strangers do not keep out the workers behind their address, nor workers each
/// other, and none of them goes on for ever at nobody's cost.
pub(super) struct Arrivals {
    households: Buckets<IpAddr>,
    workers: Buckets<(Job, SpiffeId)>,
}

impl Arrivals {
    pub(super) fn new(rate: Rate) -> Mutex<Self> {
        Mutex::new(Self { households: Buckets::new(rate, HOUSEHOLDS), workers: Buckets::new(rate, WORKERS) })
    }

    fn admit(&mut self, from: IpAddr, now: Instant) -> bool {
        self.households.admit(household(from), 1, now)
    }

    fn prove(&mut self, from: IpAddr, guest: &Guest, now: Instant) {
        let worker = match guest {
            Guest::Line(ticket) => (ticket.job.clone(), ticket.you.clone()),
            Guest::Relay(crossing) => (crossing.job.clone(), crossing.you.clone()),
        };
        if self.workers.admit(worker, 1, now) {
            self.households.give_back(&household(from), 1);
        }
    }
}

/// See the module.
pub(super) struct Door {
    pub(super) key: Key,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) relays: Arc<Exchange>,
    pub(super) arrivals: Mutex<Arrivals>,
    pub(super) unproven: Arc<Semaphore>,
    pub(super) observers: Vec<Observer>,
    pub(super) judge: Arc<Judge>,
    pub(super) hall: Arc<Hall>,
    pub(super) drain: Watch,
}

/// Who is let in, and to what.
enum Guest {
    Line(Ticket),
    Relay(Crossing),
}

impl Door {
    /// Takes connections until the drain.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.drain.signaled() => return,
            };
            match accepted {
                Ok((stream, from)) => self.consider(stream, from),
                Err(error) => {
                    tracing::warn!(%error, "the rendezvous cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await; // out of file descriptors: do not spin
                }
            }
        }
    }

    /// What can be refused before anything is read.
    fn consider(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        if !self.arrivals().admit(from.ip(), Instant::now()) {
            return self.hall.ledger.turn_away(Turned::Address);
        }
        let Ok(permit) = self.unproven.clone().try_acquire_owned() else {
            return self.hall.ledger.turn_away(Turned::Full);
        };
        let door = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(door.hall.limits.handshake, door.greet(stream, from.ip())).await {
                Ok(Ok((web, guest))) => {
                    drop(permit);
                    door.usher(web, guest, from);
                }
                Ok(Err(why)) => door.hall.ledger.turn_away(why),
                Err(_) => door.hall.ledger.turn_away(Turned::Handshake),
            }
        });
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn greet(&self, stream: TcpStream, from: IpAddr) -> Result<(Web, Guest), Turned> {
        let socket = self.secured(stream).await.map_err(|_| Turned::Handshake)?;
        let mut judged = Err(Turned::Handshake);
        #[expect(clippy::result_large_err, reason = "the library's own type")]
        let look = |request: &Request<()>, response: Response<()>| {
            judged = self.admit(request);
            match &judged {
                Ok(guest) => {
                    self.arrivals().prove(from, guest, Instant::now());
                    Ok(response)
                }
                Err(why) => Err(refusal(*why)),
            }
        };
        let config = Some(websocket::for_lines());
        let web = accept_hdr_async_with_config(socket, look, config).await;
        judged.and_then(|guest| Ok((web.map_err(|_| Turned::Handshake)?, guest)))
    }

    async fn secured(&self, stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        websocket::keep_alive(&stream)?;
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.accept(stream).await?),
            None => Box::new(stream),
        })
    }

    fn admit(&self, request: &Request<()>) -> Result<Guest, Turned> {
        if self.drain.is_draining() {
            return Err(Turned::Draining);
        }
        let unix = Moment::now().unix;
        let text = bearer(request).ok_or(Turned::Ticket)?;
        let guest = match request.uri().path() {
            websocket::LINE => Ticket::open(text, &self.key, unix).map(Guest::Line),
            websocket::RELAY => Crossing::open(text, &self.key, unix).map(Guest::Relay),
            _ => return Err(Turned::Path),
        };
        guest.map_err(|why| if why == BadSeal::Expired { Turned::Expired } else { Turned::Ticket })
    }

    /// Tasks of their own: a line lives for hours, and does not keep what the greeting needed.
    fn usher(self: &Arc<Self>, web: Web, guest: Guest, from: SocketAddr) {
        let drain = self.drain.clone();
        match guest {
            Guest::Line(ticket) => {
                let observe = self.observe(&ticket);
                let seen = SocketAddr::new(from.ip().to_canonical(), from.port());
                tokio::spawn(control_connection::serve(web, ticket, self.hall.clone(), seen, observe, drain));
            }
            Guest::Relay(crossing) => {
                let door = self.clone();
                tokio::spawn(async move {
                    let web = websocket::configured(web, Role::Server, websocket::for_relays()).await;
                    relay::serve(&door.relays, web, crossing, drain).await;
                });
            }
        }
    }

    /// A token for this line; it needs to be nobody else's, not to be a secret.
    fn observe(&self, ticket: &Ticket) -> Observe {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let draw = NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let (token, key) = self.judge.token(ticket.until, draw);
        Observe { token, key, servers: self.observers.clone() }
    }
}

fn bearer(request: &Request<()>) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, text) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(text)
}

/// What a stranger reads. It does not say what is wrong with a seal.
fn refusal(why: Turned) -> ErrorResponse {
    let (status, text) = match why {
        Turned::Expired => (StatusCode::UNAUTHORIZED, "the ticket has come to its end: get a new one\n"),
        Turned::Draining => (StatusCode::SERVICE_UNAVAILABLE, "the rendezvous is going down: come again\n"),
        Turned::Path => (StatusCode::NOT_FOUND, "here are only /v1/line and /v1/relay\n"),
        _ => (StatusCode::UNAUTHORIZED, "no ticket, or none of this rendezvous: see `nearpath rendezvous ticket`\n"),
    };
    let mut response = Response::new(Some(text.to_owned()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, text.len().into());
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    match status {
        StatusCode::UNAUTHORIZED => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    response
}
