//! Writes HTTP/1.1 responses (RFC 9112). Head and first part of the body take one system call.

use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::poll;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use nearpath_wire::BoxError;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::buffered_connection::BufferedConnection;
use crate::deliver::ResponseContent;
use crate::listen::conn_state::ActiveRequest;

/// Buffer for a usual response head, and a short body.
pub(super) const HEAD_RESERVE_BYTES: usize = 1024;

/// Frame of a body, its end, or its error.
type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

/// Framing of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyFraming {
    /// No body (RFC 9110 section 6.4.1).
    Bodiless,
    /// Ends by its length.
    Length(u64),
    /// Ends with an empty chunk.
    Chunked,
}

/// Writes a response. Returns whether the connection may be reused: `close` or a drain ends it.
///
/// # Errors
/// If the connection fails or the response breaks off. The caller notices that from the framing.
pub(super) async fn write_response<T>(
    connection: &mut BufferedConnection<T>,
    response: Response<ResponseContent>,
    mut active: ActiveRequest,
    close: bool,
    date: [u8; 29],
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (parts, mut content) = response.into_parts();
    let framing = select_framing(parts.status, &content);
    let close = close || connection.state.is_draining();
    let mut out = BytesMut::with_capacity(HEAD_RESERVE_BYTES);
    write_head(&mut out, &parts, framing, close, date);
    active.mark_untaken();
    let (mut written, mut last) = (0, Bytes::new());
    while framing != BodyFraming::Bodiless && framing != BodyFraming::Length(written) {
        let Some(frame) = next_frame(connection, &mut content, &mut out, &mut active).await? else {
            return Ok(false);
        };
        active.mark_untaken();
        let Some(data) = frame_data(frame)? else {
            break;
        };
        written += data.len() as u64;
        // Held back until the record is written: a caller with its whole response may send the
        // next request at once.
        if framing == BodyFraming::Length(written) {
            last = data;
        } else {
            write_chunk(connection, &mut out, data, framing).await?;
        }
    }
    finish_body(&mut out, framing, written)?;
    drop((active, content)); // releases the function's slot; the caller may send again
    connection.write_rest(&mut out.chain(last)).await?;
    Ok(!close)
}

/// Returns the next frame of the body. Writes the buffered bytes before waiting. `None`: the
/// caller has closed.
async fn next_frame<T>(
    connection: &mut BufferedConnection<T>,
    content: &mut ResponseContent,
    out: &mut BytesMut,
    active: &mut ActiveRequest,
) -> io::Result<Option<NextFrame>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    // A first poll without waiting: most bodies are complete with their head, and go out in one
    // call.
    if let Poll::Ready(frame) = poll!(content.frame()) {
        return Ok(Some(frame));
    }
    active.mark_taken();
    connection.write_all(out).await?;
    Ok(connection.await_unless_gone(pin!(content.frame())).await)
}

async fn write_chunk<T>(
    connection: &mut BufferedConnection<T>,
    out: &mut BytesMut,
    data: Bytes,
    framing: BodyFraming,
) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if data.is_empty() {
        return Ok(()); // an empty chunk would end the body
    }
    let is_chunked = framing == BodyFraming::Chunked;
    if is_chunked {
        out.put_slice(format!("{:x}\r\n", data.len()).as_bytes());
    }
    connection
        .stream
        .write_all_buf(&mut (&mut *out).chain(data))
        .await?;
    if is_chunked {
        out.put_slice(b"\r\n");
    }
    Ok(())
}

/// Returns the data of a frame; `None` at the end. Trailers are dropped: a request that asks for
/// them is not plain.
fn frame_data(frame: NextFrame) -> io::Result<Option<Bytes>> {
    match frame {
        None => Ok(None),
        Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        Some(Err(error)) => Err(io::Error::other(error)),
    }
}

/// # Errors
/// If the body was shorter than its announced length.
fn finish_body(out: &mut BytesMut, framing: BodyFraming, written: u64) -> io::Result<()> {
    match framing {
        // The connection has to break: the caller would take the next response for the rest of
        // this one.
        BodyFraming::Length(length) if length != written => {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        BodyFraming::Chunked => {
            out.put_slice(b"0\r\n\r\n");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn select_framing(status: StatusCode, content: &ResponseContent) -> BodyFraming {
    match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => BodyFraming::Bodiless,
        _ if status.is_informational() => BodyFraming::Bodiless,
        _ => content
            .size_hint()
            .exact()
            .map_or(BodyFraming::Chunked, BodyFraming::Length),
    }
}

fn write_head(
    out: &mut BytesMut,
    parts: &Parts,
    framing: BodyFraming,
    close: bool,
    date: [u8; 29],
) {
    write_status_line(out, parts.status);
    // Framing is decided here. A second, different field would allow response smuggling.
    let replaced = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING];
    for (name, value) in parts
        .headers
        .iter()
        .filter(|(name, _)| !replaced.contains(name))
    {
        write_field(out, name.as_str(), value.as_bytes());
    }
    match framing {
        BodyFraming::Length(length) => {
            write_field(out, "content-length", length.to_string().as_bytes())
        }
        BodyFraming::Chunked => write_field(out, "transfer-encoding", b"chunked"),
        BodyFraming::Bodiless => {}
    }
    end_head(
        out,
        (!parts.headers.contains_key(DATE)).then_some(date),
        close,
    );
}

pub(super) fn write_status_line(out: &mut impl BufMut, status: StatusCode) {
    if status == StatusCode::OK {
        return out.put_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.put_slice(b"HTTP/1.1 ");
    out.put_slice(status.as_str().as_bytes());
    out.put_slice(b" ");
    out.put_slice(status.canonical_reason().unwrap_or("Unknown").as_bytes());
    out.put_slice(b"\r\n");
}

pub(super) fn write_field(out: &mut impl BufMut, name: &str, value: &[u8]) {
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

/// Writes the last fields and ends the head.
pub(super) fn end_head(out: &mut impl BufMut, date: Option<[u8; 29]>, close: bool) {
    if let Some(date) = date {
        write_field(out, "date", &date);
    }
    if close {
        write_field(out, "connection", b"close");
    }
    out.put_slice(b"\r\n");
}
