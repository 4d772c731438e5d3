//! One plain request to a function's own server or to another node, and its response up to a short body. What has
//! arrived is checked without waiting, so that a task or an event loop can drive it.

use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use tokio::time::{timeout, timeout_at};

use super::body_decoder::{BodyDecoder, DecodedPart};
use super::connection::ResponseHeadError;
use super::pooled_connection::PooledConnection;
use super::response_body::Http1Body;
use super::response_head::{
    BodyFraming, HeadParser, InvalidResponse, MAX_HEAD_BYTES, ResponseHead,
};
use crate::event_loop::PolledSocket;

/// Maximum length of a body that is awaited with its head. Longer ones stream.
const MAX_BUFFERED_BODY_BYTES: u64 = 64 * 1024;
/// Time for a short body to follow its head. Simple servers write them apart, within some 100 µs.
const BODY_GRACE: Duration = Duration::from_millis(2);

/// Response of a function's own server, or of another node.
pub(crate) struct ServerResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: ServerBody,
}

/// Body of a response.
pub(crate) enum ServerBody {
    /// All of it. The connection is free again.
    Buffered(Bytes),
    /// Parts as they arrive.
    Stream(Box<Http1Body>),
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

/// Part of a response that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// No whole head.
    PartOfHead,
    /// The head, and a part of its short body.
    PartOfBody,
    /// All that is awaited: a short body is complete, any other one streams.
    Response,
}

/// A request on its connection, until its response has arrived. Dropping it closes the connection,
/// which tells the server that its caller has left.
pub(crate) struct Exchange {
    connection: PooledConnection,
    head_bytes: Vec<u8>,
    body: Bytes,
    /// Bytes of head and body that are written.
    written: usize,
    write_error: Option<io::Error>,
    parser: HeadParser,
    /// Bytes in the buffer in which no blank line ends.
    searched_bytes: usize,
    head: Option<ResponseHead>,
}

impl Exchange {
    /// Prepares a request. A body that fits behind the head is copied: one buffer costs the kernel
    /// less than two.
    pub(crate) fn new(
        mut connection: PooledConnection,
        mut head: Vec<u8>,
        mut body: Bytes,
    ) -> Self {
        connection.note_request(head.len() + body.len());
        if body.len() <= head.capacity() - head.len() {
            head.extend_from_slice(&body);
            body = Bytes::new();
        }
        Self {
            connection,
            head_bytes: head,
            body,
            written: 0,
            write_error: None,
            parser: HeadParser::default(),
            searched_bytes: 0,
            head: None,
        }
    }

    /// Returns the socket, to attach a handler to it.
    pub(crate) fn socket(&self) -> &PolledSocket {
        self.connection.socket()
    }

