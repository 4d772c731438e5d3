//! An answer on its way back through memory: in one message where its length is known and small, else as it comes.

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{Response, response};
use http_body::Body as _;
use http_body_util::BodyExt;
use nearpath_domain::endpoint::BodyUnwanted;
use nearpath_domain::endpoint::polled::{BodyWriter, ReceivedCall};
use nearpath_types::{PlatformError, Reason};

use super::words;
use crate::body::{Body, BoxError, DeadlinePassed};
use crate::refusal::error;
use crate::serve::is_endless;

/// Longest answer that is held until it is whole.
const HELD: u64 = 1 << 20;

/// The head, and as much of the body as goes with it.
pub(super) enum Beginning {
    Whole(Bytes),
    /// The body, and its first piece, which may be empty.
    Part(Bytes, Body),
}

/// Waits for what goes in the first message.
///
/// # Errors
/// What kept the body from coming: nothing has been sent, so the caller can still be told.
pub(super) async fn begin(response: Response<Body>) -> Result<(response::Parts, Beginning), PlatformError> {
    let (head, mut body) = response.into_parts();
    let small = body.size_hint().exact().is_some_and(|bytes| bytes <= HELD);
    if small {
        let whole = whole(body).await?;
        return Ok((head, Beginning::Whole(whole)));
    }
    if is_endless(&head.headers) {
        return Ok((head, Beginning::Part(Bytes::new(), body))); // its first event may be long in coming
    }
    let first = match data(&mut body).await {
        None => return Ok((head, Beginning::Whole(Bytes::new()))),
        Some(first) => first.map_err(|fault| cut(&*fault))?,
    };
    let over = body.is_end_stream() || matches!(data(&mut body).now_or_never(), Some(None));
    Ok((head, if over { Beginning::Whole(first) } else { Beginning::Part(first, body) }))
}

/// Sends it. A body that breaks off breaks the answer off: no caller takes half for the whole.
pub(super) async fn send(received: ReceivedCall, head: response::Parts, beginning: Beginning) {
    match beginning {
        Beginning::Whole(body) => received.send_response(words::answer(head, body)),
        Beginning::Part(first, body) => {
            let total = body.size_hint().exact().map(|left| left + first.len() as u64);
            let writer = received.begin_response(words::answer(head, first), total);
            copy(writer, body).await;
        }
    }
}

async fn copy(mut writer: BodyWriter, mut body: Body) {
    loop {
        let piece = tokio::select! {
            biased;
            piece = data(&mut body) => piece,
            () = writer.given_up() => return,
        };
        match piece {
            Some(Ok(piece)) => match writer.write_chunk(piece).await {
                Ok(()) => {}
                Err(BodyUnwanted) => return,
            },
            Some(Err(_)) => return, // the writer's end tells the caller
            None => return writer.finish_body(),
        }
    }
}

/// The next bytes; trailers have no place in memory and are left out.
async fn data(body: &mut Body) -> Option<Result<Bytes, BoxError>> {
    loop {
        match body.frame().await?.map(http_body::Frame::into_data) {
            Ok(Ok(bytes)) if bytes.is_empty() => {}
            Ok(Ok(bytes)) => return Some(Ok(bytes)),
            Ok(Err(_)) => {}
            Err(fault) => return Some(Err(fault)),
        }
    }
}

async fn whole(mut body: Body) -> Result<Bytes, PlatformError> {
    let mut whole = BytesMut::new();
    while let Some(piece) = data(&mut body).await {
        let piece = piece.map_err(|fault| cut(&*fault))?;
        if whole.is_empty() && body.is_end_stream() {
            return Ok(piece); // most come in one piece
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

fn cut(fault: &(dyn std::error::Error + Send + Sync + 'static)) -> PlatformError {
    if fault.is::<DeadlinePassed>() {
        return error(Reason::ExecTimeout, "the answer was not complete in time").governed_by("exec_timeout");
    }
    error(Reason::FunctionFailed, format!("the answer broke off: {fault}"))
}
