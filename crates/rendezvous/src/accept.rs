//! Accepts connections, verifies their tokens, and selects the service by path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response, StatusCode, header};
use nearpath_daemon::drain::DrainWatch;
use nearpath_types::SpiffeId;
use nearpath_types::log_limiter::LogLimiter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::accept_hdr_async_with_config;
use tokio_tungstenite::tungstenite::handshake::server::ErrorResponse;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::metrics::RejectReason;
use super::rate_limits::{KeyedBuckets, RateLimit};
use super::relay::RelayExchange;
use super::settings::address_prefix;
use super::shared_state::SharedState;
use super::state::ClockReading;
use super::{control_connection, relay};
use nearpath_p2p::message::{ObserverAccess, ObserverAddress};
use nearpath_p2p::reflexive_address::ObserverPolicy;
use nearpath_p2p::ticket::{JobName, RelayToken, RendezvousKey, TokenError, WorkerTicket};
use nearpath_p2p::websocket::{self, BoxedStream, WebSocket};

/// Tracked addresses and workers; see [`KeyedBuckets::new`].
const MAX_TRACKED_ADDRESSES: usize = 65_536;
const MAX_TRACKED_WORKERS: usize = 65_536;

/// Limits of new connections.
///
/// A connection counts against its address, which is all that is known. With a ticket or relay
/// token it counts against its worker instead, up to the worker's limit. Unauthenticated clients
/// therefore do not lock out workers behind their address, nor workers each other (decision 36).
pub(super) struct ArrivalLimits {
    addresses: KeyedBuckets<IpAddr>,
    workers: KeyedBuckets<(JobName, SpiffeId)>,
}

impl ArrivalLimits {
    pub(super) fn new(rate: RateLimit) -> Mutex<Self> {
        Mutex::new(Self {
            addresses: KeyedBuckets::new(rate, MAX_TRACKED_ADDRESSES),
            workers: KeyedBuckets::new(rate, MAX_TRACKED_WORKERS),
        })
    }

    fn admit_address(&mut self, from: IpAddr, now: Instant) -> bool {
        self.addresses.admit(address_prefix(from), 1, now)
    }

    fn charge_worker(&mut self, from: IpAddr, token: &VerifiedToken, now: Instant) {
        let worker = match token {
            VerifiedToken::Ticket(ticket) => (ticket.job.clone(), ticket.worker.clone()),
            VerifiedToken::Relay(relay_token) => {
                (relay_token.job.clone(), relay_token.worker.clone())
            }
        };
        // The address gets its share back: the worker pays from its own.
        if self.workers.admit(worker, 1, now) {
            self.addresses.refund(&address_prefix(from), 1);
        }
    }
}

/// Acceptor of connections; see the module.
pub(super) struct ConnectionAcceptor {
    pub(super) key: RendezvousKey,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) relay_exchange: Arc<RelayExchange>,
    pub(super) arrival_limits: Mutex<ArrivalLimits>,
    pub(super) handshake_slots: Arc<Semaphore>,
    pub(super) observers: Vec<ObserverAddress>,
    pub(super) observer_policy: Arc<ObserverPolicy>,
    pub(super) shared: Arc<SharedState>,
    pub(super) drain: DrainWatch,
}

/// Verified token of a connection, which selects the service.
enum VerifiedToken {
    Ticket(WorkerTicket),
    Relay(RelayToken),
}

