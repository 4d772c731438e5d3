//! One client, as its requests see it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::context::WorkerContext;
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ConnState;
use crate::listen::stream_resets::ResetBudget;
use crate::request::{ListenerZone, PeerInfo};

/// A connection as its requests see it.
///
/// Its client is known by the address that the handshake proved, also when it has moved (RFC 9000 section 9): QUIC takes a request from
/// any new address at once and asks only then whether somebody is there, so everybody could call in anybody's name.
pub(super) struct Http3Client {
    pub(super) worker: Rc<WorkerContext>,
    pub(super) connection: Rc<ClientConnection>,
}

impl Http3Client {
    pub(super) fn new(
        worker: &Rc<WorkerContext>,
        state: &Arc<ConnState>,
        addr: SocketAddr,
    ) -> Self {
        let (peer, resets) = (
            Rc::new(PeerInfo::http_client(ListenerZone::Public, true, addr)),
            ResetBudget::new(worker.current_tick()),
        );
        let connection = ClientConnection {
            worker: worker.clone(),
            peer,
            state: state.clone(),
            alt_svc: None,
            reset_budget: resets.into(),
        };
        Self {
            worker: worker.clone(),
            connection: Rc::new(connection),
        }
    }
}

/// Requests that have not ended.
#[derive(Default)]
pub(super) struct OpenRequests {
    pub(super) count: Cell<usize>,
    pub(super) request_ended: Notify,
}

/// One of them.
pub(super) struct OpenRequest(Rc<OpenRequests>);

impl OpenRequest {
    pub(super) fn begin(open: &Rc<OpenRequests>) -> Self {
        open.count.set(open.count.get() + 1);
        Self(open.clone())
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.request_ended.notify_one();
    }
}
