//! Connections of one kind, for each instance that some lead to.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::client::conn::{http1, http2};
use nearpath_wire::client::ConnectError;
use tokio::sync::Semaphore;

use super::{Line, Tls};
use crate::function::Endpoint;
use crate::request::Upload;

/// Requests on one HTTP/2 connection before another is opened.
const STREAMS: u32 = 100;
/// Idle connections kept for one instance and thread.
const MAX_IDLE: usize = 1024;

/// What requests on a shared connection share besides.
struct Channel {
    tls: Option<Rc<Tls>>,
    streams: Cell<u32>,
}

/// One request on a shared connection.
pub(crate) struct Stream(Rc<Channel>);

impl Stream {
    fn new(channel: &Rc<Channel>) -> Self {
        channel.streams.set(channel.streams.get() + 1);
        Self(channel.clone())
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_deref()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

struct Idle {
    sender: http1::SendRequest<Upload>,
    tls: Option<Rc<Tls>>,
    since: u32,
}

struct Shared {
    sender: http2::SendRequest<Upload>,
    channel: Rc<Channel>,
}

impl Shared {
    fn line(&self) -> Line {
        Line::Http2 { sender: self.sender.clone(), stream: Stream::new(&self.channel) }
    }
}

struct Pool {
    endpoint: Arc<Endpoint>,
    idle: Vec<Idle>,
    shared: Vec<Shared>,
    dialing: Rc<Semaphore>,
}

impl Pool {
    fn new(endpoint: &Arc<Endpoint>) -> Self {
        let dialing = Rc::new(Semaphore::new(1));
        Self { endpoint: endpoint.clone(), idle: Vec::new(), shared: Vec::new(), dialing }
    }

    fn shared_line(&self) -> Option<Line> {
        let free = |one: &&Shared| one.channel.streams.get() < STREAMS && !one.sender.is_closed();
        self.shared.iter().find(free).map(Shared::line)
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Shelf(RefCell<HashMap<u64, Pool>>);

impl Shelf {
    pub(super) fn take(&self, endpoint: &Endpoint, h2: bool) -> Option<Line> {
        let mut pools = self.0.borrow_mut();
        let pool = pools.get_mut(&endpoint.serial)?;
        if h2 {
            return pool.shared_line();
        }
        let last = pool.idle.iter().rposition(|idle| idle.sender.is_ready())?;
        let Idle { sender, tls, .. } = pool.idle.remove(last);
        Some(Line::Http1 { sender, tls })
    }

    /// Of many who need a shared connection at the same time one opens it.
    pub(super) async fn share<F>(
        &self,
        endpoint: &Arc<Endpoint>,
        dial: impl FnOnce() -> F,
    ) -> Result<Line, ConnectError>
    where
        F: Future<Output = Result<(http2::SendRequest<Upload>, Option<Rc<Tls>>), ConnectError>>,
    {
        let dialing = self.with(endpoint, |pool| pool.dialing.clone());
        let _turn = dialing.acquire().await.expect("this semaphore is never closed");
        if let Some(line) = self.with(endpoint, |pool| pool.shared_line()) {
            return Ok(line);
        }
        let (sender, tls) = dial().await?;
        let shared = Shared { sender, channel: Rc::new(Channel { tls, streams: Cell::new(0) }) };
        let line = shared.line();
        self.with(endpoint, |pool| pool.shared.push(shared));
        Ok(line)
    }

    pub(super) fn put(
        &self,
        endpoint: &Arc<Endpoint>,
        sender: http1::SendRequest<Upload>,
        tls: Option<Rc<Tls>>,
        since: u32,
    ) {
        self.with(endpoint, |pool| {
            if pool.idle.len() < MAX_IDLE {
                pool.idle.push(Idle { sender, tls, since });
            }
        });
    }

    pub(super) fn sweep(&self, oldest: u32, now: SystemTime) {
        let good = |tls: &Option<Rc<Tls>>| tls.as_ref().is_none_or(|tls| !tls.peer.left(now).is_zero());
        self.0.borrow_mut().retain(|_, pool| {
            if pool.endpoint.load().is_none() {
                return false; // requests in flight hold their own lines
            }
            pool.idle.retain(|idle| !idle.sender.is_closed() && idle.since >= oldest && good(&idle.tls));
            pool.shared.retain(|one| !one.sender.is_closed() && good(&one.channel.tls));
            !pool.idle.is_empty() || !pool.shared.is_empty() || pool.dialing.available_permits() == 0
        });
    }

    /// Requests in flight go on.
    pub(super) fn clear(&self) {
        for pool in self.0.borrow_mut().values_mut() {
            pool.idle.clear();
            pool.shared.clear();
        }
    }

    fn with<T>(&self, endpoint: &Arc<Endpoint>, f: impl FnOnce(&mut Pool) -> T) -> T {
        f(self.0.borrow_mut().entry(endpoint.serial).or_insert_with(|| Pool::new(endpoint)))
    }
}
