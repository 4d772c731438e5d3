//! An end of a session's relay, as a [`crate::migrate::RelayConnection`].

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

/// End of a relay. It ends without an error when the other end, or the relay, has closed properly.
pub struct RelayStream {
    socket: WebSocket,
    /// True if the other end has closed: all its frames have arrived, and how the connection ends
    /// is irrelevant.
    closed: bool,
    ended: bool,
}

impl RelayStream {
    /// Opens this end of the relay.
    ///
    /// The other end may come later; written frames wait for it.
    ///
    /// # Errors
    /// Fails when the rendezvous is not reached, or refuses the token.
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
                        self.closed = true; // reading on sends the close frame's answer
                        continue;
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(Error::ConnectionClosed)) | None => break,
                // Some servers reset instead of closing after the handshake; nothing is missing.
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

/// Returns the error of a close that the other end did not request; [`is_final`] says whether to
/// retry.
fn close_error(frame: Option<CloseFrame>) -> Option<io::Error> {
    let frame = frame.filter(|frame| frame.code != CloseCode::Normal)?;
    let text = format!("relay closed: {}", frame.reason.as_str());
    // Codes 1001, 1012 and 1013 invite another try; others are final (contract/rendezvous.md, "The
    // relay").
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

/// Returns whether another connection would end the same way.
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
        // A connection that broke, as opposed to a peer that violated the protocol.
        lost @ (Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(
            ProtocolError::ResetWithoutClosingHandshake | ProtocolError::SendAfterClosing,
        )) => io::Error::new(io::ErrorKind::ConnectionReset, lost.to_string()),
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
