//! HTTP/1.1 requests that arrive complete: the common case, answered without hyper (ADR 19).
//!
//! A plain request for a function, head and body in one piece, needs no state between reads and
//! no task for its body. Its response is written directly after the pipeline
//! ([`crate::pipeline`]). If shared memory or its own port reaches its function, it takes the
//! [`crate::fast_path`]. Any other or doubtful request is left to hyper: the connection goes
//! there with every byte that was read, and stays there.

mod buffered_connection;
mod fast_response;
mod inline;
mod response;
mod server_call;
mod server_head;
mod server_response;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;

use super::client_connection::ClientConnection;
use super::client_transport::ClientTransport;
use super::conn_state::ActiveRequest;
use super::tracked_stream::TrackedStream;
use crate::fast_path::{
    self, Http1Draft, ParseOutcome, PlainRequest, take_named_request, take_node_request,
    take_plain_request,
};
use crate::function::FunctionEntry;
use crate::pipeline;
use crate::request::ListenerZone;
use crate::route::{self, PathTarget};
use buffered_connection::BufferedConnection;
pub(super) use inline::{TaskStart, TaskStep, serve_new};
use server_call::{OpenCall, UnfinishedCall};

/// Maximum bytes of an incomplete head before hyper takes over.
const MAX_PLAIN_HEAD_BYTES: usize = 4096;

/// Outcome of serving plain requests on a connection.
pub(super) enum Http1Outcome<T> {
    /// The connection is closed.
    Closed,
    /// The next request is not plain: hyper takes over.
    HandedOver(TrackedStream<T>),
}

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    /// At the function's own port. The event loop may answer the next one.
    ByServer,
    /// In another way.
    Elsewhere,
    /// The connection ends.
    Last,
}

impl Answered {
    /// Returns this, if another request may follow.
    fn or_last(self, may_follow: bool) -> Self {
        match may_follow {
            true => self,
            false => Self::Last,
        }
    }
}

/// Answers requests until one is not plain or the connection ends, from the step on that the event loop has
/// left.
///
/// # Errors
/// If the connection fails, or a response breaks off, which only a broken connection can express.
pub(super) async fn serve_plain_requests<T: ClientTransport>(
    client: &Rc<ClientConnection>,
    stream: TrackedStream<T>,
    mut next: TaskStep,
) -> io::Result<Http1Outcome<T>> {
    let mut connection = BufferedConnection::new(stream, client.state.clone());
    let mut previous = Answered::ByServer; // the loop may answer a first request, too
    loop {
        let step = match std::mem::replace(&mut next, TaskStep::Read) {
            TaskStep::Read => next_step(client, &mut connection, previous).await?,
            step => step,
        };
        previous = match step {
            TaskStep::Answer(plain) => match find_function(client, &plain) {
                Some(found) => answer_plain_request(client, &mut connection, plain, found).await?,
                None => {
                    return Ok(Http1Outcome::HandedOver(
                        connection.into_stream(Some(plain)),
                    ));
                }
            },
            TaskStep::Await(call) => await_call(client, &mut connection, *call).await?,
            TaskStep::Finish(response) => finish_call(client, &mut connection, *response).await?,
            TaskStep::Write { mut rest, close } => {
                connection.write_rest(&mut rest).await?;
                Answered::ByServer.or_last(!close)
            }
            TaskStep::Close => Answered::Last,
            TaskStep::End if connection.buffer().is_empty() => return Ok(Http1Outcome::Closed),
            TaskStep::End | TaskStep::HandOver | TaskStep::Read => {
                return Ok(Http1Outcome::HandedOver(connection.into_stream(None)));
            }
        };
        if previous == Answered::Last {
            connection.close().await;
            return Ok(Http1Outcome::Closed);
        }
    }
}

/// Waits for the next plain request, in the event loop if the last one was answered at a function's
/// own port. Returns no [`TaskStep::Read`].
async fn next_step<T: ClientTransport>(
    client: &Rc<ClientConnection>,
    connection: &mut BufferedConnection<T>,
    previous: Answered,
) -> io::Result<TaskStep> {
    let mut may_be_inline = previous == Answered::ByServer;
    loop {
        match take_request(client, connection.buffer()) {
            ParseOutcome::Plain(plain) => return Ok(TaskStep::Answer(plain)),
            // Longer heads are hyper's: it knows how to refuse them.
            ParseOutcome::Incomplete if connection.buffer().len() < MAX_PLAIN_HEAD_BYTES => {}
            ParseOutcome::Incomplete | ParseOutcome::NotPlain => return Ok(TaskStep::HandOver),
        }
        if connection.buffer().is_empty() && std::mem::take(&mut may_be_inline) {
            match inline::serve_inline(client, connection).await? {
                TaskStep::Read => continue, // something may have been read
                step => return Ok(step),
            }
        }
        if !connection.read_more().await? {
            return Ok(TaskStep::End);
        }
    }
}

