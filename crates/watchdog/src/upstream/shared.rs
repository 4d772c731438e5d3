//! Connections to the tenant's h2c server, each for as many calls as the server allows on one
//! (`SETTINGS_MAX_CONCURRENT_STREAMS`, RFC 9113 section 5.1.2). When all are full another one is opened, up to a limit.
//!
//! What the server allows comes with its first frame. Until then a connection carries the one call that it was opened for,
//! and nobody opens another.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_types::PlatformError;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::stream_load::{Load, Stream};
use super::{Http2, Peer};

/// Most connections.
const MOST: usize = 32;

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

/// A place, and the right to open connections if this one is so new that what it allows is not known.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub(super) sender: Http2,
    pub(super) stream: Stream,
    pub(super) turn: Option<SemaphorePermit<'a>>,
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
