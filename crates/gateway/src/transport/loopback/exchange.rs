//! One plain request to a function's own server, and its response up to a short body.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::time::{timeout, timeout_at};

use super::body_decoder::{BodyDecoder, DecodedPart};
use super::connection::ResponseHeadError;
use super::pooled_connection::PooledConnection;
use super::response_body::LoopbackBody;
use super::response_head::{BodyFraming, InvalidResponse, ResponseHead};

/// Maximum length of a body that is awaited with its head. Longer ones stream.
const MAX_BUFFERED_BODY_BYTES: u64 = 64 * 1024;
/// Time for a short body to follow its head. Simple servers write them apart, within some 100 µs.
const BODY_GRACE: Duration = Duration::from_millis(2);

/// Response of a function's own server.
pub(crate) struct ServerResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: ServerBody,
}

/// Body of a response.
pub(crate) enum ServerBody {
    /// All of it. The connection is free again.
    Buffered(Bytes),
    /// Parts as they arrive.
    Stream(Box<LoopbackBody>),
}

/// Cause for which a request that was sent got no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Timeout,
    /// No head came.
    #[error(transparent)]
    Head(#[from] ResponseHeadError),
}

/// Sends a request and reads the response's head, with a short body. Dropping the future closes
/// the connection, which tells the server that its caller has left.
pub(crate) async fn exchange_plain(
    connection: PooledConnection,
    head: BytesMut,
    body: Bytes,
    deadline: Instant,
) -> Result<ServerResponse, ExchangeError> {
    let exchange = exchange_without_limit(connection, head, body);
    let in_time = timeout_at(deadline.into(), exchange).await;
    in_time
        .map_err(|_| ExchangeError::Timeout)?
        .map_err(Into::into)
}

async fn exchange_without_limit(
    mut connection: PooledConnection,
    head: BytesMut,
    body: Bytes,
) -> Result<ServerResponse, ResponseHeadError> {
    let written = connection.write_request(head, body).await;
    let mut head = match connection.read_head().await {
        // A server may answer and close before it has read the whole request.
        Ok(head) => head,
        Err(ResponseHeadError::Invalid(error)) => return Err(error.into()),
        Err(error) => {
            connection.note_loss();
            return Err(written.err().map_or(error, Into::into));
        }
    };
    head.keeps_alive &= written.is_ok(); // the server would take a later request for the rest
    connection.note_response();
    // `Connection` may list fields to strip. Only the pipeline does that, and it streams.
    let is_short = |length| length <= MAX_BUFFERED_BODY_BYTES && !head.names_hop_fields;
    if let BodyFraming::Length(length) = head.framing
        && is_short(length)
        && await_body(&mut connection, length as usize).await
    {
        let body = connection.buffer.split_to(length as usize).freeze();
        return Ok(buffered_response(connection, head, body));
    }
    if let Some(body) = take_arrived_chunks(&mut connection, &head)? {
        return Ok(buffered_response(connection, head, body));
    }
    let body = LoopbackBody::new(connection, &head);
    Ok(ServerResponse {
        head,
        body: ServerBody::Stream(Box::new(body)),
    })
}

/// Waits a moment for a body that follows its head. Returns whether it has arrived: the head of a
/// slow one must not wait for it.
async fn await_body(connection: &mut PooledConnection, length: usize) -> bool {
    if connection.buffer.len() >= length {
        return true;
    }
    connection.acknowledge_now();
    let reading = async {
        while connection.buffer.len() < length {
            match connection.read_more().await {
                Ok(0) | Err(_) => return false, // the stream tells its caller
                Ok(_) => {}
            }
        }
        true
    };
    timeout(BODY_GRACE, reading).await.unwrap_or(false)
}

/// Takes a chunked body that has arrived whole; `None`: it streams.
///
/// # Errors
/// If what has arrived is invalid: the caller can still be told.
fn take_arrived_chunks(
    connection: &mut PooledConnection,
    head: &ResponseHead,
) -> Result<Option<Bytes>, InvalidResponse> {
    if head.framing != BodyFraming::Chunked || connection.buffer.is_empty() {
        return Ok(None);
    }
    // On a copy: what turns out to be incomplete streams from its beginning.
    let mut buffer = connection.buffer.clone();
    let mut decoder = BodyDecoder::new(head.framing);
    let mut body = BytesMut::new();
    while let DecodedPart::Data(data) = decoder.decode(&mut buffer)? {
        body.extend_from_slice(&data);
    }
    if !decoder.has_ended() || head.names_hop_fields {
        return Ok(None);
    }
    connection.buffer = buffer;
    Ok(Some(body.freeze()))
}

fn buffered_response(
    connection: PooledConnection,
    head: ResponseHead,
    body: Bytes,
) -> ServerResponse {
    if head.keeps_alive {
        connection.put_back();
    }
    ServerResponse {
        head,
        body: ServerBody::Buffered(body),
    }
}
