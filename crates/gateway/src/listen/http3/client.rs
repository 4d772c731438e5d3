//! Client of an HTTP/3 connection, as its requests see it.

use std::cell::Cell;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::context::WorkerContext;
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ConnState;
use crate::listen::stream_resets::ResetBudget;
use crate::request::{ListenerZone, PeerInfo};

/// Context of an HTTP/3 connection for its requests.
///
/// The client keeps the address that the handshake proved, even after a migration (RFC 9000
/// section 9). QUIC accepts requests from a new address before validating it, so a later address
/// could be forged.
pub(super) struct Http3Client {
    pub(super) worker: Rc<WorkerContext>,
    pub(super) connection: Rc<ClientConnection>,
}

impl Http3Client {
    pub(super) fn new(
        worker: &Rc<WorkerContext>,
        state: &Arc<ConnState>,
        addr: SocketAddr,
        is_on_reserve: bool,
    ) -> Self {
        let reset_budget = ResetBudget::new(worker.current_tick());
        let mut peer = PeerInfo::http_client(ListenerZone::Public, true, addr);
        peer.is_on_reserve = is_on_reserve;
        let connection = ClientConnection {
            worker: worker.clone(),
            peer: Rc::new(peer),
            state: state.clone(),
            alt_svc: None,
            reset_budget: reset_budget.into(),
            service: RefCell::default(),
        };
        Self {
            worker: worker.clone(),
            connection: Rc::new(connection),
        }
    }
}

/// Open requests of a connection.
#[derive(Default)]
pub(super) struct OpenRequests {
    pub(super) count: Cell<usize>,
    pub(super) request_ended: Notify,
}

/// Guard that counts one open request.
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
