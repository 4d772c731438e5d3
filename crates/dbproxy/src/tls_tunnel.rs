//! Raw bytes of any protocol, over TLS that the node originates (`tls=originate`).
//!
//! The tunnel keeps TLS connections ready. Each one that is handed out is replaced. Unused ones
//! expire and are closed.

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

/// TLS connections of a destination that no client has used.
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

/// Relays the bytes of one client over a connection of its own; a warm one, if there is one.
///
/// # Errors
/// Fails when there is no connection, or when it breaks. The client's connection is reset then.
pub async fn serve(mut client: TcpStream, context: ClientContext) -> io::Result<()> {
    client.set_nodelay(true)?;
    let acquired = tokio::select! {
        // The error check comes first: a client that has gone must not consume a warm connection.
        biased;
        _ = client.ready(Interest::ERROR) => return Ok(()), // it does not wait any more
        acquired = acquire_socket(&context) => acquired,
    };
    let mut socket = match acquired {
        Ok(socket) => socket,
        Err(error) => {
            // The protocol is unknown, so a reset is the only error that every client understands.
            client.set_zero_linger()?;
            return Err(io::Error::other(error));
        }
    };
    // The replacement is dialed before the copy starts, so that the next client finds it ready.
    warm_up(&context, 1);
    let copied = tokio::io::copy_bidirectional(&mut client, &mut socket).await;
    let (sent, received) = copied.inspect_err(|_| drop(client.set_zero_linger()))?;
    DestinationCounters::increase(&context.upstream.counters.sent_bytes, sent);
    DestinationCounters::increase(&context.upstream.counters.received_bytes, received);
    Ok(())
}

/// Opens connections ahead for `clients` clients that come soon. The destination's `warm` bounds
/// them; waiting clients come first.
pub fn warm_up(context: &ClientContext, clients: usize) {
    let (state, warm) = (
        context
            .upstream
            .adapters
            .state_of::<TunnelState>(&context.upstream.destination),
        context.upstream.destination.egress.warm,
    );
    let max_new = usize::try_from(warm)
        .unwrap_or(usize::MAX)
        .saturating_sub(state.0.idle_count());
    for _ in 0..clients.min(max_new) {
        let (context, state) = (context.clone(), state.0.clone());
        tokio::task::spawn_local(async move {
            // A warm connection must not take a permit that a waiting client needs.
            if context
                .upstream
                .source
                .next_waiter(&context.upstream.destination)
                != NextWaiter::None
            {
                return;
            }
            // A failure is ignored here: the next client dials itself and gets the error.
            if let Ok(socket) = dial_socket(&context).await {
                state.give_back(
                    &context.upstream,
                    &(),
                    UsedConnection::new(IdleTlsSocket(socket), Instant::now()),
                );
            }
        });
    }
}

async fn acquire_socket(context: &ClientContext) -> Result<UpstreamSocket, NoConnection> {
    let state = context
        .upstream
        .adapters
        .state_of::<TunnelState>(&context.upstream.destination);
    let deadline = Instant::now() + context.upstream.destination.egress.wait;
    match state.0.acquire(&context.upstream, &(), deadline).await? {
        AcquireOutcome::Reused(kept) => Ok(kept.connection.0),
        AcquireOutcome::New(lease) => {
            // The deadline includes the TLS handshake, not only the connect.
            before_deadline(
                context,
                deadline,
                wrap_lease(
                    lease,
                    &context.upstream.destination,
                    &context.upstream.adapters,
                ),
            )
            .await
        }
    }
}

async fn dial_socket(context: &ClientContext) -> Result<UpstreamSocket, NoConnection> {
    let deadline = Instant::now() + context.upstream.destination.egress.wait;
    let lease = context
        .upstream
        .source
        .connect(&context.upstream.destination, deadline)
        .await?;
    before_deadline(
        context,
        deadline,
        wrap_lease(
            lease,
            &context.upstream.destination,
            &context.upstream.adapters,
        ),
    )
    .await
}

async fn before_deadline<T>(
    context: &ClientContext,
    deadline: Instant,
    operation: impl Future<Output = Result<T, NoConnection>>,
) -> Result<T, NoConnection> {
    let timed_out = || NoConnection::Refused {
        to: context.upstream.destination.key.host_port.clone(),
        error: io::Error::new(
            io::ErrorKind::TimedOut,
            "the TLS handshake did not end within the `wait` of the egress",
        ),
    };
    tokio::time::timeout_at(deadline.into(), operation)
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}
