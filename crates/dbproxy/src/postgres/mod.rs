//! PostgreSQL's protocol 3 (its manual, chapter "Frontend/Backend Protocol"): many short-lived clients on few backends.
//!
//! A client comes in by the [`handshake`]: it shows by what right, or is the function as whom the node logs in ([`login`], [`auth`]), and hears how its
//! session begins. Then it is a [`relay`], who has a backend only while a transaction is open (`mode=transaction`) or as long as it stays
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

use super::Visit;
use connection::Line;
use handshake::Turned;
use relay::Visitor;
use startup::{Opening, Startup};

/// One connection of a function to a PostgreSQL server.
///
/// # Errors
/// When its connection breaks. What goes wrong at the server is told to the client, in the server's words.
pub async fn serve(client: TcpStream, visit: Visit) -> io::Result<()> {
    let mut client = Line::new(client);
    match handshake::first_words(&mut client).await {
        Ok(Opening::Cancel(key)) => {
            state::of(&visit).seats.cancel(key).await;
            Ok(())
        }
        Ok(Opening::Start(startup)) if startup.replicates() => replicate(client, startup, &visit).await,
        Ok(Opening::Start(startup)) => receive(client, startup, visit).await,
        Ok(Opening::Encrypt | Opening::Unknown(_)) => unreachable!("they are answered at the door"),
        Err(turned) => turn_away(client, turned, &visit).await,
    }
}

async fn receive(mut client: Line<TcpStream>, startup: Startup, visit: Visit) -> io::Result<()> {
    let room = state::of(&visit);
    let seat = room.seats.take();
    let entering = handshake::enter(&mut client, startup, &visit, &room, &seat);
    let late = |_| Err(Turned::Away(io::ErrorKind::TimedOut.into()));
    match tokio::time::timeout(handshake::PATIENCE + visit.upstream.destination.egress.wait, entering)
        .await
        .unwrap_or_else(late)
    {
        Ok(guest) => Visitor::new(client, guest, seat, room, visit).stay().await,
        Err(turned) => turn_away(client, turned, &visit).await,
    }
}

/// Tells a client why it does not come in.
async fn turn_away(mut client: Line<TcpStream>, turned: Turned, visit: &Visit) -> io::Result<()> {
    let words = match turned {
        Turned::Away(error) => return Err(error),
        Turned::Down(unfit) => {
            tracing::debug!(function = %visit.caller.function, to = visit.upstream.destination.key.to, %unfit, "not let in");
            unfit.write_down(&visit.upstream.ledger);
            unfit.words(&visit.upstream.destination.key.to)
        }
        Turned::Wrong(state, what) => message::fatal(state, &format!("nearpath: {what}"), ""),
    };
    client.out.extend_from_slice(&words);
    client.flush().await
}

/// A stream of changes has a connection of its own, from end to end.
async fn replicate(mut client: Line<TcpStream>, startup: Startup, visit: &Visit) -> io::Result<()> {
    if visit.upstream.destination.egress.login.is_some() {
        let what = "replication needs the function's own login: leave `user` out of its egress";
        return turn_away(client, Turned::Wrong(message::state::PROTOCOL, what.into()), visit).await;
    }
    visit.upstream.ledger.pinned("replication");
    let deadline = std::time::Instant::now() + visit.upstream.destination.egress.wait;
    let opened = match visit.upstream.backends.connect(&visit.upstream.destination, deadline).await {
        Ok(lease) => login::open(lease, visit).await,
        Err(none) => Err(none.into()),
    };
    let (mut server, _) = match opened {
        Ok(opened) => opened,
        Err(unfit) => return turn_away(client, Turned::Down(unfit), visit).await,
    };
    server.out.extend_from_slice(&startup.packet());
    server.out.extend_from_slice(client.inbox.room());
    server.flush().await?;
    tokio::io::copy_bidirectional(&mut client.stream, &mut server.stream).await.map(|_| ())
}
