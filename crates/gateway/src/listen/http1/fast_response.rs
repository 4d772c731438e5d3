//! Responses of the fast path, see [`crate::fast_path`]. Head and body go from their slot to the
//! caller. For a slow caller, the body is copied, so that the slot becomes free.

use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::poll;
use http::StatusCode;
use nearpath_domain::CallReply;
use nearpath_types::platform_field::is_platform_field;
use nearpath_wire::hop::headers::is_hop_field;
use tokio::io::{AsyncRead, AsyncWrite};

use super::buffered_connection::BufferedConnection;
use super::response::{self, HEAD_RESERVE_BYTES, write_field, write_status_line};
use crate::fast_path::{PlainCall, PlainRequest, SentCall};
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ActiveRequest;
use crate::request::DigitBuffer;

/// Waits for the response and writes it. Returns whether another request may follow.
pub(super) async fn write_fast_response<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: &PlainRequest,
    sent: SentCall,
    mut active: ActiveRequest,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let SentCall { answer, call } = sent;
    let Some(outcome) = connection.await_unless_gone(pin!(answer)).await else {
        return Ok(false);
    };
    let close = plain.closes_connection() || connection.state.is_draining();
    let mut out = Vec::with_capacity(HEAD_RESERVE_BYTES);
    let mut answer = match outcome {
        // The request is still complete, so the pipeline can send it to another instance.
        Ok(reply) if reply.did_not_run() => {
            let retrying =
                call.retry_refused(client.worker.clone(), client.peer.clone(), plain, reply);
            let mut retrying = Box::pin(retrying);
            let Some(answer) = connection.await_unless_gone(retrying.as_mut()).await else {
                return Ok(false);
            };
            answer
        }
        Ok(reply) => match write_head(&mut out, client, &call, &reply, close) {
            Some(status) => {
                let body = if is_bodiless(status) {
                    Bytes::new()
                } else {
                    reply.body.into()
                };
                // Recorded before the write: the instance is done, and a slow caller must not
                // occupy it.
                let took = call.elapsed();
                call.complete_call(status.as_u16(), body.len() as u64, took);
                active.mark_untaken();
                drop(active);
                write_whole(connection, out, body).await?;
                return Ok(!close);
            }
            None => call.answer_via_pipeline(&client.worker, &client.peer, plain, reply),
        },
        Err(error) => call.respond_with_error(&client.worker, &client.peer, plain, error),
    };
    client.complete_head(&mut answer);
    response::write_response(connection, answer, active, close, client.worker.http_date()).await
}

/// Writes head and body.
pub(super) async fn write_whole<T>(
    connection: &mut BufferedConnection<T>,
    mut out: Vec<u8>,
    body: Bytes,
) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if body.len() <= out.capacity() - out.len() {
        // One buffer costs the kernel less than two, and a slot in memory is free at once.
        out.extend_from_slice(&body);
        drop(body);
        return connection.write_rest(&mut &out[..]).await;
    }
    // One vectored write for head and body, which may be in a slot.
    let mut all = (&out[..]).chain(body);
    let first_write = poll!(pin!(connection.write_all(&mut all)));
    match first_write {
        Poll::Ready(written) => written?,
        Poll::Pending => {
            // The copy releases the slot now, not when the caller has read everything.
            let mut copy = BytesMut::with_capacity(all.remaining());
            copy.put(all);
            connection.write_all(&mut copy).await?;
        }
    }
    connection.state.note_flushed();
    Ok(())
}

fn is_bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Writes the response head as [`crate::deliver`] does in the pipeline. `None`: the pipeline must
/// handle it.
fn write_head(
    out: &mut Vec<u8>,
    client: &ClientConnection,
    call: &PlainCall,
    reply: &CallReply,
    close: bool,
) -> Option<StatusCode> {
    let status = if reply.status == 0 {
        StatusCode::OK
    } else {
        StatusCode::from_u16(reply.status).ok()?
    };
    // Streams need chunked framing, 1xx is no final response, and responses of the platform have
    // fields that functions may not set: all are left to the pipeline.
    if reply.reader.is_some()
        || reply.is_platform
        || status.is_informational()
        || status.as_u16() > 599
    {
        return None;
    }
    write_status_line(out, status);
    let (mut add_date, mut add_duration) = (true, true);
    for field in reply.head_fields() {
        let field = field.ok()?;
        match field.name {
            // Rare in replies; the pipeline strips them.
            "trailer" => return None,
            name if is_hop_field(name) => return None,
            // Written below by the gateway, whose values win.
            "x-call-id" | "x-start-time" | "x-served-by" | "content-length" => continue,
            name if is_platform_field(name) => continue,
            "alt-svc" if client.alt_svc.is_some() => continue,
            "date" => add_date = false,
            "x-duration-seconds" => add_duration = false,
            _ => {}
        }
        // Dropped otherwise, as in the pipeline: a line break in a value would split the
        // response.
        if is_valid_field(field.name, field.value) {
            write_field(out, field.name, field.value);
        }
    }
    write_own_fields(out, client, call);
    if add_duration {
        let took = DigitBuffer::from_seconds(call.elapsed());
        write_field(out, "x-duration-seconds", took.as_bytes());
    }
    if !is_bodiless(status) {
        let length = DigitBuffer::from_number(reply.body.len() as u64);
        write_field(out, "content-length", length.as_bytes());
    }
    response::end_head(out, add_date.then(|| client.worker.http_date()), close);
    Some(status)
}

/// Writes the fields of the gateway that every response has.
pub(super) fn write_own_fields(out: &mut Vec<u8>, client: &ClientConnection, call: &PlainCall) {
    write_field(out, "x-call-id", call.call_id().as_bytes());
    write_field(out, "x-start-time", call.start_time().as_bytes());
    write_field(out, "x-served-by", client.worker.served_by.as_bytes());
    if let Some(alt_svc) = &client.alt_svc {
        write_field(out, "alt-svc", alt_svc.as_bytes());
    }
}

/// Returns whether a field is valid HTTP (RFC 9110 section 5). The function may be hostile.
pub(super) fn is_valid_field(name: &str, value: &[u8]) -> bool {
    let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    name.bytes().all(|byte| TOKEN_BYTES[usize::from(byte)]) && value.iter().all(is_text)
}

/// Bytes of a token (RFC 9110 section 5.6.2). A table: each byte of each name is looked up.
static TOKEN_BYTES: [bool; 256] = {
    let (mut bytes, mut at) = ([false; 256], 0);
    while at < bytes.len() {
        bytes[at] = (at as u8).is_ascii_alphanumeric();
        at += 1;
    }
    let (marks, mut at) = (b"!#$%&'*+-.^_`|~", 0);
    while at < marks.len() {
        bytes[marks[at] as usize] = true;
        at += 1;
    }
    bytes
};
