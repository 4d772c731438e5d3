//! A connection that costs as little as a client can: requests are written as they are, and of an answer only its status,
//! its length and its body are looked at. For loads that share the machine with what they measure.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::connection::PATIENCE;
use crate::tally::Failure;

/// More than any answer of the shop has.
const FIELDS: usize = 32;
/// Largest answer.
const LARGEST: usize = 1 << 20;

/// An open connection.
pub(crate) struct Lean {
    stream: TcpStream,
    /// What has been read; the answer's bytes come first.
    buffer: Vec<u8>,
    filled: usize,
}

/// Where an answer's parts are.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    status: u16,
    head: usize,
    length: usize,
    last: bool,
}

impl Lean {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(addr).await.map_err(|_| Failure::Connect)?;
        stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
        Ok(Self { stream, buffer: vec![0; 16 << 10], filled: 0 })
    }

    /// One request, as its bytes, and the body of its answer. After an error, or when the server closes after this answer,
    /// the connection cannot be used again.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<(&[u8], bool), Failure> {
        match tokio::time::timeout(PATIENCE, self.exchange(request)).await {
            Ok(Ok(shape)) if (200..300).contains(&shape.status) => {
                Ok((&self.buffer[shape.head..shape.head + shape.length], shape.last))
            }
            Ok(Ok(shape)) => Err(Failure::Status(shape.status, String::new())),
            Ok(Err(_)) => Err(Failure::Broken),
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> io::Result<Shape> {
        self.write(request).await?;
        self.filled = 0;
        loop {
            self.read().await?;
            if let Some(shape) = shape(&self.buffer[..self.filled])? {
                let whole = shape.head + shape.length;
                if whole > LARGEST {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.rest(whole).await?;
                return Ok(shape);
            }
        }
    }

    async fn rest(&mut self, whole: usize) -> io::Result<()> {
        if self.buffer.len() < whole {
            self.buffer.resize(whole, 0);
        }
        while self.filled < whole {
            self.read().await?;
        }
        Ok(())
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read(&mut self) -> io::Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(2 * self.filled, 0);
        }
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.filled += read;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Nothing until the whole head is there. An answer without `Content-Length` is an error.
fn shape(bytes: &[u8]) -> io::Result<Option<Shape>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(head) = response.parse(bytes).map_err(|_| invalid())? else { return Ok(None) };
    let status = response.code.ok_or_else(invalid)?;
    let field = |name: &str| response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    let length = field("content-length").and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
    let last = field("connection").is_some_and(|field| field.value.eq_ignore_ascii_case(b"close"));
    Ok(Some(Shape { status, head, length: length.ok_or_else(invalid)?, last }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Close\r\n\r\nok";
        assert_eq!(shape(text).unwrap(), Some(Shape { status: 200, head: text.len() - 2, length: 2, last: true }));
        assert_eq!(shape(&text[..20]).unwrap(), None);
        assert!(shape(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(shape(b"nonsense\r\n\r\n").is_err());
    }
}
