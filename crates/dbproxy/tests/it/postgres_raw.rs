//! A client that can leave in the middle of anything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A message of the server.
pub(crate) type RawMessage = (u8, Vec<u8>);

pub(crate) struct RawClient {
    pub(crate) stream: TcpStream,
    read: BytesMut,
    /// Process id and secret for cancellations.
    pub(crate) key: (i32, i32),
    /// Parameters as last reported.
    pub(crate) parameters: BTreeMap<String, String>,
}

impl RawClient {
    /// Logs in with `options`; the error is the server's text.
    pub(crate) async fn log_in(at: SocketAddr, options: &[(&str, &str)]) -> Result<Self, String> {
        let mut raw = Self {
            stream: TcpStream::connect(at).await.unwrap(),
            read: BytesMut::new(),
            key: (0, 0),
            parameters: BTreeMap::new(),
        };
        let mut out = BytesMut::new();
        let named = [("user", "postgres"), ("database", "postgres")];
        frontend::startup_message(named.into_iter().chain(options.iter().copied()), &mut out)
            .unwrap();
        raw.stream.write_all(&out).await.unwrap();
        for (tag, body) in raw.read_until_ready().await? {
            if tag == b'K' {
                let number = |at: usize| i32::from_be_bytes(body[at..at + 4].try_into().unwrap());
                raw.key = (number(0), number(4));
            }
        }
        Ok(raw)
    }

    /// Logs in where that must succeed.
    pub(crate) async fn new(at: SocketAddr) -> Self {
        Self::log_in(at, &[]).await.unwrap()
    }

    pub(crate) async fn send(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let mut out = BytesMut::new();
        write(&mut out);
        // The server may have closed the connection already; the next read shows that.
        let _ = self.stream.write_all(&out).await;
    }

    /// Runs a text to its end. Returns the first columns of its rows, or the error's text.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Vec<String>, String> {
        self.send(|out| frontend::query(sql, out).unwrap()).await;
        self.read_rows().await
    }

    /// Reads the rows up to ReadyForQuery.
    pub(crate) async fn read_rows(&mut self) -> Result<Vec<String>, String> {
        let messages = self.read_until_ready().await?;
        Ok(messages
            .iter()
            .filter(|(tag, _)| *tag == b'D')
            .map(|(_, body)| first_column(body))
            .collect())
    }

    /// Reads all messages up to ReadyForQuery; the first error's text, if there is one.
    pub(crate) async fn read_until_ready(&mut self) -> Result<Vec<RawMessage>, String> {
        let (mut all, mut error) = (Vec::new(), None);
        loop {
            let (tag, body) = self
                .read_message()
                .await
                .ok_or_else(|| error.take().unwrap_or_else(|| "closed".to_owned()))?;
            if tag == b'E' {
                let text = error_text(&body);
                if text.starts_with("FATAL") {
                    return Err(text);
                }
                error.get_or_insert(text);
            }
            if tag == b'S' {
                let mut texts = body.split(|&byte| byte == 0).map(String::from_utf8_lossy);
                let mut next = || texts.next().unwrap().into_owned();
                self.parameters.insert(next(), next());
            }
            all.push((tag, body));
            if tag == b'Z' {
                return error.map_or(Ok(all), Err);
            }
        }
    }

    /// Reads the next message. `None`: the other side has closed.
    pub(crate) async fn read_message(&mut self) -> Option<RawMessage> {
        let reading = async {
            loop {
                if self.read.len() >= 5 {
                    let length = u32::from_be_bytes(self.read[1..5].try_into().unwrap()) as usize;
                    if self.read.len() > length {
                        let message = self.read.split_to(length + 1);
                        return Some((message[0], message[5..].to_vec()));
                    }
                }
                if self.stream.read_buf(&mut self.read).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("no reply within 20 s")
    }

    /// Leaves, with a Terminate or without.
    pub(crate) async fn leave(mut self, properly: bool) {
        if properly {
            self.send(frontend::terminate).await;
        }
    }

    /// Asks the server at `at` to cancel the statement of `key`.
    pub(crate) async fn cancel(at: SocketAddr, key: (i32, i32)) {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let mut out = BytesMut::new();
        frontend::cancel_request(key.0, key.1, &mut out);
        stream.write_all(&out).await.unwrap();
        let _ = stream.read(&mut [0]).await;
    }
}

fn first_column(body: &[u8]) -> String {
    let length = i32::from_be_bytes(body[2..6].try_into().unwrap());
    let Ok(length) = usize::try_from(length) else {
        return "null".into();
    };
    String::from_utf8_lossy(&body[6..6 + length]).into_owned()
}

/// Returns severity, code and text.
fn error_text(body: &[u8]) -> String {
    let fields = body
        .split(|&byte| byte == 0)
        .filter_map(|field| field.split_first());
    let wanted = fields.filter(|(name, _)| matches!(name, b'V' | b'C' | b'M'));
    wanted
        .map(|(_, value)| String::from_utf8_lossy(value))
        .collect::<Vec<_>>()
        .join(" ")
}
