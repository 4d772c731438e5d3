//! The body type of messages that nearpath produces itself and of those that it forwards.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::lingering_close::WatchedBody;

/// Any error that can be sent between threads.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A message's body. Only [`Body::boxed`] allocates.
#[derive(Debug, Default)]
pub struct Body(BodyKind);

#[derive(Debug, Default)]
enum BodyKind {
    #[default]
    Empty,
    Full(Bytes),
    Incoming(WatchedBody),
    Boxed(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    /// A body of zero bytes.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Wraps any other body, in one allocation.
    pub fn boxed<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(BodyKind::Boxed(body.map_err(Into::into).boxed_unsync()))
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        Self(if bytes.is_empty() {
            BodyKind::Empty
        } else {
            BodyKind::Full(bytes)
        })
    }
}

impl Body {
    /// Wraps a body that hyper receives from a peer.
    pub fn incoming(body: WatchedBody) -> Self {
        Self(BodyKind::Incoming(body))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            BodyKind::Empty => Poll::Ready(None),
            BodyKind::Full(bytes) => {
                // A full body yields one frame; `Empty` then reports the end.
                let bytes = std::mem::take(bytes);
                self.0 = BodyKind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            BodyKind::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            BodyKind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Empty => true,
            BodyKind::Full(_) => false,
            BodyKind::Incoming(body) => body.is_end_stream(),
            BodyKind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Empty => SizeHint::with_exact(0),
            BodyKind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyKind::Incoming(body) => body.size_hint(),
            BodyKind::Boxed(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_kind_gives_its_bytes_once() {
        let boxed = Body::boxed(http_body_util::Full::new(Bytes::from_static(b"abc")));
        for (body, expected) in [
            (Body::empty(), ""),
            (Body::from("abc"), "abc"),
            (boxed, "abc"),
        ] {
            assert_eq!(body.size_hint().exact(), Some(expected.len() as u64));
            assert_eq!(body.collect().await.unwrap().to_bytes(), expected);
        }
    }

    #[test]
    fn an_empty_body_is_at_its_end() {
        assert!(Body::from("").is_end_stream());
        assert!(Body::empty().is_end_stream());
    }
}
