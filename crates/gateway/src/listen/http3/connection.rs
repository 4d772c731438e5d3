//! One client's connection.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearpath_wire::BoxError;
use nearpath_wire::h3::{Http3Requests, UnreadRequest};
use quinn::{Connection, Incoming, ZeroRttAccepted};
use tokio::sync::OwnedSemaphorePermit;

use super::client::{Http3Client, OpenRequest, OpenRequests};
use super::half_open::HalfOpen;
use super::{Http3ListenPort, request};
use crate::context::WorkerContext;
use crate::listen::ListenContext;
use crate::listen::conn_state::ConnState;

/// How long a client that was told to leave may take to close, in round trips; and the least and the most of it. It has all answers, but
/// many throw away what they have not read when a connection is closed.
const CLOSE_LINGER: (u32, Duration, Duration) =
    (8, Duration::from_millis(100), Duration::from_secs(2));

/// Serves one connection to its end, and keeps its `place` until then.
pub(super) async fn serve_connection(
    context: Rc<ListenContext>,
    port: Rc<Http3ListenPort>,
    incoming: Incoming,
    half_open: HalfOpen,
    _permit: OwnedSemaphorePermit,
) {
    let ListenContext {
        worker,
        conn_table: connections,
    } = &*context;
    let (state, addr) = (
        ConnState::new(worker.tick_counter()),
        incoming.remote_address(),
    );
    connections.add_connection(state.clone());
    if port.drain.is_draining() {
        connections.drain_all(worker.current_tick()); // let in in the same moment: it did not hear the order
    }
    match state
        .run_until_cut(serve_handshake(worker, &port, &state, incoming, half_open))
        .await
    {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%addr, %error, "connection ended"),
        None => drop(
            worker
                .totals
                .connections_cut
                .fetch_add(1, Ordering::Relaxed),
        ),
    }
    connections.remove_connection(&state);
}

async fn serve_handshake(
    worker: &Rc<WorkerContext>,
    port: &Rc<Http3ListenPort>,
    state: &Arc<ConnState>,
    incoming: Incoming,
    half_open: HalfOpen,
) -> Result<(), BoxError> {
    let (started_at, addr) = (Instant::now(), incoming.remote_address());
    let (quic, complete, requests) =
        tokio::time::timeout(port.tls_timeout, begin_handshake(incoming, port))
            .await
            .map_err(io::Error::from)??;
    state.set_protocol(true);
    let client = Rc::new(Http3Client::new(worker, state, addr));
    let time_left = port.tls_timeout.saturating_sub(started_at.elapsed());
    let complete = tokio::time::timeout(time_left, complete);
    let session = Http3Session {
        port: port.clone(),
        client,
        requests,
        open_requests: Rc::default(),
    };
    session.run_session(quic, complete, half_open).await
}

/// The part of the handshake after which requests may come, those of a first flight too.
async fn begin_handshake(
    incoming: Incoming,
    port: &Http3ListenPort,
) -> Result<(Connection, ZeroRttAccepted, Http3Requests), BoxError> {
    let mut connecting = incoming.accept()?;
    // A ClientHello of two packets: before it is complete the client's settings are not known.
    connecting.handshake_data().await?;
    let (quic, complete) = connecting
        .into_0rtt()
        .map_err(|_| "a server that cannot begin before the handshake's end")?;
    let requests = Http3Requests::start(quic.clone(), &port.limits).await?;
    Ok((quic, complete, requests))
}

struct Http3Session {
    port: Rc<Http3ListenPort>,
    client: Rc<Http3Client>,
    requests: Http3Requests,
    open_requests: Rc<OpenRequests>,
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
        while !(is_leaving && self.open_requests.count.get() == 0) {
            tokio::select! {
                biased;
                completed = complete.as_mut(), if half_open.is_some() => {
                    completed.map_err(io::Error::from)?;
                    half_open = None;
                    state.expect_request();
                }
                () = state.wait_for_drain(), if !is_leaving => {
                    is_leaving = true;
                    // A client that takes no byte of it is not waited for.
                    let goaway = tokio::time::timeout(self.port.header_timeout, self.requests.start_shutdown());
                    goaway.await.map_err(io::Error::from)??;
                }
                () = self.open_requests.request_ended.notified(), if is_leaving => {}
                next = self.requests.next_request() => match next? {
                    Some(opened) => self.spawn_request(opened, half_open.is_some()),
                    None => break,
                },
            }
        }
        let (round_trips, min, max) = CLOSE_LINGER;
        let _ = tokio::time::timeout(
            (quic.rtt() * round_trips).clamp(min, max),
            self.refuse_late_requests(&quic),
        )
        .await; // closed by us, then
        Ok(())
    }

    /// Until the client closes: what it sent before it heard of GOAWAY is refused, so that it knows that it has not run.
    async fn refuse_late_requests(&mut self, quic: &Connection) {
        while let Ok(Some(_)) = self.requests.next_request().await {}
        quic.closed().await;
    }

    fn spawn_request(&self, opened: UnreadRequest, early: bool) {
        let (client, open_request) = (self.client.clone(), OpenRequest::begin(&self.open_requests));
        let early = early && opened.is_early();
        self.client.worker.spawn(request::answer_request(
            client,
            self.port.clone(),
            opened,
            early,
            open_request,
        ));
    }
}
