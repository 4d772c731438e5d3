//! Bytes of a protocol that no adapter knows, over TLS that the node speaks (`tls=originate`).
//!
//! Connections with TLS on them are kept ready: each that is handed out is replaced, and those that nobody takes grow old and are closed.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use nearpath_connpool::adapter_state::{Idlers, Room};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::destination::Destination;
use nearpath_connpool::idle::{Bench, Got, Kept, Reused};
use nearpath_connpool::pool::{Need, NoConnection};
use nearpath_connpool::socket::Socket;
use nearpath_connpool::tls::on;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::Visit;

/// Connections with TLS on them that nobody has used.
struct Ready(Rc<Bench<(), Fresh>>);

#[derive(Debug)]
struct Fresh(Socket);

impl Reused for Fresh {
    fn is_quiet(&self) -> bool {
        self.0.is_quiet()
    }

    fn close(self) {
        tokio::task::spawn_local(self.0.leave(b""));
    }
}

impl Room for Ready {
    fn open(to: &Destination) -> Self {
        Self(Bench::new(to))
    }

    fn idlers(&self) -> Option<&dyn Idlers> {
        Some(&*self.0)
    }
}

/// Carries the bytes of one client over a connection of its own, warm if there is one.
///
/// # Errors
/// When there is no connection, or it breaks: the client's is reset then.
pub async fn serve(mut client: TcpStream, visit: Visit) -> io::Result<()> {
    client.set_nodelay(true)?;
    let taken = tokio::select! {
        biased;
        _ = client.ready(Interest::ERROR) => return Ok(()), // it does not wait any more
        taken = take(&visit) => taken,
    };
    let mut socket = match taken {
        Ok(socket) => socket,
        Err(error) => {
            client.set_zero_linger()?;
            return Err(io::Error::other(error));
        }
    };
    expects(&visit, 1);
    let carried = tokio::io::copy_bidirectional(&mut client, &mut socket).await;
    let (sent, received) = carried.inspect_err(|_| drop(client.set_zero_linger()))?;
    Ledger::count(&visit.upstream.ledger.sent, sent);
    Ledger::count(&visit.upstream.ledger.received, received);
    Ok(())
}

/// So many clients come soon: has connections ready for them, as far as the destination's `warm` allows and nobody waits for a place.
pub fn expects(visit: &Visit, clients: usize) {
    let (room, warm) =
        (visit.upstream.rooms.of::<Ready>(&visit.upstream.destination), visit.upstream.destination.egress.warm);
    let most = usize::try_from(warm).unwrap_or(usize::MAX).saturating_sub(room.0.idle());
    for _ in 0..clients.min(most) {
        let (visit, room) = (visit.clone(), room.0.clone());
        tokio::task::spawn_local(async move {
            if visit.upstream.backends.need(&visit.upstream.destination) != Need::Nobody {
                return;
            }
            // Who takes it will learn what is wrong, if something is.
            if let Ok(socket) = dial(&visit).await {
                room.give_back(&visit.upstream, &(), Kept::new(Fresh(socket), Instant::now()));
            }
        });
    }
}

async fn take(visit: &Visit) -> Result<Socket, NoConnection> {
    let room = visit.upstream.rooms.of::<Ready>(&visit.upstream.destination);
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    match room.0.acquire(&visit.upstream, &(), deadline).await? {
        Got::Used(kept) => Ok(kept.item.0),
        Got::New(lease) => {
            in_time(visit, deadline, on(lease, &visit.upstream.destination, &visit.upstream.rooms)).await
        }
    }
}

async fn dial(visit: &Visit) -> Result<Socket, NoConnection> {
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    let lease = visit.upstream.backends.connect(&visit.upstream.destination, deadline).await?;
    in_time(visit, deadline, on(lease, &visit.upstream.destination, &visit.upstream.rooms)).await
}

async fn in_time<T>(
    visit: &Visit,
    deadline: Instant,
    what: impl Future<Output = Result<T, NoConnection>>,
) -> Result<T, NoConnection> {
    let late = || NoConnection::Refused {
        to: visit.upstream.destination.key.to.clone(),
        error: io::ErrorKind::TimedOut.into(),
    };
    tokio::time::timeout_at(deadline.into(), what).await.unwrap_or_else(|_| Err(late()))
}
