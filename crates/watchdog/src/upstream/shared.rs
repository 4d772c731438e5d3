//! Connections to the tenant's h2c server, each for as many calls as the server allows on one
//! (`SETTINGS_MAX_CONCURRENT_STREAMS`, RFC 9113 section 5.1.2). When all are full another one is opened, up to a limit.
//!
//! What the server allows comes with its first frame. Until then a connection carries the one call that it was opened for,
//! and nobody opens another.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_types::PlatformError;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::{Http2, Peer};

/// Most connections.
const MOST: usize = 32;
/// What a connection takes to be allowed until its server has said it: no stream is opened before.
pub(super) const UNKNOWN: usize = 0;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Shared {
    lines: Mutex<Vec<Line>>,
    /// The right to open a connection.
    turn: Semaphore,
}

impl Default for Shared {
    fn default() -> Self {
        Self { lines: Mutex::default(), turn: Semaphore::new(1) }
    }
}

/// One connection.
#[derive(Debug)]
struct Line {
    sender: Http2,
    load: Arc<Load>,
}

/// How many calls a connection carries, and how many it may.
#[derive(Debug, Default)]
pub(crate) struct Load {
    streams: AtomicUsize,
    allowed: AtomicUsize,
    changed: Notify,
}

/// A call's place on a connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct Stream(Arc<Load>);

/// A place, and the right to open connections if this one is so new that what it allows is not known.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub(super) sender: Http2,
    pub(super) stream: Stream,
    pub(super) turn: Option<SemaphorePermit<'a>>,
}

impl Load {
    /// Notes what the server allows now.
    pub(super) fn allow(&self, streams: usize) {
        if self.allowed.swap(streams, Ordering::Relaxed) != streams {
            self.changed.notify_waiters();
        }
    }

    /// Notes that the connection is over; whoever waits has nothing to wait for.
    pub(super) fn end(&self) {
        self.allow(1);
    }

    /// Returns when it is known what the server allows.
    pub(super) async fn settled(&self) {
        let changed = self.changed.notified();
        if self.allowed.load(Ordering::Relaxed) == UNKNOWN {
            changed.await;
        }
    }

    /// A place, if one is free. Only called by who holds the lines' lock; places are given back without it.
    fn enter(self: &Arc<Self>) -> Option<Stream> {
        let allowed = self.allowed.load(Ordering::Relaxed).max(1);
        if self.streams.load(Ordering::Relaxed) >= allowed {
            return None;
        }
        self.streams.fetch_add(1, Ordering::Relaxed);
        Some(Stream(Arc::clone(self)))
    }
}

impl Stream {
    pub(super) fn load(&self) -> &Load {
        &self.0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// A place on a connection that is there: on the oldest, so that the others fall idle.
    pub(super) fn take(&self) -> Option<Taken<'_>> {
        let free = |line: &Line| Some((line.sender.clone(), line.load.enter()?));
        let (sender, stream) = self.open_lines().iter().find_map(free)?;
        Some(Taken { sender, stream, turn: None })
    }

    /// A place on a new connection, made by `dial`, or on one where there is a place by the time that it is our turn.
    ///
    /// # Errors
    /// `overload` when there are as many connections as there may be; `connect_failed` when `dial` fails.
    pub(super) async fn open(
        &self,
        peer: Peer,
        dial: impl Future<Output = io::Result<(Http2, Arc<Load>)>>,
    ) -> Result<Taken<'_>, PlatformError> {
        let turn = self.turn.acquire().await.expect("this semaphore is never closed");
        if let Some(taken) = self.take() {
            return Ok(taken);
        }
        if self.open_lines().len() >= MOST {
            return Err(peer.full(MOST));
        }
        let (sender, load) = dial.await.map_err(|fault| peer.unreachable(&fault))?;
        let mut lines = self.open_lines();
        let stream = load.enter().expect("a new connection carries nothing");
        lines.push(Line { sender: sender.clone(), load });
        Ok(Taken { sender, stream, turn: Some(turn) })
    }

    fn open_lines(&self) -> MutexGuard<'_, Vec<Line>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|line| !line.sender.is_closed());
        lines
    }
}

/// An answer's body with its place.
#[derive(Debug)]
pub(super) struct Carried {
    body: Incoming,
    _stream: Arc<Stream>,
}

impl Carried {
    pub(super) fn new(body: Incoming, stream: Arc<Stream>) -> Self {
        Self { body, _stream: stream }
    }
}

impl Body for Carried {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Enter,
        Leave,
        Allow(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![4 => Just(Step::Enter), 3 => Just(Step::Leave), 1 => (0usize..6).prop_map(Step::Allow)]
    }

    proptest! {
        #[test]
        fn as_many_places_as_the_server_allows(steps in prop::collection::vec(step(), 0..100)) {
            let load = Arc::<Load>::default();
            let (mut inside, mut allowed) = (Vec::new(), UNKNOWN);
            for step in steps {
                match step {
                    Step::Enter => {
                        let entered = load.enter();
                        prop_assert_eq!(entered.is_some(), inside.len() < allowed.max(1));
                        inside.extend(entered);
                    }
                    Step::Leave => drop(inside.pop()),
                    Step::Allow(streams) => {
                        load.allow(streams);
                        allowed = streams;
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_limit_is_told_it_or_the_end() {
        for tell in [|load: &Load| load.allow(7), Load::end] {
            let load = Arc::<Load>::default();
            let waiter = tokio::spawn({
                let load = Arc::clone(&load);
                async move { load.settled().await }
            });
            tokio::task::yield_now().await;
            tell(&load);
            nearpath_testkit::within(waiter).await.unwrap();
            nearpath_testkit::within(load.settled()).await;
        }
    }
}
