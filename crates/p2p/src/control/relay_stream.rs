//! One end of a session's relay, as a [`crate::migrate::Relay`].

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::dial::dial;
use super::{ControlSettings, DialError};
use crate::message::SignedToken;
use crate::migrate::{RelayConnection, StreamFrame};
use crate::websocket::{self, WebSocket};

/// See the module. It ends without an error when the other end, or the relay, has closed it properly.
pub struct RelayStream {
    socket: WebSocket,
    /// The other end has closed: what was sent before has all come, and how the connection ends does not matter.
    closed: bool,
    ended: bool,
}

impl RelayStream {
    /// Opens this end of the relay. The other end may come later; what is written waits for it.
    ///
    /// # Errors
    /// When the rendezvous is not reached, or does not take the pass.
    pub async fn open(settings: &ControlSettings, token: &SignedToken) -> Result<Self, DialError> {
        let (socket, _) = dial(
            settings,
            websocket::RELAY_PATH,
            &token.0,
            websocket::relay_config(),
        )
        .await?;
        Ok(Self {
            socket,
            closed: false,
            ended: false,
        })
    }
}

impl Stream for RelayStream {
    type Item = io::Result<StreamFrame>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<StreamFrame>>> {
        while !self.ended {
            let frame = match ready!(self.socket.poll_next_unpin(cx)) {
                Some(Ok(Message::Binary(bytes))) => Ok(StreamFrame::Bytes(bytes)),
                Some(Ok(Message::Text(text))) => Ok(StreamFrame::Text(text.as_str().to_owned())),
                Some(Ok(Message::Close(frame))) => match close_error(frame) {
                    Some(error) => {
                        self.ended = true;
                        Err(error)
                    }
                    None => {
                        self.closed = true; // reading on sends the answer
                        continue;
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(Error::ConnectionClosed)) | None => break,
                Some(Err(_)) if self.closed => break,
                Some(Err(error)) => {
                    self.ended = true;
                    Err(relay_io_error(error))
                }
            };
            return Poll::Ready(Some(frame));
        }
        self.ended = true;
        Poll::Ready(None)
    }
}

impl RelayConnection for RelayStream {}

/// A close that was not meant by the other end. [`is_final`] tells what it is good for.
fn close_error(frame: Option<CloseFrame>) -> Option<io::Error> {
    let frame = frame.filter(|frame| frame.code != CloseCode::Normal)?;
    let text = format!("the relay ended: {}", frame.reason.as_str());
    let is_temporary = matches!(
        frame.code,
        CloseCode::Restart | CloseCode::Again | CloseCode::Away
    );
    let kind = if is_temporary {
        io::ErrorKind::ConnectionReset
    } else {
        io::ErrorKind::ConnectionAborted
    };
    Some(io::Error::new(kind, text))
}

/// Whether another connection would end as this one did.
pub(super) fn is_final(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::InvalidData
    )
}

impl Sink<StreamFrame> for RelayStream {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_ready_unpin(cx).map_err(relay_io_error)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: StreamFrame) -> io::Result<()> {
        let message = match frame {
            StreamFrame::Bytes(bytes) => Message::Binary(bytes),
            StreamFrame::Text(text) => Message::text(text),
        };
        self.socket
            .start_send_unpin(message)
            .map_err(relay_io_error)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_flush_unpin(cx).map_err(relay_io_error)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_close_unpin(cx).map_err(relay_io_error)
    }
}

fn relay_io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        gone @ (Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(
            ProtocolError::ResetWithoutClosingHandshake | ProtocolError::SendAfterClosing,
        )) => io::Error::new(io::ErrorKind::ConnectionReset, gone.to_string()),
        other => io::Error::new(io::ErrorKind::ConnectionAborted, other.to_string()),
    }
}

impl fmt::Debug for RelayStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayStream")
            .field("over", &self.ended)
            .finish_non_exhaustive()
    }
}
