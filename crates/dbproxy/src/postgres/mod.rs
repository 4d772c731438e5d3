//! PostgreSQL's protocol 3 (its manual, chapter "Frontend/Backend Protocol"): many short-lived
//! clients on few backends.
//!
//! A client authenticates in the [`handshake`]: by its own password ([`auth`]), or as the user as
//! whom the node logs in ([`login`]). A [`relay`] then moves its bytes. It has a backend while a
//! transaction is open (`mode=transaction`), or until the client leaves (`mode=session`).
//!
//! [`session`] decides this message by message, without socket or clock. It counts expected replies
//! and keeps prepared statements and settings with the client. It pins a client to its backend for
//! state that cannot move ([`session_effect`]). A backend returns to the idle pool when
//! ReadyForQuery has shown that nothing is outstanding. It is cleaned first if it may hold state.

mod auth;
mod backend;
mod backend_state;
mod cancel;
mod client_state;
mod connection;
mod encryption;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod login;
mod message;
mod relay;
mod session;
mod session_effect;
mod startup;
mod state;

use std::io;

use nearpath_types::egress::EgressProtocol;
use tokio::net::TcpStream;

use crate::ClientContext;
use crate::adapter::{Adapter, ClientService};
use crate::client_stream::ClientStream;
use client_state::HandshakeError;
use connection::PostgresConnection;
use relay::PostgresRelay;
use startup::{FirstPacket, PostgresStartup};

/// The adapter of PostgreSQL's protocol 3. Errors of the server go to the client, in the server's
/// format.
#[derive(Debug)]
pub struct PostgresAdapter;

impl Adapter for PostgresAdapter {
    fn protocol(&self) -> EgressProtocol {
        EgressProtocol::Postgres
    }

    fn serve(&self, client: TcpStream, context: ClientContext) -> ClientService {
        Box::pin(serve(client, context))
    }
}

async fn serve(client: TcpStream, context: ClientContext) -> io::Result<()> {
    let (client, first) = encryption::open_client(client, &context).await?;
    match first {
        Ok(FirstPacket::Cancel(key)) => {
            // A CancelRequest gets no reply: the protocol defines none.
            state::state_of(&context).cancel_keys.cancel(key).await;
            Ok(())
        }
        Ok(FirstPacket::Start(startup)) if startup.is_replication() => {
            relay_replication(client, startup, &context).await
        }
        Ok(FirstPacket::Start(startup)) => serve_session(client, startup, context).await,
        Ok(FirstPacket::Tls | FirstPacket::GssEncryption | FirstPacket::Unknown(_)) => {
            unreachable!("`open_client` answers them")
        }
        Err(error) => reject_client(client, error, &context).await,
    }
}

async fn serve_session(
    mut client: PostgresConnection<ClientStream>,
    startup: PostgresStartup,
    context: ClientContext,
) -> io::Result<()> {
    let state = state::state_of(&context);
    let cancel_registration = state.cancel_keys.register();
    let entering =
        handshake::accept_client(&mut client, startup, &context, &state, &cancel_registration);
    let timed_out = |_| Err(HandshakeError::Disconnected(io::ErrorKind::TimedOut.into()));
    // `HANDSHAKE_TIMEOUT` bounds the client's part of the handshake, `wait` the server's.
    match tokio::time::timeout(
        handshake::HANDSHAKE_TIMEOUT + context.upstream.destination.egress.wait,
        entering,
    )
    .await
    .unwrap_or_else(timed_out)
    {
        Ok(client_state) => {
            PostgresRelay::new(client, client_state, cancel_registration, state, context)
                .run()
                .await
        }
        Err(error) => reject_client(client, error, &context).await,
    }
}

/// Tells a client why it is rejected.
async fn reject_client(
    mut client: PostgresConnection<ClientStream>,
    error: HandshakeError,
    context: &ClientContext,
) -> io::Result<()> {
    let message = match error {
        HandshakeError::Disconnected(error) => return Err(error),
        HandshakeError::Backend(error) => {
            tracing::debug!(function = %context.caller.function, to = context.upstream.destination.key.host_port, %error, "PostgreSQL adapter: client rejected");
            error.count_refusal(&context.upstream.counters);
            error.to_message(&context.upstream.destination.key.host_port)
        }
        HandshakeError::Client(state, what) => {
            message::fatal_error(state, &format!("nearpath: {what}"), "")
        }
    };
    client.outgoing.extend_from_slice(&message);
    client.flush().await
}

/// Relays a replication stream, which has a connection of its own from end to end.
async fn relay_replication(
    mut client: PostgresConnection<ClientStream>,
    startup: PostgresStartup,
    context: &ClientContext,
) -> io::Result<()> {
    if context.upstream.destination.egress.login.is_some() {
        let what = "replication needs the function's own login: remove `user` from its egress";
        return reject_client(
            client,
            HandshakeError::Client(message::sqlstate::PROTOCOL_VIOLATION, what.into()),
            context,
        )
        .await;
    }
    context.upstream.counters.count_pin("replication");
    let deadline = std::time::Instant::now() + context.upstream.destination.egress.wait;
    let opened = match context
        .upstream
        .source
        .connect(&context.upstream.destination, deadline)
        .await
    {
        Ok(lease) => login::open_connection(lease, context).await,
        Err(none) => Err(none.into()),
    };
    let (mut server, _) = match opened {
        Ok(opened) => opened,
        Err(error) => return reject_client(client, HandshakeError::Backend(error), context).await,
    };
    server.outgoing.extend_from_slice(&startup.encode());
    // The client may have sent more than its startup message already.
    server.outgoing.extend_from_slice(client.incoming.buffer());
    server.flush().await?;
    tokio::io::copy_bidirectional(&mut client.stream, &mut server.stream)
        .await
        .map(|_| ())
}
