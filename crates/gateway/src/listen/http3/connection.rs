//! Connections of HTTP/3 clients.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearpath_wire::BoxError;
use nearpath_wire::h3::{Http3Requests, UnreadRequest, error_code};
use nearpath_wire::quic::wait_stalled;
use quinn::{Connection, Incoming, ZeroRttAccepted};

use super::client::{Http3Client, OpenRequest, OpenRequests};
use super::half_open::HalfOpen;
use super::{Http3ListenPort, request};
use crate::context::WorkerContext;
use crate::listen::ListenContext;
use crate::listen::conn_state::ConnState;
use crate::listen::connection_limit::ConnectionPermit;

/// Round trips for a client to close after GOAWAY. The client has all responses, but many clients
/// discard unread data when the connection is closed.
const LINGER_ROUND_TRIPS: u32 = 8;
/// Minimum time for a client to close after GOAWAY.
const MIN_LINGER_PERIOD: Duration = Duration::from_millis(100);
/// Maximum time for a client to close after GOAWAY.
const MAX_LINGER_PERIOD: Duration = Duration::from_secs(2);

/// Serves one connection to its end and holds its permit until then.
pub(super) async fn serve_connection(
    context: Rc<ListenContext>,
    port: Rc<Http3ListenPort>,
    incoming: Incoming,
    half_open: HalfOpen,
    permit: ConnectionPermit,
) {
    let ListenContext { worker, conn_table } = &*context;
    let (state, addr) = (
        ConnState::new(worker.tick_counter()),
        incoming.remote_address(),
    );
    conn_table.add_connection(state.clone());
    if let Some(cause) = port.drain.cause() {
        // Accepted just now, after the drain order went out.
        conn_table.drain_all(worker.current_tick(), cause);
    }
    let serving = pin!(serve_handshake(
        worker, &port, &state, incoming, half_open, permit,
    ));
    match state.run_until_cut(serving).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%addr, %error, "connection ended"),
        None => drop(
            worker
                .totals
                .connections_cut
                .fetch_add(1, Ordering::Relaxed),
        ),
    }
    conn_table.remove_connection(&state);
}

async fn serve_handshake(
    worker: &Rc<WorkerContext>,
    port: &Rc<Http3ListenPort>,
    state: &Arc<ConnState>,
    incoming: Incoming,
    half_open: HalfOpen,
    permit: ConnectionPermit,
) -> Result<(), BoxError> {
    let (started_at, addr) = (Instant::now(), incoming.remote_address());
    // A single limit for both parts of the handshake: a client cannot spend it twice.
    let (quic, complete, requests) =
        tokio::time::timeout(port.tls_timeout, begin_handshake(incoming, port))
            .await
            .map_err(io::Error::from)??;
    state.set_protocol(true);
    let client = Rc::new(Http3Client::new(worker, state, addr, permit.is_reserve()));
    let time_left = port.tls_timeout.saturating_sub(started_at.elapsed());
    let complete = tokio::time::timeout(time_left, complete);
    let session = Http3Session {
        port: port.clone(),
        client,
        requests,
        open_requests: Rc::default(),
        permit,
    };
    session.run_session(quic, complete, half_open).await
}

/// Runs the part of the handshake after which requests may arrive, including early ones.
async fn begin_handshake(
    incoming: Incoming,
    port: &Http3ListenPort,
) -> Result<(Connection, ZeroRttAccepted, Http3Requests), BoxError> {
    let mut connecting = incoming.accept()?;
    // A ClientHello may take two packets; before it is complete, the client's settings are unknown.
    connecting.handshake_data().await?;
    let (quic, complete) = connecting
        .into_0rtt()
        .map_err(|_| "the TLS configuration does not support early data")?;
    // Started before the handshake is complete, so that early requests are read at once.
    let requests = Http3Requests::start(quic.clone(), &port.limits).await?;
    Ok((quic, complete, requests))
}

struct Http3Session {
    port: Rc<Http3ListenPort>,
    client: Rc<Http3Client>,
    requests: Http3Requests,
    open_requests: Rc<OpenRequests>,
    permit: ConnectionPermit,
}

impl Http3Session {
    async fn run_session(
        mut self,
        quic: Connection,
        handshake: tokio::time::Timeout<ZeroRttAccepted>,
        half_open: HalfOpen,
    ) -> Result<(), BoxError> {
        let mut complete = std::pin::pin!(handshake);
        let (mut half_open, mut is_leaving) = (Some(half_open), false);
        let state = self.client.connection.state.clone();
        let mut client_gone = std::pin::pin!(wait_gone_in_drain(&state, &quic));
        while !(is_leaving && self.open_requests.count.get() == 0) {
            tokio::select! {
                // In this order: the state of the handshake decides whether the next request
                // counts as early.
                biased;
                completed = complete.as_mut(), if half_open.is_some() => {
                    completed.map_err(io::Error::from)?;
                    half_open = None;
                    self.charge_source(&quic)?;
                    state.expect_request();
                }
                () = state.wait_for_drain(), if !is_leaving => {
                    is_leaving = true;
                    // A client that reads nothing must not delay the drain.
                    let goaway = tokio::time::timeout(self.port.header_timeout, self.requests.start_shutdown());
                    goaway.await.map_err(io::Error::from)??;
                }
                () = self.open_requests.request_ended.notified(), if is_leaving => {}
                () = client_gone.as_mut() => {
                    // Ends the requests too, which would wait until the client has its responses.
                    quic.close(error_code::NO_ERROR, b"the client does not answer");
                    return Ok(());
                }
                next = self.requests.next_request() => match next? {
                    Some(opened) => self.spawn_request(opened, half_open.is_some()),
                    None => break,
                },
            }
        }
        let _ = tokio::time::timeout(
            (quic.rtt() * LINGER_ROUND_TRIPS).clamp(MIN_LINGER_PERIOD, MAX_LINGER_PERIOD),
            self.refuse_late_requests(&quic),
        )
        .await; // after that, closed by the gateway
        Ok(())
    }

    /// Counts the connection for its source: the complete handshake has validated the address.
    fn charge_source(&mut self, quic: &Connection) -> Result<(), BoxError> {
        if self.permit.charge_source(self.client.connection.peer.addr) {
            return Ok(());
        }
        let refused = &self.client.worker.totals.http3.refused;
        refused.fetch_add(1, Ordering::Relaxed);
        let why = "the address has its share of the connections";
        quic.close(error_code::EXCESSIVE_LOAD, why.as_bytes());
        Err(why.into())
    }

    /// Refuses requests until the client closes. GOAWAY tells the client that they did not run.
    async fn refuse_late_requests(&mut self, quic: &Connection) {
        while let Ok(Some(_)) = self.requests.next_request().await {}
        quic.closed().await;
    }

    fn spawn_request(&self, opened: UnreadRequest, is_early: bool) {
        let (client, open_request) = (self.client.clone(), OpenRequest::begin(&self.open_requests));
        let is_early = is_early && opened.is_early();
        self.client.worker.spawn(request::answer_request(
            client,
            self.port.clone(),
            opened,
            is_early,
            open_request,
        ));
    }
}

/// Returns when the client has gone without a close, once the connection drains. Before, only the
/// idle timeout of QUIC ends such connections.
async fn wait_gone_in_drain(state: &ConnState, quic: &Connection) {
    state.wait_for_drain().await;
    wait_stalled(quic).await;
}
