//! Response through shared memory: in one message where its length is known and small, else in
//! parts.

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{Response, response};
use http_body::Body as _;
use http_body_util::BodyExt;
use nearpath_domain::endpoint::BodyUnwanted;
use nearpath_domain::endpoint::polled::{BodyWriter, ReceivedCall};
use nearpath_types::{PlatformError, Reason};

use super::message;
use crate::errors::watchdog_error;
use crate::response_body::{AnyError, DeadlinePassed, WatchdogBody};
use crate::serve::is_endless;

/// Largest response that is buffered whole, in bytes.
const MAX_BUFFERED_BYTES: u64 = 1 << 20;

/// Beginning of a response's body, which goes with the head.
pub(super) enum ResponseStart {
    Complete(Bytes),
    /// First bytes, which may be none, and the rest of the body.
    Streaming(Bytes, WatchdogBody),
}

/// Waits for the bytes of the first message.
///
/// # Errors
/// The body's error: nothing was sent, so the caller can still get it.
pub(super) async fn begin_response(
    response: Response<WatchdogBody>,
) -> Result<(response::Parts, ResponseStart), PlatformError> {
    let (head, mut body) = response.into_parts();
    // One message spares the caller a reader, and the body its flow control.
    let small = body
        .size_hint()
        .exact()
        .is_some_and(|bytes| bytes <= MAX_BUFFERED_BYTES);
    if small {
        let whole = collect_body(body).await?;
        return Ok((head, ResponseStart::Complete(whole)));
    }
    if is_endless(&head.headers) {
        return Ok((head, ResponseStart::Streaming(Bytes::new(), body))); // its first event may be long in coming
    }
    let first = match next_data(&mut body).await {
        None => return Ok((head, ResponseStart::Complete(Bytes::new()))),
        Some(first) => first.map_err(|fault| body_error(&*fault))?,
    };
    // Polled without waiting: many bodies end right after their first piece, and one message is
    // enough.
    let is_complete =
        body.is_end_stream() || matches!(next_data(&mut body).now_or_never(), Some(None));
    Ok((
        head,
        if is_complete {
            ResponseStart::Complete(first)
        } else {
            ResponseStart::Streaming(first, body)
        },
    ))
}

/// Sends the response. A body that breaks off breaks it, so that no caller takes a part for the
/// whole.
pub(super) async fn send_response(
    received: ReceivedCall,
    head: response::Parts,
    start: ResponseStart,
) {
    match start {
        ResponseStart::Complete(body) => received.send_response(message::call_response(head, body)),
        ResponseStart::Streaming(first, body) => {
            // Declared where it is known, so that the caller can tell a cut from the end.
            let total = body
                .size_hint()
                .exact()
                .map(|left| left + first.len() as u64);
            let writer = received.begin_response(message::call_response(head, first), total);
            copy_body(writer, body).await;
        }
    }
}

async fn copy_body(mut writer: BodyWriter, mut body: WatchdogBody) {
    loop {
        let piece = tokio::select! {
            biased;
            // The body first: bytes at hand are sent before a cancellation counts.
            piece = next_data(&mut body) => piece,
            () = writer.given_up() => return,
        };
        match piece {
            Some(Ok(piece)) => match writer.write_chunk(piece).await {
                Ok(()) => {}
                Err(BodyUnwanted) => return,
            },
            Some(Err(_)) => return, // dropping the writer breaks the response off
            None => return writer.finish_body(),
        }
    }
}

/// Returns the next bytes. Trailers have no place in shared memory and are dropped.
async fn next_data(body: &mut WatchdogBody) -> Option<Result<Bytes, AnyError>> {
    loop {
        match body.frame().await?.map(http_body::Frame::into_data) {
            // Empty pieces would cost a message each.
            Ok(Ok(bytes)) if bytes.is_empty() => {}
            Ok(Ok(bytes)) => return Some(Ok(bytes)),
            Ok(Err(_)) => {}
            Err(fault) => return Some(Err(fault)),
        }
    }
}

async fn collect_body(mut body: WatchdogBody) -> Result<Bytes, PlatformError> {
    let mut whole = BytesMut::new();
    while let Some(piece) = next_data(&mut body).await {
        let piece = piece.map_err(|fault| body_error(&*fault))?;
        if whole.is_empty() && body.is_end_stream() {
            return Ok(piece); // most come in one piece
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

fn body_error(fault: &(dyn std::error::Error + Send + Sync + 'static)) -> PlatformError {
    // The deadline is the watchdog's own cut; every other is the function's.
    if fault.is::<DeadlinePassed>() {
        return watchdog_error(Reason::ExecTimeout, "the answer was not complete in time")
            .governed_by("exec_timeout");
    }
    watchdog_error(
        Reason::FunctionFailed,
        format!("the answer broke off: {fault}"),
    )
}
