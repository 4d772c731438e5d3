//! Connections of one TLS mode, by instance.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::client::conn::{http1, http2};
use nearpath_wire::client::InstanceConnectError;
use tokio::sync::Semaphore;

use super::{HttpConnection, TlsInfo};
use crate::function::DialTarget;
use crate::request::RequestUpload;

/// Maximum requests on one HTTP/2 connection before another is opened.
const MAX_STREAMS: u32 = 100;
/// Maximum idle connections per instance and thread.
const MAX_IDLE_CONNECTIONS: usize = 1024;

/// State of a shared connection, for all its requests.
struct SharedChannel {
    tls: Option<Rc<TlsInfo>>,
    stream_count: Cell<u32>,
}

/// Guard that counts one request on a shared connection.
pub(crate) struct SharedStream(Rc<SharedChannel>);

impl SharedStream {
    fn new(channel: &Rc<SharedChannel>) -> Self {
        channel.stream_count.set(channel.stream_count.get() + 1);
        Self(channel.clone())
    }

    pub(super) fn tls_info(&self) -> Option<&TlsInfo> {
        self.0.tls.as_deref()
    }
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        self.0.stream_count.set(self.0.stream_count.get() - 1);
    }
}

struct IdleConnection {
    sender: http1::SendRequest<RequestUpload>,
    tls: Option<Rc<TlsInfo>>,
    idle_since: u32,
}

struct SharedConnection {
    sender: http2::SendRequest<RequestUpload>,
    channel: Rc<SharedChannel>,
}

impl SharedConnection {
    fn open_stream(&self) -> HttpConnection {
        HttpConnection::Http2 {
            sender: self.sender.clone(),
            stream: SharedStream::new(&self.channel),
        }
    }
}

struct EndpointPool {
    target: Arc<DialTarget>,
    idle: Vec<IdleConnection>,
    shared: Vec<SharedConnection>,
    dialing: Rc<Semaphore>,
}

impl EndpointPool {
    fn new(target: &Arc<DialTarget>) -> Self {
        let dialing = Rc::new(Semaphore::new(1));
        Self {
            target: target.clone(),
            idle: Vec::new(),
            shared: Vec::new(),
            dialing,
        }
    }

    fn find_shared(&self) -> Option<HttpConnection> {
        let has_free_stream = |one: &&SharedConnection| {
            one.channel.stream_count.get() < MAX_STREAMS && !one.sender.is_closed()
        };
        self.shared
            .iter()
            .find(has_free_stream)
            .map(SharedConnection::open_stream)
    }
}

/// Connections of one TLS mode, by instance.
#[derive(Default)]
pub(super) struct ConnectionSet(RefCell<HashMap<u64, EndpointPool>>);

impl ConnectionSet {
    pub(super) fn take_connection(&self, target: &DialTarget, h2: bool) -> Option<HttpConnection> {
        let mut pools = self.0.borrow_mut();
        let pool = pools.get_mut(&target.serial)?;
        if h2 {
            return pool.find_shared();
        }
        // The last one used: the others can time out when the load falls.
        let last = pool.idle.iter().rposition(|idle| idle.sender.is_ready())?;
        let IdleConnection { sender, tls, .. } = pool.idle.remove(last);
        Some(HttpConnection::Http1 { sender, tls })
    }

    /// Returns a shared connection. Of several concurrent callers, one opens it.
    pub(super) async fn share_connection<F>(
        &self,
        target: &Arc<DialTarget>,
        dial: impl FnOnce() -> F,
    ) -> Result<HttpConnection, InstanceConnectError>
    where
        F: Future<
            Output = Result<
                (http2::SendRequest<RequestUpload>, Option<Rc<TlsInfo>>),
                InstanceConnectError,
            >,
        >,
    {
        let dialing = self.with_pool(target, |pool| pool.dialing.clone());
        let _turn = dialing
            .acquire()
            .await
            .expect("this semaphore is never closed");
        // Another caller may have opened one while this one waited for its turn.
        if let Some(connection) = self.with_pool(target, |pool| pool.find_shared()) {
            return Ok(connection);
        }
        let (sender, tls) = dial().await?;
        let shared = SharedConnection {
            sender,
            channel: Rc::new(SharedChannel {
                tls,
                stream_count: Cell::new(0),
            }),
        };
        let connection = shared.open_stream();
        self.with_pool(target, |pool| pool.shared.push(shared));
        Ok(connection)
    }

    pub(super) fn put_idle(
        &self,
        target: &Arc<DialTarget>,
        sender: http1::SendRequest<RequestUpload>,
        tls: Option<Rc<TlsInfo>>,
        idle_since: u32,
    ) {
        self.with_pool(target, |pool| {
            if pool.idle.len() < MAX_IDLE_CONNECTIONS {
                pool.idle.push(IdleConnection {
                    sender,
                    tls,
                    idle_since,
                });
            }
        });
    }

    pub(super) fn sweep_idle(&self, oldest_tick: u32, now: SystemTime) {
        // Checked here and not on use: an expired certificate is at most one sweep late.
        let is_valid = |tls: &Option<Rc<TlsInfo>>| {
            tls.as_ref()
                .is_none_or(|tls| !tls.peer.remaining_validity(now).is_zero())
        };
        self.0.borrow_mut().retain(|_, pool| {
            if pool.target.is_withdrawn() {
                return false; // requests in flight hold their own connections
            }
            pool.idle.retain(|idle| {
                !idle.sender.is_closed() && idle.idle_since >= oldest_tick && is_valid(&idle.tls)
            });
            pool.shared
                .retain(|one| !one.sender.is_closed() && is_valid(&one.channel.tls));
            !pool.idle.is_empty()
                || !pool.shared.is_empty()
                || pool.dialing.available_permits() == 0
        });
    }

    /// Drops all connections. Requests in flight hold their own and go on.
    pub(super) fn drop_all(&self) {
        for pool in self.0.borrow_mut().values_mut() {
            pool.idle.clear();
            pool.shared.clear();
        }
    }

    fn with_pool<T>(&self, target: &Arc<DialTarget>, f: impl FnOnce(&mut EndpointPool) -> T) -> T {
        f(self
            .0
            .borrow_mut()
            .entry(target.serial)
            .or_insert_with(|| EndpointPool::new(target)))
    }
}