/// Takes a plain request of the connection's peer.
fn take_request(client: &ClientConnection, buffer: &mut BytesMut) -> ParseOutcome {
    match client.peer.zone {
        ListenerZone::Node => take_node_request(buffer),
        _ if client.peer.called_address.is_some() => take_named_request(buffer),
        ListenerZone::Public | ListenerZone::Internal => take_plain_request(buffer),
    }
}

/// Waits for the response to a request that was sent, and writes it.
async fn await_call<T: ClientTransport>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    call: OpenCall,
) -> io::Result<Answered> {
    // On the heap: otherwise every connection's future would be as large.
    let answering = Box::pin(server_response::answer_open_call(client, connection, call));
    Ok(Answered::ByServer.or_last(answering.await?))
}

/// Writes the response of a call that the event loop does not finish.
async fn finish_call<T: ClientTransport>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    response: UnfinishedCall,
) -> io::Result<Answered> {
    // On the heap, as above.
    let writing = Box::pin(server_response::write_unfinished(
        client, connection, response,
    ));
    Ok(Answered::ByServer.or_last(writing.await?))
}

/// Function of a plain request, and the offset of its path.
struct FoundFunction {
    function: Arc<FunctionEntry>,
    path_offset: usize,
}

/// Finds the function of a plain request. `None`: another path, an unknown function, or a connection of the
/// reserve. The pipeline answers these through hyper.
fn find_function(client: &ClientConnection, plain: &PlainRequest) -> Option<FoundFunction> {
    if client.peer.is_on_reserve {
        return None;
    }
    let table = &client.worker.table;
    if client.peer.zone == ListenerZone::Node {
        let function = table.find_by_name(plain.called_function()?)?;
        return Some(FoundFunction {
            function,
            path_offset: 0,
        });
    }
    if let Some(address) = client.peer.called_address {
        let function = table.find_by_address(address)?;
        return Some(FoundFunction {
            function,
            path_offset: 0,
        });
    }
    match route::parse_path(plain.path()) {
        Ok(PathTarget::Function { name, path_offset }) => {
            table.find_by_name(name).map(|function| FoundFunction {
                function,
                path_offset,
            })
        }
        _ => None,
    }
}

/// Answers one request.
async fn answer_plain_request<T: ClientTransport>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: PlainRequest,
    found: FoundFunction,
) -> io::Result<Answered> {
    let active = connection.state.begin_request(true);
    let (worker, peer) = (&client.worker, &client.peer);
    if let Some(call) =
        fast_path::send_plain(worker, peer, &plain, &found.function, found.path_offset)
    {
        let writing =
            fast_response::write_fast_response(client, connection, &plain, call, active).await;
        return Ok(Answered::Elsewhere.or_last(writing?));
    }
    match Http1Draft::new(worker, peer, &plain, &found.function, found.path_offset) {
        // On the heap: otherwise every connection's future would be as large.
        Some(draft) => {
            let answering = answer_by_server(client, connection, plain, found, draft, active);
            Box::pin(answering).await
        }
        None => answer_in_pipeline(client, connection, &plain, found, active).await,
    }
}

/// Answers a request at the function's own port, or in the pipeline if there is no connection.
async fn answer_by_server<T: ClientTransport>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: PlainRequest,
    found: FoundFunction,
    draft: Http1Draft,
    active: ActiveRequest,
) -> io::Result<Answered> {
    match draft.connect(&client.worker, &client.peer, &plain).await {
        Some(call) => {
            let call = OpenCall::new(plain, call, active);
            let answering = server_response::answer_open_call(client, connection, call);
            Ok(Answered::ByServer.or_last(answering.await?))
        }
        None => answer_in_pipeline(client, connection, &plain, found, active).await,
    }
}

/// Answers a request in the pipeline.
async fn answer_in_pipeline<T: ClientTransport>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: &PlainRequest,
    found: FoundFunction,
    active: ActiveRequest,
) -> io::Result<Answered> {
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
    let mut answering = Box::pin(pipeline::answer_request(routed));
    match connection.await_unless_gone(answering.as_mut()).await {
        Some(mut response) => {
            client.complete_head(&mut response);
            let (close, date) = (plain.closes_connection(), client.worker.http_date());
            let writing = response::write_response(connection, response, active, close, date);
            Ok(Answered::Elsewhere.or_last(writing.await?))
        }
        None => Ok(Answered::Last),
    }
}
