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

use super::backend::PostgresBackend;

/// Longest wait for the server to take one.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Process and secret, as the protocol calls them.
pub(super) type CancelKey = (i32, i32);

/// Cancellations on their way to one backend.
#[derive(Debug, Default)]
pub(super) struct CancelsInFlight {
    in_flight: Cell<u32>,
    finished: Notify,
}

impl CancelsInFlight {
    pub(super) fn are_in_flight(&self) -> bool {
        self.in_flight.get() > 0
    }

    pub(super) async fn wait_finished(&self) {
        while self.are_in_flight() {
            self.finished.notified().await;
        }
    }
}

/// Whom each client's key means at the moment.
#[derive(Debug, Default)]
pub(super) struct CancelKeys {
    targets: RefCell<HashMap<CancelKey, Option<CancelTarget>>>,
}

#[derive(Debug)]
struct CancelTarget {
    addr: SocketAddr,
    key: CancelKey,
    cancels_in_flight: Rc<CancelsInFlight>,
}

/// One client's; its key means nothing any more when this is dropped.
pub(super) struct CancelRegistration {
    keys: Rc<CancelKeys>,
    pub(super) key: CancelKey,
}

impl CancelKeys {
    pub(super) fn register(self: &Rc<Self>) -> CancelRegistration {
        let mut taken = self.targets.borrow_mut();
        let key = loop {
            let key = random_key();
            if !taken.contains_key(&key) {
                break key;
            }
        };
        taken.insert(key, None);
        CancelRegistration {
            keys: self.clone(),
            key,
        }
    }

    /// Passes a request on, if its client is being served. Nobody is told what came of it: so does the protocol.
    pub(super) async fn cancel(&self, key: CancelKey) {
        let served = self.targets.borrow().get(&key).and_then(|served| {
            served
                .as_ref()
                .map(|served| (served.addr, served.key, served.cancels_in_flight.clone()))
        });
        // One that is on its way already does for both.
        let Some((at, key, cancels)) = served.filter(|(_, _, cancels)| !cancels.are_in_flight())
        else {
            return;
        };
        let under_way = InFlightGuard::begin(cancels);
        send_cancel(at, key).await;
        drop(under_way);
    }
}

impl CancelRegistration {
    /// The client is served by `backend` from now on, or by none.
    pub(super) fn set_backend(&self, backend: Option<&PostgresBackend>) {
        let served = backend.map(|it| CancelTarget {
            addr: it.addr,
            key: it.state.key,
            cancels_in_flight: it.cancels_in_flight.clone(),
        });
        self.keys.targets.borrow_mut().insert(self.key, served);
    }
}

impl Drop for CancelRegistration {
    fn drop(&mut self) {
        self.keys.targets.borrow_mut().remove(&self.key);
    }
}

struct InFlightGuard(Rc<CancelsInFlight>);

impl InFlightGuard {
    fn begin(cancels: Rc<CancelsInFlight>) -> Self {
        cancels.in_flight.set(cancels.in_flight.get() + 1);
        Self(cancels)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.finished.notify_waiters();
    }
}

/// Sends a CancelRequest, and waits for the server to close: by then it has signalled the backend.
pub(super) async fn send_cancel(at: SocketAddr, (pid, secret): CancelKey) {
    let mut request = BytesMut::new();
    frontend::cancel_request(pid, secret, &mut request);
    let sent = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(&request).await?;
        stream.read(&mut [0]).await
    };
    match tokio::time::timeout(CANCEL_TIMEOUT, sent).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%at, %error, "a cancellation did not get through"),
        Err(_) => tracing::debug!(%at, "a cancellation was not answered"),
    }
}

/// Not to be guessed by another client.
fn random_key() -> CancelKey {
    let mut bytes = [0_u8; 8];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes).expect("the kernel has random bytes");
    let [a, b, c, d, e, f, g, h] = bytes;
    // Process ids are positive; some drivers count on it.
    (
        i32::from_be_bytes([a & 0x7f, b, c, d]),
        i32::from_be_bytes([e, f, g, h]),
    )
}
