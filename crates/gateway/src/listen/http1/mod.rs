//! HTTP/1.1 requests that arrive complete: the common case, answered without hyper (ADR 19).
//!
//! A plain request for a function, head and body in one piece, needs no state between reads and
//! no task for its body. Its response is written directly after the pipeline
//! ([`crate::pipeline`]). If shared memory or its own port reaches its function, it takes the
//! [`crate::fast_path`]. Any other or doubtful request is left to hyper: the connection goes
//! there with every byte that was read, and stays there.

mod buffered_connection;
mod fast_response;
mod loopback_response;
mod response;

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

use std::sync::Arc;

use super::client_connection::ClientConnection;
use super::conn_state::ActiveRequest;
use super::tracked_stream::TrackedStream;
use crate::fast_path::{self, LoopbackDraft, ParseOutcome, PlainRequest, take_plain_request};
use crate::function::FunctionEntry;
use crate::pipeline;
use crate::route::{self, PathTarget};
use buffered_connection::BufferedConnection;

/// Maximum bytes of an incomplete head before hyper takes over.
const MAX_PLAIN_HEAD_BYTES: usize = 4096;

/// Outcome of serving plain requests on a connection.
pub(super) enum Http1Outcome<T> {
    /// The connection is closed.
    Closed,
    /// The next request is not plain: hyper takes over.
    HandedOver(TrackedStream<T>),
}

/// Answers requests until one is not plain or the connection ends.
///
/// # Errors
/// If the connection fails, or a response breaks off, which only a broken connection can express.
pub(super) async fn serve_plain_requests<T>(
    client: &ClientConnection,
    stream: TrackedStream<T>,
) -> io::Result<Http1Outcome<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = BufferedConnection::new(stream, client.state.clone());
    loop {
        match take_plain_request(connection.buffer()) {
            ParseOutcome::Plain(plain) => match find_function(client, &plain) {
                Some(found) => {
                    if !answer_plain_request(client, &mut connection, &plain, found).await? {
                        connection.close().await;
                        return Ok(Http1Outcome::Closed);
                    }
                }
                None => {
                    return Ok(Http1Outcome::HandedOver(
                        connection.into_stream(Some(plain)),
                    ));
                }
            },
            // Longer heads are hyper's: it knows how to refuse them.
            ParseOutcome::Incomplete if connection.buffer().len() < MAX_PLAIN_HEAD_BYTES => {
                if !connection.read_more().await? {
                    return Ok(if connection.buffer().is_empty() {
                        Http1Outcome::Closed
                    } else {
                        Http1Outcome::HandedOver(connection.into_stream(None))
                    });
                }
            }
            ParseOutcome::Incomplete | ParseOutcome::NotPlain => {
                return Ok(Http1Outcome::HandedOver(connection.into_stream(None)));
            }
        }
    }
}

/// Function of a plain request, and the offset of its path.
struct FoundFunction {
    function: Arc<FunctionEntry>,
    path_offset: usize,
}

/// Finds the function of a plain request; `None`: the request must be refused.
fn find_function(client: &ClientConnection, plain: &PlainRequest) -> Option<FoundFunction> {
    match route::parse_path(plain.path()) {
        Ok(PathTarget::Function { name, path_offset }) if !client.peer.is_on_reserve => client
            .worker
            .table
            .find_by_name(name)
            .map(|function| FoundFunction {
                function,
                path_offset,
            }),
        // hyper takes the connection, and the pipeline words the refusal.
        _ => None,
    }
}

/// Answers one request. Returns whether another one may follow.
async fn answer_plain_request<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: &PlainRequest,
    found: FoundFunction,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let active = connection.state.begin_request(true);
    if let Some(call) = fast_path::send_plain(
        &client.worker,
        &client.peer,
        plain,
        &found.function,
        found.path_offset,
    ) {
        return fast_response::write_fast_response(client, connection, plain, call, active).await;
    }
    let (worker, peer) = (&client.worker, &client.peer);
    match LoopbackDraft::new(worker, peer, plain, &found.function, found.path_offset) {
        // On the heap: otherwise every connection's future would be as large.
        Some(draft) => {
            Box::pin(answer_at_own_port(
                client, connection, plain, found, draft, active,
            ))
            .await
        }
        None => answer_in_pipeline(client, connection, plain, found, active).await,
    }
}

/// Answers a request at the function's own port, or in the pipeline if there is no connection.
async fn answer_at_own_port<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: &PlainRequest,
    found: FoundFunction,
    draft: LoopbackDraft,
    active: ActiveRequest,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    match draft.connect(&client.worker, &client.peer, plain).await {
        Some(call) => {
            loopback_response::write_loopback_response(client, connection, plain, call, active)
                .await
        }
        None => answer_in_pipeline(client, connection, plain, found, active).await,
    }
}

/// Answers a request in the pipeline.
async fn answer_in_pipeline<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: &PlainRequest,
    found: FoundFunction,
    active: ActiveRequest,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let Some(request) = plain.to_request() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let routed = pipeline::route_buffered(
        &client.worker,
        &client.peer,
        request,
        found.function,
        found.path_offset,
    );
    // On the heap: otherwise every connection's future would be as large.
    match connection
        .await_unless_gone(Box::pin(pipeline::answer_request(routed)))
        .await
    {
        Some(mut response) => {
            client.add_alt_svc(response.headers_mut());
            response::write_response(
                connection,
                response,
                active,
                plain.closes_connection(),
                client.worker.http_date(),
            )
            .await
        }
        None => Ok(false),
    }
}
