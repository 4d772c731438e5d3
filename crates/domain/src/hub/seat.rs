//! What the node keeps of a party: its desk, and the other end of its socket when the kernel carries its descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::spin::Spin;
use nearpath_shm::wire::RECORD;
use nearpath_shm::{Desk, Knocker, Party, desk};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::Interest;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::connection::{Key, News, readiness};
use super::{Delivery, Settings};
use crate::protocol::{Bell, Hello, Isolation, Mode};

/// See the module.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) key: Key,
    desk: Desk,
    wire: Option<NodesEnd>,
}

/// The node's end of a party's socket; it is closed when the party is no more.
#[derive(Debug)]
struct NodesEnd {
    socket: Arc<OwnedFd>,
    audit: AbortHandle,
}

impl Drop for NodesEnd {
    fn drop(&mut self) {
        self.audit.abort();
    }
}

/// How the node wakes a party.
#[derive(Debug, Clone)]
pub(super) struct Doorbell {
    knocker: Knocker,
    wire: Option<Arc<OwnedFd>>,
}

impl Doorbell {
    /// Wakes the party.
    pub(super) fn knock(&self) {
        self.knocker.knock();
        self.ring();
    }

    /// Says that there is something on the party's dispatch socket.
    pub(super) fn deliver(&self) {
        self.knocker.deliver();
        self.ring();
    }

    fn ring(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // It fails when the party is gone, or has so many unread that it will wake anyway.
        self.wire.iter().for_each(|wire| _ = send(wire, &[0; RECORD], flags));
    }
}

/// Why a party cannot be one here; for itself.
pub(super) fn unfit(settings: &Settings, hello: &Hello) -> Option<String> {
    let carried = matches!(settings.delivery, Delivery::Sockmap(_)) && !hello.delivery.contains(&Mode::Sockmap);
    let strict = settings.isolation == Isolation::Strict && !hello.isolation.contains(&Isolation::Strict);
    let what = match (carried, strict) {
        (true, _) => "delivery: sockmap",
        (_, true) => "isolation: strict",
        _ => return None,
    };
    Some(format!("this chain has nearpath.io/{what}, which this program's library cannot do"))
}

impl Seat {
    /// Makes a desk, and a socket where the mode asks for one. With it, the descriptors for the party, in order.
    pub(super) fn make(
        delivery: &Delivery,
        (key, party): (Key, Party),
        hello: &Hello,
        news: &mpsc::Sender<News>,
    ) -> io::Result<(Self, Vec<OwnedFd>)> {
        let never = || Spin::new(Duration::ZERO);
        if let Delivery::Sockmap(exchange) = delivery {
            let [theirs, ours] = exchange.seat(party)?;
            exchange.permit(party, 0, party)?; // its threads wake each other
            let desk = Desk::create(desk::Kind::None, never())?;
            let wire = NodesEnd::new(key, ours, news.clone());
            let descriptors = vec![desk.as_fd().try_clone_to_owned()?, theirs];
            return Ok((Self { key, desk, wire: Some(wire) }, descriptors));
        }
        let polls = matches!(delivery, Delivery::Poll) && hello.delivery.contains(&Mode::Poll);
        let desk = match hello.bell {
            _ if polls => Desk::create(desk::Kind::None, never()),
            Bell::Futex => Desk::create(desk::Kind::Futex, never()),
            Bell::Eventfd => Desk::create_polled(never()),
            Bell::None => Desk::create(desk::Kind::None, never()),
        }?;
        let seat = Self { key, desk, wire: None };
        let descriptors = seat.descriptors()?;
        Ok((seat, descriptors))
    }

    /// The desk as peers get it.
    pub(super) fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let event = self.desk.event().map(|event| event.try_clone_to_owned()).transpose()?;
        Ok([Some(self.desk.as_fd().try_clone_to_owned()?), event].into_iter().flatten().collect())
    }

    pub(super) fn doorbell(&self) -> Doorbell {
        Doorbell { knocker: self.desk.knocker(), wire: self.wire.as_ref().map(|wire| Arc::clone(&wire.socket)) }
    }
}

impl NodesEnd {
    fn new(key: Key, socket: OwnedFd, news: mpsc::Sender<News>) -> Self {
        let socket = Arc::new(socket);
        let audit = tokio::spawn(audit(key, Arc::clone(&socket), news)).abort_handle();
        Self { socket, audit }
    }
}

/// Reads what a party tried to send and may not, until it is gone.
async fn audit(key: Key, socket: Arc<OwnedFd>, news: mpsc::Sender<News>) -> io::Result<()> {
    let ready = readiness(socket.try_clone()?)?;
    let mut tried = vec![0; 64 * RECORD];
    loop {
        let read = || Ok(recv(&socket, tried.as_mut_slice(), RecvFlags::DONTWAIT)?.1);
        let bytes = ready.async_io(Interest::READABLE, read).await?;
        if bytes == 0 || news.send(News::Tried(key, tried[..bytes].to_vec())).await.is_err() {
            return Ok(());
        }
    }
}
