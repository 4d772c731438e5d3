//! Writes answers (RFC 9112): the head and the first piece of the body with one system call.

use std::io;
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

use super::connection::Line;
use crate::deliver::Content;
use crate::listen::conn_state::Busy;

/// Room for a usual head.
pub(super) const HEAD: usize = 512;

/// A frame of a body, its end, or why it broke off.
type Next = Option<Result<Frame<Bytes>, BoxError>>;

/// How the end of an answer's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// There is none (RFC 9110 section 6.4.1).
    Bodiless,
    /// By its length.
    Length(u64),
    /// By an empty chunk.
    Chunked,
}

/// Writes an answer. Whether the connection may be used again: `close` or a drain ends it.
///
/// # Errors
/// When the connection fails, or the answer breaks off: its reader sees that from its framing.
pub(super) async fn write<T>(
    line: &mut Line<T>,
    response: Response<Content>,
    mut busy: Busy,
    close: bool,
    date: [u8; 29],
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (parts, mut content) = response.into_parts();
    let framing = framing(parts.status, &content);
    let close = close || line.life.is_draining();
    let mut out = BytesMut::with_capacity(HEAD);
    head(&mut out, &parts, framing, close, date);
    busy.gives();
    let (mut passed, mut last) = (0, Bytes::new());
    while framing != Framing::Bodiless && framing != Framing::Length(passed) {
        let Some(frame) = next(line, &mut content, &mut out, &mut busy).await? else { return Ok(false) };
        busy.gives();
        let Some(data) = data(frame)? else { break };
        passed += data.len() as u64;
        if framing == Framing::Length(passed) {
            last = data;
        } else {
            piece(line, &mut out, data, framing).await?;
        }
    }
    finish(&mut out, framing, passed)?;
    drop((busy, content)); // the function's place is free, and the caller may send
    line.io.write_all_buf(&mut out.chain(last)).await?;
    line.life.flushed();
    Ok(!close)
}

/// What comes next of the body; who has to wait for it writes first what there is. `None`: the caller has gone.
async fn next<T>(
    line: &mut Line<T>,
    content: &mut Content,
    out: &mut BytesMut,
    busy: &mut Busy,
) -> io::Result<Option<Next>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if let Poll::Ready(frame) = poll!(content.frame()) {
        return Ok(Some(frame));
    }
    busy.waits();
    line.io.write_all_buf(out).await?;
    Ok(line.unless_gone(content.frame()).await)
}

async fn piece<T>(line: &mut Line<T>, out: &mut BytesMut, data: Bytes, framing: Framing) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if data.is_empty() {
        return Ok(()); // an empty chunk would be the last
    }
    let chunked = framing == Framing::Chunked;
    if chunked {
        out.put_slice(format!("{:x}\r\n", data.len()).as_bytes());
    }
    line.io.write_all_buf(&mut (&mut *out).chain(data)).await?;
    if chunked {
        out.put_slice(b"\r\n");
    }
    Ok(())
}

/// A piece of the body; `None`: it has ended. Trailers go to nobody: a request that asks for them is not plain.
fn data(frame: Next) -> io::Result<Option<Bytes>> {
    match frame {
        None => Ok(None),
        Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        Some(Err(error)) => Err(io::Error::other(error)),
    }
}

/// # Errors
/// When the body was shorter than it was said to be.
fn finish(out: &mut BytesMut, framing: Framing, passed: u64) -> io::Result<()> {
    match framing {
        Framing::Length(length) if length != passed => Err(io::ErrorKind::UnexpectedEof.into()),
        Framing::Chunked => {
            out.put_slice(b"0\r\n\r\n");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn framing(status: StatusCode, content: &Content) -> Framing {
    match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Framing::Bodiless,
        _ if status.is_informational() => Framing::Bodiless,
        _ => content.size_hint().exact().map_or(Framing::Chunked, Framing::Length),
    }
}

fn head(out: &mut BytesMut, parts: &Parts, framing: Framing, close: bool, date: [u8; 29]) {
    status_line(out, parts.status);
    let own = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING];
    for (name, value) in parts.headers.iter().filter(|(name, _)| !own.contains(name)) {
        field(out, name.as_str(), value.as_bytes());
    }
    match framing {
        Framing::Length(length) => field(out, "content-length", length.to_string().as_bytes()),
        Framing::Chunked => field(out, "transfer-encoding", b"chunked"),
        Framing::Bodiless => {}
    }
    end(out, (!parts.headers.contains_key(DATE)).then_some(date), close);
}

pub(super) fn status_line(out: &mut BytesMut, status: StatusCode) {
    out.put_slice(b"HTTP/1.1 ");
    out.put_slice(status.as_str().as_bytes());
    out.put_slice(b" ");
    out.put_slice(status.canonical_reason().unwrap_or("Unknown").as_bytes());
    out.put_slice(b"\r\n");
}

pub(super) fn field(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

/// The last fields, and the end of the head.
pub(super) fn end(out: &mut BytesMut, date: Option<[u8; 29]>, close: bool) {
    if let Some(date) = date {
        field(out, "date", &date);
    }
    if close {
        field(out, "connection", b"close");
    }
    out.put_slice(b"\r\n");
}
