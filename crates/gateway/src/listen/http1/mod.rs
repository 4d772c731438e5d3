//! HTTP/1.1 requests that have come as a whole: most requests, and the cheap way to answer them.
//!
//! A plain request for a function, head and body in one piece, needs no state between reads and no task that feeds a body:
//! it is read, takes the path of all others ([`crate::pipeline`]), and its answer is written. Where its function can be reached
//! through memory it takes the [`crate::fast_path`]. Whatever is not plain, and whatever is doubtful, is hyper's to
//! judge: the connection goes there with every byte that was read, and stays there.

mod buffered_connection;
mod fast_response;
mod response;

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

use std::sync::Arc;

use super::client_connection::ClientConnection;
use super::tracked_stream::TrackedStream;
use crate::fast_path::{self, ParseOutcome, PlainRequest, take_plain_request};
use crate::function::FunctionEntry;
use crate::pipeline;
use crate::route::{self, PathTarget};
use buffered_connection::BufferedConnection;

/// Most of a head that is waited for here.
const MAX_PLAIN_HEAD_BYTES: usize = 4096;

/// What became of a connection.
pub(super) enum Http1Outcome<T> {
    /// It is over.
    Closed,
    /// The next request is not for here.
    HandedOver(TrackedStream<T>),
}

/// Answers requests until one comes that is not plain, or the connection ends.
///
/// # Errors
/// When the connection fails, or an answer breaks off and can only be told by breaking the connection.
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
                        return Ok(Http1Outcome::Closed);
                    }
                }
                None => {
                    return Ok(Http1Outcome::HandedOver(
                        connection.into_stream(Some(plain)),
                    ));
                }
            },
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

/// The function that a plain request is for, and where its own path begins in the request's.
struct FoundFunction {
    function: Arc<FunctionEntry>,
    path_offset: usize,
}

/// Finds a plain request's function; `NoConnection`: the request is to be refused.
fn find_function(client: &ClientConnection, plain: &PlainRequest) -> Option<FoundFunction> {
    match route::parse_path(plain.path()) {
        Ok(PathTarget::Function { name, path_offset }) => client
            .worker
            .table
            .find_by_name(name)
            .map(|function| FoundFunction {
                function,
                path_offset,
            }),
        _ => None,
    }
}

/// Answers one request. Whether another one may come.
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
    if let Some(sent) = fast_path::send_plain(
        &client.worker,
        &client.peer,
        plain,
        &found.function,
        found.path_offset,
    ) {
        return fast_response::write_fast_response(client, connection, plain, sent, active).await;
    }
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
    // On the heap: it would make every connection's future as large as itself.
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
