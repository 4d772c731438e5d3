//! The answer to the call whose handler runs: whole when the handler returns, or piece by piece while it runs.

use bytes::Bytes;
use futures_util::stream;
use nearpath_domain::IncomingCall;
use nearpath_domain::endpoint::BodyUnwanted;
use nearpath_domain::endpoint::blocking::{BlockingEndpoint, OpenBody};
use tokio::sync::{mpsc, oneshot};

use crate::body_stream::BodyStream;
use crate::handler_response::{HandlerResponse, StreamingResponse};
use crate::http_client::UploadChunk;
use crate::message::{Request, Response};

/// A request that another thread took, and where its answer goes.
pub(super) type HttpRequest = (Request, oneshot::Sender<HttpResult>);

/// Message back to the HTTP thread.
#[derive(Debug)]
pub(super) enum HttpResult {
    Whole(Response),
    /// The beginning, and the pieces as they are written.
    Begun(Response, mpsc::Receiver<UploadChunk>),
}

impl From<HttpResult> for HandlerResponse {
    fn from(sent: HttpResult) -> Self {
        match sent {
            HttpResult::Whole(response) => response.into(),
            HttpResult::Begun(response, mut pieces) => {
                let body = BodyStream::from_stream(Box::pin(stream::poll_fn(move |cx| {
                    pieces.poll_recv(cx)
                })));
                StreamingResponse { response, body }.into()
            }
        }
    }
}

/// Hands a request to a thread that serves `queue`; fails when that thread serves no more.
pub(super) async fn hand_to_thread(
    request: Request,
    hand: impl FnOnce(HttpRequest) -> bool,
) -> HandlerResponse {
    let (back, answer) = oneshot::channel();
    let sent = if hand((request, back)) {
        answer.await.ok()
    } else {
        None
    };
    sent.map_or_else(
        || {
            Response::new("the function is stopping\n")
                .with_status(503)
                .into()
        },
        HandlerResponse::from,
    )
}

/// The call whose handler runs.
#[derive(Debug, Default)]
pub(super) enum ActiveResponse {
    /// None does.
    #[default]
    Nothing,
    /// A call from shared memory, on this thread.
    Near(Box<IncomingCall>, ResponseProgress),
    /// Another thread took it.
    Visitor(
        Option<oneshot::Sender<HttpResult>>,
        Option<mpsc::Sender<UploadChunk>>,
    ),
}

/// How far an answer through memory is.
#[derive(Debug)]
pub(super) enum ResponseProgress {
    /// Not begun.
    Unbegun,
    Begun(OpenBody),
    /// Complete; some of it may not have gone yet.
    Finished,
}

impl ActiveResponse {
    pub(super) fn from_incoming(incoming: IncomingCall) -> Self {
        Self::Near(Box::new(incoming), ResponseProgress::Unbegun)
    }

    pub(super) fn begin_response(
        &mut self,
        post: Option<&mut BlockingEndpoint>,
        head: Response,
    ) -> Result<(), BodyUnwanted> {
        match self {
            Self::Near(incoming, progress @ ResponseProgress::Unbegun) if !incoming.is_event => {
                *progress = ResponseProgress::Begun(post.ok_or(BodyUnwanted)?.begin_response(
                    incoming,
                    head.into_call_response(),
                    None,
                ));
                Ok(())
            }
            Self::Visitor(back, pieces) => {
                let (sender, receiver) = mpsc::channel(1);
                let sent = back
                    .take()
                    .ok_or(BodyUnwanted)?
                    .send(HttpResult::Begun(head, receiver));
                *pieces = Some(sender);
                sent.map_err(|_| BodyUnwanted)
            }
            _ => Err(BodyUnwanted),
        }
    }

    /// Waits for room, then writes.
    pub(super) fn write_chunk(
        &mut self,
        post: Option<&mut BlockingEndpoint>,
        piece: Bytes,
    ) -> Result<(), BodyUnwanted> {
        match self {
            Self::Near(_, ResponseProgress::Begun(writing)) => {
                post.ok_or(BodyUnwanted)?.write_chunk(writing, piece)
            }
            Self::Visitor(_, Some(pieces)) => {
                pieces.blocking_send(Ok(piece)).map_err(|_| BodyUnwanted)
            }
            _ => Err(BodyUnwanted),
        }
    }

    pub(super) fn finish_response(&mut self, post: Option<&mut BlockingEndpoint>) {
        match self {
            Self::Near(_, progress) => {
                if matches!(progress, ResponseProgress::Begun(_))
                    && let (ResponseProgress::Begun(writing), Some(post)) = (
                        std::mem::replace(progress, ResponseProgress::Finished),
                        post,
                    )
                {
                    post.finish_body(writing);
                }
            }
            Self::Visitor(_, pieces) => *pieces = None,
            Self::Nothing => {}
        }
    }

    /// The handler has returned: what it answered goes, unless an answer had begun; one that was not finished is aborted.
    pub(super) fn send_response(self, post: Option<&mut BlockingEndpoint>, response: Response) {
        match (self, post) {
            (Self::Near(_, ResponseProgress::Finished), _) => {} // what has not gone yet goes by itself
            (Self::Near(incoming, _), Some(post)) => {
                post.send_response(*incoming, response.into_call_response())
            }
            (Self::Visitor(Some(back), _), _) => drop(back.send(HttpResult::Whole(response))),
            (Self::Visitor(None, Some(pieces)), _) => {
                let _ = pieces.blocking_send(Err("the handler did not finish its answer".into()));
            }
            _ => {}
        }
    }
}
