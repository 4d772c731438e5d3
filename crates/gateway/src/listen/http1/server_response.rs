//! Responses of functions' own servers, see [`crate::fast_path`]. A short one goes to the caller
//! without a header map; others stream through the pipeline.

use std::io;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncWrite};

use super::buffered_connection::BufferedConnection;
use super::fast_response::write_whole;
use super::response;
use super::server_call::{
    CallFailure, CallResponse, CallState, OpenCall, ShortResponse, StreamedResponse, UnfinishedCall,
};
use crate::listen::client_connection::ClientConnection;

/// Waits for the response and writes it. Returns whether another request may follow.
///
/// # Errors
/// If the connection to the caller fails.
pub(super) async fn answer_open_call<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    call: OpenCall,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let answer = pin!(call.complete(client));
    match connection.await_unless_gone(answer).await {
        None => Ok(false),
        Some(CallResponse::Short(ShortResponse { head, body, close })) => {
            write_whole(connection, head, body).await?;
            Ok(!close)
        }
        Some(CallResponse::Unfinished(call)) => write_unfinished(client, connection, *call).await,
    }
}

/// Writes a response that streams, or the error of a call without one. Returns whether another
/// request may follow.
///
/// # Errors
/// If the connection to the caller fails, or the response breaks off.
pub(super) async fn write_unfinished<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    call: UnfinishedCall,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let UnfinishedCall { state, outcome } = call;
    let CallState {
        plain,
        call,
        limit,
        active,
    } = state;
    let (worker, peer) = (&client.worker, &client.peer);
    let mut response = match outcome {
        Ok(StreamedResponse { head, body }) => {
            call.stream_via_pipeline(worker, peer, &plain, &head, body)
        }
        Err(CallFailure::NotRun(why)) => {
            let mut retry = Box::pin(call.retry_via_pipeline(worker, peer, &plain, why));
            match connection.await_unless_gone(retry.as_mut()).await {
                Some(response) => response,
                None => return Ok(false),
            }
        }
        Err(CallFailure::Lost(error)) => {
            call.refuse_lost_call(worker, peer, &plain, limit, &error)
                .await
        }
    };
    client.complete_head(&mut response);
    let close = plain.closes_connection();
    response::write_response(connection, response, active, close, worker.http_date()).await
}