impl ConnectionAcceptor {
    /// Accepts connections until the drain.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut log_lines = LogLimiter::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.drain.signaled() => return,
            };
            match accepted {
                Ok((stream, from)) => self.begin_handshake(stream, from),
                Err(error) => {
                    if let Some(suppressed) = log_lines.take_due(error.kind(), Instant::now()) {
                        tracing::warn!(%error, suppressed, "rendezvous: accept failed, retrying");
                    }
                    // Out of file descriptors: do not spin.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Applies the limits that need no byte of the client.
    fn begin_handshake(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        // Before any byte is read: a flood costs one lookup per connection.
        if !self
            .lock_arrival_limits()
            .admit_address(from.ip(), Instant::now())
        {
            return self.shared.metrics.count_rejected(RejectReason::Address);
        }
        // A bound on handshakes in progress bounds the memory of clients that never finish.
        let Ok(permit) = self.handshake_slots.clone().try_acquire_owned() else {
            return self.shared.metrics.count_rejected(RejectReason::Full);
        };
        let acceptor = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(
                acceptor.shared.limits.handshake_timeout,
                acceptor.handshake(stream, from.ip()),
            )
            .await
            {
                Ok(Ok((socket, token))) => {
                    // The permit covers the handshake only.
                    drop(permit);
                    acceptor.serve_connection(socket, token, from);
                }
                Ok(Err(reason)) => acceptor.shared.metrics.count_rejected(reason),
                Err(_) => acceptor
                    .shared
                    .metrics
                    .count_rejected(RejectReason::Handshake),
            }
        });
    }

    fn lock_arrival_limits(&self) -> MutexGuard<'_, ArrivalLimits> {
        self.arrival_limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        from: IpAddr,
    ) -> Result<(WebSocket, VerifiedToken), RejectReason> {
        let socket = self
            .accept_tls(stream)
            .await
            .map_err(|_| RejectReason::Handshake)?;
        // The callback cannot return the token, so it leaves it here.
        let mut verified = Err(RejectReason::Handshake);
        #[expect(clippy::result_large_err, reason = "the library's own type")]
        let check_request = |request: &Request<()>, response: Response<()>| {
            verified = self.verify_request(request);
            match &verified {
                Ok(token) => {
                    self.lock_arrival_limits()
                        .charge_worker(from, token, Instant::now());
                    Ok(response)
                }
                Err(reason) => Err(refusal_response(*reason)),
            }
        };
        let config = Some(websocket::control_server_config());
        let socket = accept_hdr_async_with_config(socket, check_request, config).await;
        verified.and_then(|token| Ok((socket.map_err(|_| RejectReason::Handshake)?, token)))
    }

    async fn accept_tls(&self, stream: TcpStream) -> io::Result<BoxedStream> {
        // Messages are small and answered: Nagle's algorithm would delay each by a round trip.
        stream.set_nodelay(true)?;
        websocket::enable_keepalive(&stream)?;
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.accept(stream).await?),
            None => Box::new(stream),
        })
    }

    fn verify_request(&self, request: &Request<()>) -> Result<VerifiedToken, RejectReason> {
        // Before the ticket is read: a draining process refuses everybody alike, and the worker
        // tries the next one.
        if self.drain.is_draining() {
            return Err(RejectReason::Draining);
        }
        let unix = ClockReading::now().unix;
        let text = bearer_token(request).ok_or(RejectReason::Ticket)?;
        let token = match request.uri().path() {
            websocket::CONTROL_PATH => {
                WorkerTicket::verify(text, &self.key, unix).map(VerifiedToken::Ticket)
            }
            websocket::RELAY_PATH => {
                RelayToken::verify(text, &self.key, unix).map(VerifiedToken::Relay)
            }
            _ => return Err(RejectReason::Path),
        };
        // Only an expired token is named as such; a forged one learns nothing.
        token.map_err(|reason| {
            if reason == TokenError::Expired {
                RejectReason::Expired
            } else {
                RejectReason::Ticket
            }
        })
    }

    /// Spawns the service: a control connection lives for hours, and must not keep the handshake's
    /// memory.
    fn serve_connection(
        self: &Arc<Self>,
        socket: WebSocket,
        token: VerifiedToken,
        from: SocketAddr,
    ) {
        let drain = self.drain.clone();
        match token {
            VerifiedToken::Ticket(ticket) => {
                let access = self.observer_access(&ticket);
                // A dual-stack listener reports IPv4 workers as mapped addresses.
                let seen = SocketAddr::new(from.ip().to_canonical(), from.port());
                tokio::spawn(control_connection::serve(
                    socket,
                    ticket,
                    self.shared.clone(),
                    seen,
                    access,
                    drain,
                ));
            }
            VerifiedToken::Relay(relay_token) => {
                let acceptor = self.clone();
                tokio::spawn(async move {
                    // The handshake had the settings of control connections: the path was not known
                    // yet.
                    let socket =
                        websocket::reconfigure(socket, Role::Server, websocket::relay_config())
                            .await;
                    relay::serve_end(&acceptor.relay_exchange, socket, relay_token, drain).await;
                });
            }
        }
    }

    /// Mints an observer token for this connection. It must be unique, not secret.
    fn observer_access(&self, ticket: &WorkerTicket) -> ObserverAccess {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters, no other memory depends on the number.
        let random = NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let (token, key) = self.observer_policy.mint_token(ticket.until, random);
        ObserverAccess {
            token,
            key,
            servers: self.observers.clone(),
        }
    }
}

fn bearer_token(request: &Request<()>) -> Option<&str> {
    let value = request
        .headers()
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?;
    let (scheme, text) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(text)
}

/// Creates the response to a refused request. It does not say why a signature is invalid.
fn refusal_response(reason: RejectReason) -> ErrorResponse {
    let (status, text) = match reason {
        RejectReason::Expired => (
            StatusCode::UNAUTHORIZED,
            "the ticket has expired: get a new one\n",
        ),
        RejectReason::Draining => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the rendezvous is shutting down: try again\n",
        ),
        RejectReason::Path => (
            StatusCode::NOT_FOUND,
            "unknown path: expected /v1/control or /v1/relay\n",
        ),
        // All other reasons look alike, so that an attacker learns nothing from them.
        _ => (
            StatusCode::UNAUTHORIZED,
            "invalid ticket: see `nearpath rendezvous ticket`\n",
        ),
    };
    let mut response = Response::new(Some(text.to_owned()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, text.len().into());
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    // RFC 9110 sections 11.6.1 and 10.2.3: a 401 names its scheme, a 503 says when to retry.
    match status {
        StatusCode::UNAUTHORIZED => {
            drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1")))
        }
        _ => {}
    }
    response
}
