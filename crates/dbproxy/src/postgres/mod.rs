//! PostgreSQL's protocol 3 (its manual, chapter "Frontend/Backend Protocol"): many short-lived clients on few backends.
//!
//! A client comes in by the [`handshake`]: it shows by what right, or is the function as whom the node logs in ([`login`], [`parse_auth`]), and hears how its
//! session begins. Then it is a [`handle_backend`], who has a backend only while a transaction is open (`mode=transaction`) or as long as it stays
//! (`mode=session`). [`session`] decides which, message by message, without socket or clock: it counts expected replies, keeps prepared statements and
//! settings with the client, and pins a client to its backend for what cannot be moved ([`session_effect`]). A backend goes back to the bench when ReadyForQuery has
//! shown that nothing is under way, and is cleaned first when something may be left in it.

mod auth;
mod backend;
mod backend_state;
mod cancel;
mod connection;
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

use tokio::net::TcpStream;

use super::ClientContext;
use connection::PostgresConnection;
use handshake::HandshakeError;
use relay::PostgresRelay;
use startup::{FirstPacket, PostgresStartup};

/// One connection of a function to a PostgreSQL server.
///
/// # Errors
/// When its connection breaks. What goes wrong at the server is told to the client, in the server's words.
pub async fn serve(client: TcpStream, visit: ClientContext) -> io::Result<()> {
    let mut client = PostgresConnection::new(client);
    match handshake::read_first_packet(&mut client).await {
        Ok(FirstPacket::Cancel(key)) => {
            state::state_of(&visit).cancel_keys.cancel(key).await;
            Ok(())
        }
        Ok(FirstPacket::Start(startup)) if startup.is_replication() => {
            relay_replication(client, startup, &visit).await
        }
        Ok(FirstPacket::Start(startup)) => serve_session(client, startup, visit).await,
        Ok(FirstPacket::Encryption | FirstPacket::Unknown(_)) => {
            unreachable!("they are answered at the door")
        }
        Err(turned) => reject_client(client, turned, &visit).await,
    }
}

async fn serve_session(
    mut client: PostgresConnection<TcpStream>,
    startup: PostgresStartup,
    visit: ClientContext,
) -> io::Result<()> {
    let room = state::state_of(&visit);
    let seat = room.cancel_keys.register();
    let entering = handshake::accept_client(&mut client, startup, &visit, &room, &seat);
    let late = |_| Err(HandshakeError::Disconnected(io::ErrorKind::TimedOut.into()));
    match tokio::time::timeout(
        handshake::HANDSHAKE_TIMEOUT + visit.upstream.destination.egress.wait,
        entering,
    )
    .await
    .unwrap_or_else(late)
    {
        Ok(guest) => {
            PostgresRelay::new(client, guest, seat, room, visit)
                .run()
                .await
        }
        Err(turned) => reject_client(client, turned, &visit).await,
    }
}

/// Tells a client why it does not come in.
async fn reject_client(
    mut client: PostgresConnection<TcpStream>,
    turned: HandshakeError,
    visit: &ClientContext,
) -> io::Result<()> {
    let words = match turned {
        HandshakeError::Disconnected(error) => return Err(error),
        HandshakeError::Backend(unfit) => {
            tracing::debug!(function = %visit.caller.function, to = visit.upstream.destination.key.host_port, %unfit, "not let in");
            unfit.count_refusal(&visit.upstream.counters);
            unfit.to_message(&visit.upstream.destination.key.host_port)
        }
        HandshakeError::Client(state, what) => {
            message::fatal_error(state, &format!("nearpath: {what}"), "")
        }
    };
    client.outgoing.extend_from_slice(&words);
    client.flush().await
}

/// A stream of changes has a connection of its own, from end to end.
async fn relay_replication(
    mut client: PostgresConnection<TcpStream>,
    startup: PostgresStartup,
    visit: &ClientContext,
) -> io::Result<()> {
    if visit.upstream.destination.egress.login.is_some() {
        let what = "replication needs the function's own login: leave `user` out of its egress";
        return reject_client(
            client,
            HandshakeError::Client(message::sqlstate::PROTOCOL_VIOLATION, what.into()),
            visit,
        )
        .await;
    }
    visit.upstream.counters.count_pin("replication");
    let deadline = std::time::Instant::now() + visit.upstream.destination.egress.wait;
    let opened = match visit
        .upstream
        .source
        .connect(&visit.upstream.destination, deadline)
        .await
    {
        Ok(lease) => login::open_connection(lease, visit).await,
        Err(none) => Err(none.into()),
    };
    let (mut server, _) = match opened {
        Ok(opened) => opened,
        Err(unfit) => return reject_client(client, HandshakeError::Backend(unfit), visit).await,
    };
    server.outgoing.extend_from_slice(&startup.encode());
    server.outgoing.extend_from_slice(client.incoming.buffer());
    server.flush().await?;
    tokio::io::copy_bidirectional(&mut client.stream, &mut server.stream)
        .await
        .map(|_| ())
}
