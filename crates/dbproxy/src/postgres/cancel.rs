//! Cancellation of statements.
//!
//! A client gets a key of the node's own. A CancelRequest with this key goes to the backend that
//! serves the client at that moment. No other client gets the backend before the server has handled
//! the request.

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

/// Time for the server to accept a request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Process id and secret, as the protocol calls them.
pub(super) type CancelKey = (i32, i32);

/// Cancellations in flight to one backend.
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
        // Checked again after each wakeup: another request may have begun meanwhile.
        while self.are_in_flight() {
            self.finished.notified().await;
        }
    }
}

/// The backend behind each client's key.
#[derive(Debug, Default)]
pub(super) struct CancelKeys {
    targets: RefCell<HashMap<CancelKey, Option<CancelTarget>>>,
}

/// A backend as the target of cancellations.
#[derive(Debug)]
pub(super) struct CancelTarget {
    pub(super) addr: SocketAddr,
    pub(super) key: CancelKey,
    pub(super) cancels_in_flight: Rc<CancelsInFlight>,
}

/// Registration of one client's key, which ends when this is dropped.
pub(super) struct CancelRegistration {
    keys: Rc<CancelKeys>,
    pub(super) key: CancelKey,
}

impl CancelKeys {
    pub(super) fn register(self: &Rc<Self>) -> CancelRegistration {
        // A taken key is drawn again. With 63 random bits this practically never happens.
        let mut targets = self.targets.borrow_mut();
        let key = loop {
            let key = random_key();
            if !targets.contains_key(&key) {
                break key;
            }
        };
        targets.insert(key, None);
        CancelRegistration {
            keys: self.clone(),
            key,
        }
    }

    /// Forwards a request if its client is being served. The result is not reported: the protocol
    /// defines no reply.
    pub(super) async fn cancel(&self, key: CancelKey) {
        // The borrow ends before the await: clients attach and detach meanwhile.
        let target = self.targets.borrow().get(&key).and_then(|target| {
            target
                .as_ref()
                .map(|target| (target.addr, target.key, target.cancels_in_flight.clone()))
        });
        // A request in flight does for both.
        let Some((addr, key, cancels)) = target.filter(|(_, _, cancels)| !cancels.are_in_flight())
        else {
            return;
        };
        let guard = InFlightGuard::begin(cancels);
        send_cancel(addr, key).await;
        drop(guard);
    }
}

impl CancelRegistration {
    /// Sets the backend that serves the client, if any.
    pub(super) fn set_target(&self, target: Option<CancelTarget>) {
        self.keys.targets.borrow_mut().insert(self.key, target);
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
        // All waiters wake up: each checks the counter itself.
        self.0.finished.notify_waiters();
    }
}

/// Sends a CancelRequest and waits for the server to close the connection: by then it has signalled
/// the backend.
pub(super) async fn send_cancel(addr: SocketAddr, (pid, secret): CancelKey) {
    let mut request = BytesMut::new();
    frontend::cancel_request(pid, secret, &mut request);
    let sent = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(&request).await?;
        // The server sends nothing back; the end of file is the answer.
        stream.read(&mut [0]).await
    };
    match tokio::time::timeout(CANCEL_TIMEOUT, sent).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%addr, %error, "PostgreSQL adapter: cancellation failed"),
        Err(_) => tracing::debug!(%addr, "PostgreSQL adapter: cancellation timed out"),
    }
}

/// Returns a key that other clients cannot guess.
fn random_key() -> CancelKey {
    let mut bytes = [0_u8; 8];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes).expect("the kernel has random bytes");
    let [a, b, c, d, e, f, g, h] = bytes;
    // Process ids are positive, and some drivers rely on it.
    (
        i32::from_be_bytes([a & 0x7f, b, c, d]),
        i32::from_be_bytes([e, f, g, h]),
    )
}
