//! Connections to instances, kept between requests. One set a thread: no lock, and the task that drives a connection
//! wakes on the core that waits for it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use nearpath_wire::client::{self, ConnectError};
use tokio::sync::Semaphore;

use crate::call::Upload;
use crate::route::Endpoint;

/// Requests on one h2c connection before another is opened.
const STREAMS: u32 = 100;
/// Idle connections kept for one instance and thread.
const MAX_IDLE: usize = 1024;

/// A connection to one instance, held for one request.
pub(crate) enum Line {
    /// Nobody else uses it.
    Http1(http1::SendRequest<Upload>),
    /// Others may use it as well.
    Http2 { sender: http2::SendRequest<Upload>, _stream: Stream },
}

/// One request on a shared connection.
pub(crate) struct Stream(Rc<Cell<u32>>);

impl Stream {
    fn new(count: &Rc<Cell<u32>>) -> Self {
        count.set(count.get() + 1);
        Self(count.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Line {
    /// Sends a request. An error that holds the request says that not a byte of it was sent. Not an `async fn`: the request
    /// goes to the connection's task at once and is not kept in the future.
    pub(crate) fn send(
        &mut self,
        request: Request<Upload>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>> + use<> {
        match self {
            Self::Http1(sender) => Either::Left(sender.try_send_request(request)),
            Self::Http2 { sender, .. } => Either::Right(sender.try_send_request(request)),
        }
    }
}

struct Idle {
    sender: http1::SendRequest<Upload>,
    since: u32,
}

struct Shared {
    sender: http2::SendRequest<Upload>,
    streams: Rc<Cell<u32>>,
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
        let free = |one: &&Shared| one.streams.get() < STREAMS && !one.sender.is_closed();
        let one = self.shared.iter().find(free)?;
        Some(Line::Http2 { sender: one.sender.clone(), _stream: Stream::new(&one.streams) })
    }
}

/// Every pool of one thread.
#[derive(Default)]
pub(crate) struct Pools(RefCell<HashMap<u64, Pool>>);

impl Pools {
    /// An idle connection to the instance, the one used last.
    pub(crate) fn take(&self, endpoint: &Endpoint, h2: bool) -> Option<Line> {
        let mut pools = self.0.borrow_mut();
        let pool = pools.get_mut(&endpoint.serial)?;
        if h2 {
            return pool.shared_line();
        }
        let last = pool.idle.iter().rposition(|idle| idle.sender.is_ready())?;
        Some(Line::Http1(pool.idle.remove(last).sender))
    }

    /// A new connection.
    ///
    /// # Errors
    /// When there is none within `limit`; nothing was sent.
    pub(crate) async fn open(&self, endpoint: &Arc<Endpoint>, h2: bool, limit: Duration) -> Result<Line, ConnectError> {
        match h2 {
            false => client::http1(endpoint.addr, limit).await.map(Line::Http1),
            true => self.open_shared(endpoint, limit).await,
        }
    }

    /// Of many who need a connection at the same time one opens it.
    async fn open_shared(&self, endpoint: &Arc<Endpoint>, limit: Duration) -> Result<Line, ConnectError> {
        let dialing = self.with(endpoint, |pool| pool.dialing.clone());
        let _turn = dialing.acquire().await.expect("this semaphore is never closed");
        if let Some(line) = self.with(endpoint, |pool| pool.shared_line()) {
            return Ok(line);
        }
        let sender = client::http2(endpoint.addr, limit).await?;
        let streams = Rc::new(Cell::new(0));
        let line = Line::Http2 { sender: sender.clone(), _stream: Stream::new(&streams) };
        self.with(endpoint, |pool| pool.shared.push(Shared { sender, streams }));
        Ok(line)
    }

    /// Keeps a connection whose request is over, unless the instance was withdrawn.
    pub(crate) fn put(&self, endpoint: &Arc<Endpoint>, line: Line, now: u32) {
        let Line::Http1(sender) = line else { return };
        if sender.is_closed() || endpoint.load().is_none() {
            return;
        }
        self.with(endpoint, |pool| {
            if pool.idle.len() < MAX_IDLE {
                pool.idle.push(Idle { sender, since: now });
            }
        });
    }

    /// Drops what is closed, idle since before `oldest`, or leads to a withdrawn instance.
    pub(crate) fn sweep(&self, oldest: u32) {
        self.0.borrow_mut().retain(|_, pool| {
            if pool.endpoint.load().is_none() {
                return false; // requests in flight hold their own lines
            }
            pool.idle.retain(|idle| !idle.sender.is_closed() && idle.since >= oldest);
            pool.shared.retain(|one| !one.sender.is_closed());
            !pool.idle.is_empty() || !pool.shared.is_empty() || pool.dialing.available_permits() == 0
        });
    }

    fn with<T>(&self, endpoint: &Arc<Endpoint>, f: impl FnOnce(&mut Pool) -> T) -> T {
        f(self.0.borrow_mut().entry(endpoint.serial).or_insert_with(|| Pool::new(endpoint)))
    }
}
