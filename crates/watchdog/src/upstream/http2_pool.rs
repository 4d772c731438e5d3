//! Connections to an h2c server, each with as many calls as the server allows
//! (`SETTINGS_MAX_CONCURRENT_STREAMS`, RFC 9113 section 5.1.2). When all are full, another is
//! opened, up to a limit.
//!
//! The server's limit comes with its first frame. Until then a connection carries only the call
//! that it was opened for, and no other is opened.

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

use super::stream_load::{StreamLoad, StreamPermit};
use super::{Http2Sender, UpstreamPeer};

/// Maximum number of connections to one server.
const MAX_CONNECTIONS: usize = 32;

/// Connections to an h2c server.
#[derive(Debug)]
pub(super) struct Http2Pool {
    connections: Mutex<Vec<Http2Connection>>,
    /// Permit to open a connection.
    open_permit: Semaphore,
}

impl Default for Http2Pool {
    fn default() -> Self {
        Self {
            connections: Mutex::default(),
            open_permit: Semaphore::new(1),
        }
    }
}

/// Connection with its load.
#[derive(Debug)]
struct Http2Connection {
    sender: Http2Sender,
    load: Arc<StreamLoad>,
}

/// Slot on a connection, with the permit to open others while the limit of a new one is unknown.
#[derive(Debug)]
pub(super) struct StreamSlot<'a> {
    pub(super) sender: Http2Sender,
    pub(super) stream: StreamPermit,
    pub(super) open_permit: Option<SemaphorePermit<'a>>,
}

impl Http2Pool {
    /// Takes a slot on an open connection: the oldest, so that the others become idle.
    pub(super) fn take_slot(&self) -> Option<StreamSlot<'_>> {
        let take_stream = |connection: &Http2Connection| {
            Some((
                connection.sender.clone(),
                connection.load.try_open_stream()?,
            ))
        };
        let (sender, stream) = self.open_connections().iter().find_map(take_stream)?;
        Some(StreamSlot {
            sender,
            stream,
            open_permit: None,
        })
    }

    /// Takes a slot on a new connection, made by `dial`, or on one that has become free meanwhile.
    ///
    /// # Errors
    /// `overload` when there are as many connections as there may be; `connect_failed` when `dial`
    /// fails.
    pub(super) async fn open_connection(
        &self,
        peer: UpstreamPeer,
        dial: impl Future<Output = io::Result<(Http2Sender, Arc<StreamLoad>)>>,
    ) -> Result<StreamSlot<'_>, PlatformError> {
        let open_permit = self
            .open_permit
            .acquire()
            .await
            .expect("this semaphore is never closed");
        // Checked again: the previous holder of the permit may have opened one.
        if let Some(slot) = self.take_slot() {
            return Ok(slot);
        }
        if self.open_connections().len() >= MAX_CONNECTIONS {
            return Err(peer.overload_error(MAX_CONNECTIONS));
        }
        let (sender, load) = dial.await.map_err(|fault| peer.connect_error(&fault))?;
        let mut connections = self.open_connections();
        let stream = load
            .try_open_stream()
            .expect("a new connection carries nothing");
        connections.push(Http2Connection {
            sender: sender.clone(),
            load,
        });
        Ok(StreamSlot {
            sender,
            stream,
            open_permit: Some(open_permit),
        })
    }

    /// Lets go of all connections; those with streams end with their last one.
    pub(super) fn close_idle(&self) {
        self.open_connections().clear();
    }

    fn open_connections(&self) -> MutexGuard<'_, Vec<Http2Connection>> {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Closed connections matter only when a slot is looked for, so no task has to watch them.
        connections.retain(|connection| !connection.sender.is_closed());
        connections
    }
}

/// Body of a response with its slot.
#[derive(Debug)]
pub(super) struct Http2Body {
    body: Incoming,
    _stream: Arc<StreamPermit>,
}

impl Http2Body {
    pub(super) fn new(body: Incoming, stream: Arc<StreamPermit>) -> Self {
        Self {
            body,
            _stream: stream,
        }
    }
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
