//! One client, as its requests see it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::context::WorkerContext;
use crate::listen::client_requests::Visit;
use crate::listen::conn_state::Life;
use crate::listen::stream_resets::Resets;
use crate::request::{Peer, Zone};

/// A connection as its requests see it.
///
/// Its client is known by the address that the handshake proved, also when it has moved (RFC 9000 section 9): QUIC takes a request from
/// any new address at once and asks only then whether somebody is there, so everybody could call in anybody's name.
pub(super) struct Client {
    pub(super) lane: Rc<WorkerContext>,
    pub(super) visit: Rc<Visit>,
}

impl Client {
    pub(super) fn new(lane: &Rc<WorkerContext>, life: &Arc<Life>, addr: SocketAddr) -> Self {
        let (peer, resets) = (Rc::new(Peer::http_client(Zone::Public, true, addr)), Resets::new(lane.now()));
        let visit = Visit { lane: lane.clone(), peer, life: life.clone(), alt_svc: None, resets: resets.into() };
        Self { lane: lane.clone(), visit: Rc::new(visit) }
    }
}

/// Requests that have not ended.
#[derive(Default)]
pub(super) struct Open {
    pub(super) requests: Cell<usize>,
    pub(super) fewer: Notify,
}

/// One of them.
pub(super) struct One(Rc<Open>);

impl One {
    pub(super) fn of(open: &Rc<Open>) -> Self {
        open.requests.set(open.requests.get() + 1);
        Self(open.clone())
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
        self.0.fewer.notify_one();
    }
}
