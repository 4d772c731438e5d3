//! Cancellation. A client gets a key of the node's own; a CancelRequest with it goes on to the backend that serves the client at that moment, and nobody
//! else gets that backend before the server has dealt with it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::backend::Backend;

/// Longest wait for the server to take one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Process and secret, as the protocol calls them.
pub(super) type SecretKey = (i32, i32);

/// Cancellations on their way to one backend.
#[derive(Debug, Default)]
pub(super) struct Cancels {
    under_way: Cell<u32>,
    over: Notify,
}

impl Cancels {
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.get() > 0
    }

    pub(super) async fn are_over(&self) {
        while self.are_under_way() {
            self.over.notified().await;
        }
    }
}

/// Whom each client's key means at the moment.
#[derive(Debug, Default)]
pub(super) struct Seats {
    taken: RefCell<HashMap<SecretKey, Option<Served>>>,
}

#[derive(Debug)]
struct Served {
    at: SocketAddr,
    key: SecretKey,
    cancels: Rc<Cancels>,
}

/// One client's; its key means nothing any more when this is dropped.
pub(super) struct Seat {
    seats: Rc<Seats>,
    pub(super) key: SecretKey,
}

impl Seats {
    pub(super) fn take(self: &Rc<Self>) -> Seat {
        let mut taken = self.taken.borrow_mut();
        let key = loop {
            let key = random_key();
            if !taken.contains_key(&key) {
                break key;
            }
        };
        taken.insert(key, None);
        Seat { seats: self.clone(), key }
    }

    /// Passes a request on, if its client is being served. Nobody is told what came of it: so does the protocol.
    pub(super) async fn cancel(&self, key: SecretKey) {
        let served = self
            .taken
            .borrow()
            .get(&key)
            .and_then(|served| served.as_ref().map(|served| (served.at, served.key, served.cancels.clone())));
        // One that is on its way already does for both.
        let Some((at, key, cancels)) = served.filter(|(_, _, cancels)| !cancels.are_under_way()) else { return };
        let under_way = UnderWay::begin(cancels);
        send(at, key).await;
        drop(under_way);
    }
}

impl Seat {
    /// The client is served by `backend` from now on, or by none.
    pub(super) fn serves(&self, backend: Option<&Backend>) {
        let served = backend.map(|it| Served { at: it.at, key: it.facts.key, cancels: it.cancels.clone() });
        self.seats.taken.borrow_mut().insert(self.key, served);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.borrow_mut().remove(&self.key);
    }
}

struct UnderWay(Rc<Cancels>);

impl UnderWay {
    fn begin(cancels: Rc<Cancels>) -> Self {
        cancels.under_way.set(cancels.under_way.get() + 1);
        Self(cancels)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.over.notify_waiters();
    }
}

/// Sends a CancelRequest, and waits for the server to close: by then it has signalled the backend.
pub(super) async fn send(at: SocketAddr, (pid, secret): SecretKey) {
    let mut request = BytesMut::new();
    frontend::cancel_request(pid, secret, &mut request);
    let sent = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(&request).await?;
        stream.read(&mut [0]).await
    };
    match tokio::time::timeout(PATIENCE, sent).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%at, %error, "a cancellation did not get through"),
        Err(_) => tracing::debug!(%at, "a cancellation was not answered"),
    }
}

/// Not to be guessed by another client.
fn random_key() -> SecretKey {
    let mut bytes = [0_u8; 8];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes).expect("the kernel has random bytes");
    let [a, b, c, d, e, f, g, h] = bytes;
    // Process ids are positive; some drivers count on it.
    (i32::from_be_bytes([a & 0x7f, b, c, d]), i32::from_be_bytes([e, f, g, h]))
}
