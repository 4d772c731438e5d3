//! Response bodies on their way to the client.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

use super::backend::HttpBackend;
use super::body_copy::BodyCopy;
use super::request_body::{ResponseEndGuard, count_bytes};
use super::session::HttpSession;
use nearpath_connpool::idle::UsedConnection;

/// Body of a response that goes to the client.
pub(super) enum HttpResponseBody {
    /// A body from the destination. Its backend returns to the pool after the last frame; dropped
    /// earlier, the backend is closed.
    Body {
        body: Incoming,
        session: Rc<HttpSession>,
        backend: Option<UsedConnection<HttpBackend>>,
        response_end: Option<ResponseEndGuard>,
        body_copy: Option<BodyCopy>,
    },
    /// A body that the adapter made or stored itself.
    Local(Full<Bytes>),
}

impl HttpResponseBody {
    /// Creates the body of a response that came over `backend`.
    pub(super) fn new(
        body: Incoming,
        session: Rc<HttpSession>,
        backend: UsedConnection<HttpBackend>,
        response_end: Option<ResponseEndGuard>,
        body_copy: Option<BodyCopy>,
    ) -> Self {
        let mut new = Self::Body {
            body,
            session,
            backend: Some(backend),
            response_end,
            body_copy,
        };
        // A response without a body has no frame that would release the backend.
        new.release_if_ended(false);
        new
    }

    /// Releases the backend when nothing more comes, and completes the cached copy.
    fn release_if_ended(&mut self, ended: bool) {
        let Self::Body {
            body,
            session,
            backend,
            response_end,
            body_copy,
        } = self
        else {
            return;
        };
        if (ended || body.is_end_stream())
            && let Some(backend) = backend.take()
        {
            // The guard is dropped first: it ends a request body that the destination never asked
            // for.
            drop(response_end.take());
            body_copy.take().into_iter().for_each(BodyCopy::finish);
            tokio::task::spawn_local(return_backend(session.clone(), backend));
        }
    }
}

/// Returns a backend to the pool after its request has been written in full.
async fn return_backend(session: Rc<HttpSession>, mut backend: UsedConnection<HttpBackend>) {
    // The response may end before the request does. `ready` fails then if hyper closes the
    // connection instead of finishing it.
    if backend.connection.sender.ready().await.is_ok() {
        session.release_backend(backend);
    }
}

impl Body for HttpResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (body, session, body_copy) = match &mut *self {
            Self::Local(full) => {
                return Pin::new(full)
                    .poll_frame(cx)
                    .map_err(|never| match never {});
            }
            Self::Body {
                body,
                session,
                body_copy,
                ..
            } => (body, session, body_copy),
        };
        let frame = ready!(Pin::new(body).poll_frame(cx))
            .transpose()
            .map_err(io::Error::other)?;
        count_bytes(
            &session.context.upstream.counters.received_bytes,
            frame.as_ref(),
        );
        if let Some(frame) = &frame {
            *body_copy = body_copy
                .take()
                .and_then(|body_copy| body_copy.push_frame(frame));
        }
        // hyper does not poll a body again after its trailers.
        self.release_if_ended(frame.as_ref().is_none_or(Frame::is_trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Body { body, .. } => body.is_end_stream(),
            Self::Local(full) => full.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Body { body, .. } => body.size_hint(),
            Self::Local(full) => full.size_hint(),
        }
    }
}
