//! The answer to a request that went the shortest way, see [`crate::fast_path`]: its head goes from its slot to the
//! caller, and its body too, unless the caller is slow: then it is copied, so that the slot is free.

use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::poll;
use http::StatusCode;
use nearpath_domain::CallReply;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::connection::Line;
use super::response::{self, HEAD, field, status_line};
use crate::fast_path::{Sent, Whole};
use crate::listen::client_requests::Visit;
use crate::listen::conn_state::Busy;
use crate::request::seconds;

/// Waits for the answer and writes it. Whether another request may come.
pub(super) async fn answered<T>(
    visit: &Visit,
    line: &mut Line<T>,
    whole: &Whole,
    mut sent: Sent,
    mut busy: Busy,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let Some(outcome) = line.unless_gone(&mut sent.answer).await else { return Ok(false) };
    let close = whole.closes() || line.life.is_draining();
    let mut out = BytesMut::with_capacity(HEAD);
    let mut answer = match outcome {
        Ok(reply) if reply.did_not_run() => {
            let going_on = sent.go_on(visit.lane.clone(), visit.peer.clone(), whole, reply);
            let Some(answer) = line.unless_gone(Box::pin(going_on)).await else { return Ok(false) };
            answer
        }
        Ok(reply) => match head(&mut out, visit, &sent, &reply, close) {
            Some(status) => {
                let body = if is_bodiless(status) { Bytes::new() } else { reply.body.into() };
                sent.complete(status.as_u16(), body.len() as u64);
                busy.gives();
                drop(busy);
                write(line, out, body).await?;
                return Ok(!close);
            }
            None => sent.answer_long(&visit.lane, &visit.peer, whole, reply),
        },
        Err(error) => sent.fail(&visit.lane, &visit.peer, whole, error),
    };
    visit.advertise(answer.headers_mut());
    response::write(line, answer, busy, close, visit.lane.date()).await
}

async fn write<T>(line: &mut Line<T>, out: BytesMut, body: Bytes) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut all = out.chain(body);
    let at_once = poll!(pin!(line.io.write_all_buf(&mut all)));
    match at_once {
        Poll::Ready(written) => written?,
        Poll::Pending => {
            let mut left = BytesMut::with_capacity(all.remaining());
            left.put(all);
            line.io.write_all_buf(&mut left).await?;
        }
    }
    line.life.flushed();
    Ok(())
}

fn is_bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Writes the answer's head, as [`crate::deliver`] makes it on the long way. `None`: it has to go there.
fn head(out: &mut BytesMut, visit: &Visit, sent: &Sent, reply: &CallReply, close: bool) -> Option<StatusCode> {
    let status = if reply.status == 0 { StatusCode::OK } else { StatusCode::from_u16(reply.status).ok()? };
    if reply.reader.is_some() || status.is_informational() || status.as_u16() > 599 {
        return None;
    }
    status_line(out, status);
    let (mut date, mut took) = (true, true);
    for part in reply.head_fields() {
        let part = part.ok()?;
        match part.name {
            "connection" | "transfer-encoding" | "upgrade" | "te" | "trailer" => return None,
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "proxy-authorization" => return None,
            "x-call-id" | "x-start-time" | "x-served-by" | "content-length" => continue,
            "alt-svc" if visit.alt_svc.is_some() => continue,
            "date" => date = false,
            "x-duration-seconds" => took = false,
            _ => {}
        }
        if is_field(part.name, part.value) {
            field(out, part.name, part.value);
        }
    }
    if reply.is_platform {
        field(out, "x-openfaas-internal", b"function");
    }
    field(out, "x-call-id", sent.call_id.as_bytes());
    field(out, "x-start-time", sent.start_time.as_bytes());
    field(out, "x-served-by", visit.lane.served_by.as_bytes());
    if let Some(alt_svc) = &visit.alt_svc {
        field(out, "alt-svc", alt_svc.as_bytes());
    }
    if took {
        let time = Instant::now().saturating_duration_since(sent.record.started());
        field(out, "x-duration-seconds", seconds(time).as_bytes());
    }
    if !is_bodiless(status) {
        field(out, "content-length", reply.body.len().to_string().as_bytes());
    }
    response::end(out, date.then(|| visit.lane.date()), close);
    Some(status)
}

/// Whether HTTP knows such a field (RFC 9110 section 5): who wrote it may be hostile.
fn is_field(name: &str, value: &[u8]) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    name.bytes().all(token) && value.iter().all(text)
}
