//! Bytes of a protocol that no adapter knows, over TLS that the node speaks (`tls=originate`).
//!
//! Connections with TLS on them are kept ready: each that is handed out is replaced, and those that nobody takes grow old and are closed.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::{AcquireOutcome, IdlePool, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::{NextWaiter, NoConnection};
use nearpath_connpool::socket::UpstreamSocket;
use nearpath_connpool::tls::wrap_lease;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::ClientContext;

/// Connections with TLS on them that nobody has used.
struct TunnelState(Rc<IdlePool<(), IdleTlsSocket>>);

#[derive(Debug)]
struct IdleTlsSocket(UpstreamSocket);

impl ReusableConnection for IdleTlsSocket {
    fn is_quiet(&self) -> bool {
        self.0.is_quiet()
    }

    fn close(self) {
        tokio::task::spawn_local(self.0.close_with_message(b""));
    }
}

impl AdapterState for TunnelState {
    fn for_destination(to: &EgressDestination) -> Self {
        Self(IdlePool::new(to))
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        Some(&*self.0)
    }
}

/// Carries the bytes of one client over a connection of its own, warm if there is one.
///
/// # Errors
/// When there is no connection, or it breaks: the client's is reset then.
pub async fn serve(mut client: TcpStream, visit: ClientContext) -> io::Result<()> {
    client.set_nodelay(true)?;
    let taken = tokio::select! {
        biased;
        _ = client.ready(Interest::ERROR) => return Ok(()), // it does not wait any more
        taken = acquire_socket(&visit) => taken,
    };
    let mut socket = match taken {
        Ok(socket) => socket,
        Err(error) => {
            client.set_zero_linger()?;
            return Err(io::Error::other(error));
        }
    };
    warm_up(&visit, 1);
    let carried = tokio::io::copy_bidirectional(&mut client, &mut socket).await;
    let (sent, received) = carried.inspect_err(|_| drop(client.set_zero_linger()))?;
    DestinationCounters::increase(&visit.upstream.counters.sent_bytes, sent);
    DestinationCounters::increase(&visit.upstream.counters.received_bytes, received);
    Ok(())
}

/// So many clients come soon: has connections ready for them, as far as the destination's `warm` allows and nobody waits for a place.
pub fn warm_up(visit: &ClientContext, clients: usize) {
    let (room, warm) = (
        visit
            .upstream
            .adapters
            .state_of::<TunnelState>(&visit.upstream.destination),
        visit.upstream.destination.egress.warm,
    );
    let most = usize::try_from(warm)
        .unwrap_or(usize::MAX)
        .saturating_sub(room.0.idle_count());
    for _ in 0..clients.min(most) {
        let (visit, room) = (visit.clone(), room.0.clone());
        tokio::task::spawn_local(async move {
            if visit
                .upstream
                .source
                .next_waiter(&visit.upstream.destination)
                != NextWaiter::None
            {
                return;
            }
            // Who takes it will learn what is wrong, if something is.
            if let Ok(socket) = dial_socket(&visit).await {
                room.give_back(
                    &visit.upstream,
                    &(),
                    UsedConnection::new(IdleTlsSocket(socket), Instant::now()),
                );
            }
        });
    }
}

async fn acquire_socket(visit: &ClientContext) -> Result<UpstreamSocket, NoConnection> {
    let room = visit
        .upstream
        .adapters
        .state_of::<TunnelState>(&visit.upstream.destination);
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    match room.0.acquire(&visit.upstream, &(), deadline).await? {
        AcquireOutcome::Reused(kept) => Ok(kept.connection.0),
        AcquireOutcome::New(lease) => {
            before_deadline(
                visit,
                deadline,
                wrap_lease(lease, &visit.upstream.destination, &visit.upstream.adapters),
            )
            .await
        }
    }
}

async fn dial_socket(visit: &ClientContext) -> Result<UpstreamSocket, NoConnection> {
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    let lease = visit
        .upstream
        .source
        .connect(&visit.upstream.destination, deadline)
        .await?;
    before_deadline(
        visit,
        deadline,
        wrap_lease(lease, &visit.upstream.destination, &visit.upstream.adapters),
    )
    .await
}

async fn before_deadline<T>(
    visit: &ClientContext,
    deadline: Instant,
    what: impl Future<Output = Result<T, NoConnection>>,
) -> Result<T, NoConnection> {
    let late = || NoConnection::Refused {
        to: visit.upstream.destination.key.host_port.clone(),
        error: io::ErrorKind::TimedOut.into(),
    };
    tokio::time::timeout_at(deadline.into(), what)
        .await
        .unwrap_or_else(|_| Err(late()))
}