    /// Writes the request without waiting. Returns whether nothing is left of it.
    pub(crate) fn try_write(&mut self) -> bool {
        loop {
            let (head, body) = unwritten(&self.head_bytes, &self.body, self.written);
            if head.is_empty() && body.is_empty() {
                return !self.connection.has_unsent_bytes();
            }
            match self.connection.try_write(head, body) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => {
                    self.write_error = Some(error);
                    return false;
                }
            }
        }
    }

    /// Reads without waiting, and returns what has arrived then.
    ///
    /// # Errors
    /// If no response will come.
    pub(crate) fn try_read(&mut self) -> Result<Arrived, ExchangeError> {
        loop {
            let read = self.connection.try_read_more();
            let has_read = matches!(read, Ok(1..));
            if !is_would_block(&read) {
                self.check_read(read)?;
            }
            let arrived = self.check_arrived()?;
            // A full buffer may have left more, of which no event tells.
            let reads_on = has_read && self.connection.may_have_more();
            if arrived == Arrived::Response || !reads_on {
                return Ok(arrived);
            }
        }
    }

    /// Has the server send what it holds back for an acknowledgement.
    pub(crate) fn acknowledge_now(&self) {
        self.connection.acknowledge_now();
    }

    /// Completes the exchange in a task.
    pub(crate) async fn complete_by(
        self,
        deadline: Instant,
    ) -> Result<ServerResponse, ExchangeError> {
        let in_time = timeout_at(deadline.into(), self.complete()).await;
        in_time.map_err(|_| ExchangeError::Timeout)?
    }

    async fn complete(mut self) -> Result<ServerResponse, ExchangeError> {
        if self.write_error.is_none() {
            // Of the fields alone: the connection is borrowed for the write.
            let (head, body) = unwritten(&self.head_bytes, &self.body, self.written);
            let written = self.connection.write_rest(&mut head.chain(body)).await;
            self.write_error = written.err();
            self.written = self.head_bytes.len() + self.body.len();
        }
        let mut arrived = self.check_arrived()?;
        // Unlike TCP, sockmap keeps the connection open after it refuses a message. A response that has not
        // come never will.
        if arrived == Arrived::PartOfHead && self.is_refused() {
            arrived = self.try_read()?;
            if arrived == Arrived::PartOfHead
                && let Some(error) = self.write_error.take()
            {
                return Err(ResponseHeadError::from(error).into());
            }
        }
        while arrived == Arrived::PartOfHead {
            let read = self.connection.read_more().await;
            self.check_read(read)?;
            arrived = self.check_arrived()?;
        }
        if arrived == Arrived::PartOfBody {
            self.await_body().await;
        }
        self.into_response()
    }

    /// Returns whether the kernel has refused a part of the request for lack of memory.
    fn is_refused(&self) -> bool {
        let error = self.write_error.as_ref();
        error.is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory)
    }

    /// Waits a moment for a body that follows its head: the head of a slow one must not wait for it.
    async fn await_body(&mut self) {
        self.acknowledge_now();
        let reading = async {
            while self.check_arrived() == Ok(Arrived::PartOfBody) {
                if !matches!(self.connection.read_more().await, Ok(1..)) {
                    return; // the stream tells its caller
                }
            }
        };
        let _ = timeout(BODY_GRACE, reading).await; // what is late streams
    }

    /// # Errors
    /// If the server has closed before its whole head came.
    fn check_read(&mut self, read: io::Result<usize>) -> Result<(), ResponseHeadError> {
        let error = match read {
            Ok(1..) => return Ok(()),
            _ if self.head.is_some() => return Ok(()), // the stream tells its caller
            Ok(0) => ResponseHeadError::Closed,
            Err(error) => error.into(),
        };
        self.connection.note_loss();
        if let Some(why) = self.connection.refusal() {
            return Err(ResponseHeadError::Refused(why));
        }
        // A server may answer and close before it has read the whole request; this one did not.
        Err(self.write_error.take().map_or(error, Into::into))
    }

    fn check_arrived(&mut self) -> Result<Arrived, InvalidResponse> {
        if self.head.is_none() && !self.parse_head()? {
            return Ok(Arrived::PartOfHead);
        }
        Ok(match self.awaited_body_bytes() {
            Some(length) if self.connection.buffer.len() < length => Arrived::PartOfBody,
            _ => Arrived::Response,
        })
    }

    /// Returns whether the final head has arrived.
    fn parse_head(&mut self) -> Result<bool, InvalidResponse> {
        let buffer = &mut self.connection.buffer;
        // Not for each piece: parsing a head again for every byte would cost its square.
        let may_be_whole =
            has_blank_line(&buffer[self.searched_bytes..]) || buffer.len() >= MAX_HEAD_BYTES; // the parser refuses it
        if may_be_whole && let Some(mut head) = self.parser.parse(buffer)? {
            // The server would take a later request for the rest of this one.
            let length = self.head_bytes.len() + self.body.len();
            head.keeps_alive &= self.write_error.is_none() && self.written == length;
            self.connection.note_response();
            self.head = Some(head);
            return Ok(true);
        }
        // The last bytes may begin the blank line.
        self.searched_bytes = buffer.len().saturating_sub(3);
        Ok(false)
    }

    /// Returns the length of a body that is awaited with its head.
    fn awaited_body_bytes(&self) -> Option<usize> {
        let head = self.head.as_ref()?;
        match head.framing {
            // `Connection` may list fields to strip. Only the pipeline does that, and it streams.
            BodyFraming::Length(length)
                if length <= MAX_BUFFERED_BODY_BYTES && !head.names_hop_fields =>
            {
                Some(length as usize)
            }
            _ => None,
        }
    }

    /// Returns the response. A body that has not arrived streams.
    ///
    /// # Errors
    /// If what has arrived is invalid, or no head has: the caller can still be told.
    pub(crate) fn into_response(mut self) -> Result<ServerResponse, ExchangeError> {
        let awaited = self.awaited_body_bytes();
        let Some(head) = self.head.take() else {
            return Err(ResponseHeadError::Closed.into());
        };
        let buffer = &mut self.connection.buffer;
        let body = match awaited {
            Some(length) if buffer.len() >= length => Some(buffer.split_to(length).freeze()),
            Some(_) => None,
            None => take_arrived_chunks(buffer, &head).map_err(ResponseHeadError::from)?,
        };
        let body = match body {
            Some(body) => {
                if head.keeps_alive {
                    self.connection.put_back();
                }
                ServerBody::Buffered(body)
            }
            None => ServerBody::Stream(Box::new(Http1Body::new(self.connection, &head))),
        };
        Ok(ServerResponse { head, body })
    }
}

/// Returns what is left of head and body.
fn unwritten<'a>(head: &'a [u8], body: &'a [u8], written: usize) -> (&'a [u8], &'a [u8]) {
    let written_head = written.min(head.len());
    (&head[written_head..], &body[written - written_head..])
}

fn is_would_block(read: &io::Result<usize>) -> bool {
    read.as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

impl From<InvalidResponse> for ExchangeError {
    fn from(error: InvalidResponse) -> Self {
        ResponseHeadError::from(error).into()
    }
}

/// Returns whether a head may end here. Lines may end in LF alone for the parser, which decides.
fn has_blank_line(bytes: &[u8]) -> bool {
    let has = |end: &[u8]| bytes.windows(end.len()).any(|part| part == end);
    has(b"\n\r\n") || has(b"\n\n")
}

/// Takes a chunked body that has arrived whole; `None`: it streams.
///
/// # Errors
/// If what has arrived is invalid.
fn take_arrived_chunks(
    buffer: &mut BytesMut,
    head: &ResponseHead,
) -> Result<Option<Bytes>, InvalidResponse> {
    if head.framing != BodyFraming::Chunked || buffer.is_empty() {
        return Ok(None);
    }
    // On a copy: what turns out to be incomplete streams from its beginning.
    let mut rest = buffer.clone();
    let mut decoder = BodyDecoder::new(head.framing);
    let mut body = BytesMut::new();
    while let DecodedPart::Data(data) = decoder.decode(&mut rest)? {
        body.extend_from_slice(&data);
    }
    if !decoder.has_ended() || head.names_hop_fields {
        return Ok(None);
    }
    *buffer = rest;
    Ok(Some(body.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_end_a_head() {
        for (bytes, is_end) in [
            (&b"HTTP/1.1 200 OK\r\nx: 1\r\n\r\n"[..], true),
            (b"\n\n", true),
            (b"\r\n\r\n", true),
            (b"\n\r", false),
            (b"HTTP/1.1 200 OK\r\nx: 1\r\n", false),
            (b"\r", false),
            (b"", false),
        ] {
            assert_eq!(has_blank_line(bytes), is_end, "{bytes:?}");
        }
    }
}
