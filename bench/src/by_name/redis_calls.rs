//! Commands of Redis over its protocol (RESP).

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::caller_task::RedisCommand;
use crate::load::MeasureWindow;
use crate::tally::{RequestFailure, RequestTally};

/// Length of a value.
const VALUE_BYTES: usize = 100;
/// Time limit of a command, also of the first one of a callee that starts.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// A command as it is sent, and its response.
struct RedisExchange {
    request: Vec<u8>,
    response: Vec<u8>,
}

impl RedisExchange {
    fn of_command(command: RedisCommand) -> Self {
        let value = "x".repeat(VALUE_BYTES);
        let value = format!("${VALUE_BYTES}\r\n{value}\r\n");
        let (request, response) = match command {
            RedisCommand::Get => ("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_owned(), value),
            RedisCommand::Set => (
                format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n{value}"),
                "+OK\r\n".to_owned(),
            ),
        };
        Self::of_text(&request, &response)
    }

    fn of_text(request: &str, response: &str) -> Self {
        Self {
            request: request.into(),
            response: response.into(),
        }
    }

    /// Sends the command, and compares its response.
    async fn send(&self, stream: &mut TcpStream) -> Result<Duration, RequestFailure> {
        // The length is known, so the protocol need not be parsed.
        let (sent, mut response) = (Instant::now(), [0; 2 * VALUE_BYTES]);
        let response = &mut response[..self.response.len()];
        let exchange = async {
            stream.write_all(&self.request).await?;
            stream.read_exact(response).await
        };
        match tokio::time::timeout(COMMAND_TIMEOUT, exchange).await {
            Ok(Ok(_)) if *response == self.response => Ok(sent.elapsed()),
            Ok(Ok(_)) => Err(RequestFailure::Body),
            Ok(Err(_)) => Err(RequestFailure::Broken),
            Err(_) => Err(RequestFailure::Timeout),
        }
    }
}

/// Sends a command over each connection, the next one after its response.
pub(super) fn run_commands(
    addr: SocketAddr,
    command: RedisCommand,
    connections: usize,
    window: MeasureWindow,
) -> io::Result<RequestTally> {
    run_local(async {
        // Opened before the window: the command alone is measured.
        let mut opened = vec![open_stream(addr).await?];
        // Both commands find the key, whichever is first.
        let set = RedisExchange::of_command(RedisCommand::Set);
        let stored = set.send(&mut opened[0]).await;
        stored.map_err(|failure| io::Error::other(format!("SET: {failure}")))?;
        while opened.len() < connections {
            opened.push(open_stream(addr).await?);
        }
        let callers = opened
            .into_iter()
            .map(|stream| tokio::task::spawn_local(repeat_command(stream, command, window)));
        // Collected first: all callers run before one is waited for.
        let callers: Vec<_> = callers.collect();
        let mut total = RequestTally::default();
        for caller in callers {
            total.merge(&caller.await?);
        }
        Ok(total)
    })
}

async fn repeat_command(
    mut stream: TcpStream,
    command: RedisCommand,
    window: MeasureWindow,
) -> RequestTally {
    let (mut tally, exchange) = (RequestTally::default(), RedisExchange::of_command(command));
    loop {
        let outcome = exchange.send(&mut stream).await;
        let (now, is_failed) = (tokio::time::Instant::now(), outcome.is_err());
        if window.contains_moment(now) {
            tally.record_outcome(outcome);
        }
        // A broken connection stays broken.
        if now >= window.until || is_failed {
            return tally;
        }
    }
}

/// Connects and sends one `PING`. The time is from before the connection to the response.
pub(super) fn ping_once(addr: SocketAddr) -> RequestTally {
    let mut tally = RequestTally::default();
    let outcome = run_local(async {
        let started = Instant::now();
        let opened = TcpStream::connect(addr).await;
        let answered = match opened {
            Ok(mut stream) => {
                RedisExchange::of_text("PING\r\n", "+PONG\r\n")
                    .send(&mut stream)
                    .await
            }
            // A refusal is the failure that a waking function must not have.
            Err(_) => Err(RequestFailure::Connect),
        };
        Ok(answered.map(|_| started.elapsed()))
    });
    tally.record_outcome(outcome.unwrap_or(Err(RequestFailure::Generator)));
    tally
}

async fn open_stream(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn run_local<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // One thread: the callee needs the other processors.
    LocalSet::new().block_on(&runtime, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_in_commands_are_right() {
        let set = RedisExchange::of_command(RedisCommand::Set);
        let get = RedisExchange::of_command(RedisCommand::Get);
        // The stored value is what is read.
        assert!(set.request.ends_with(&get.response));
        assert_eq!(get.response.len(), "$100\r\n".len() + VALUE_BYTES + 2);
    }
}
