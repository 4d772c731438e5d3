//! A program that opens connections, one after another, and says what each one took: from socket() to the answer's first byte, and to its last.
//!
//! As a function it is started once a request, as a short-lived function is; the plan is the request, what it prints the answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::server;

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// `HOST:PORT`; nothing: a server of its own, on its own loopback.
    pub(crate) to: Option<String>,
    /// Connections that count; one more comes before them.
    pub(crate) count: usize,
    /// Bytes of an answer.
    pub(crate) down: u32,
    /// Bytes of a request, beside the hundred that each has.
    pub(crate) up: u32,
    /// Between two connections.
    pub(crate) pause: Duration,
}

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// From socket() to the first byte, in nanoseconds.
    pub(crate) first: Vec<u64>,
    /// To the last one.
    pub(crate) last: Vec<u64>,
    /// Why some connections failed.
    pub(crate) failures: Vec<String>,
}

/// Reads a plan and prints what came of it.
pub(crate) fn run() -> io::Result<()> {
    let plan: Plan = serde_json::from_reader(io::stdin())?;
    let found = plan.carry_out()?;
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

impl Plan {
    fn carry_out(&self) -> io::Result<Found> {
        let to = self.address()?; // a name is looked up once: this is about connections
        let mut found = Found::default();
        for number in 0..=self.count {
            match self.once(to) {
                Ok((first, last)) if number > 0 => {
                    found.first.push(nanos(first));
                    found.last.push(nanos(last));
                }
                Ok(_) => {}
                Err(error) => found.failures.push(error.to_string()),
            }
            thread::sleep(self.pause);
        }
        Ok(found)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        let Some(to) = &self.to else { return own() };
        let mut addresses = to.to_socket_addrs()?;
        addresses.next().ok_or_else(|| io::Error::other(format!("{to} has no address")))
    }

    fn once(&self, to: SocketAddr) -> io::Result<(Duration, Duration)> {
        let body = vec![0; self.up as usize];
        let begun = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        stream.write_all(&server::request(self.down, self.up))?;
        stream.write_all(&body)?;
        let mut left = self.down as usize;
        let mut piece = [0; 65_536];
        let mut first = None;
        while left > 0 {
            match stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left = left.saturating_sub(read),
            }
            first.get_or_insert_with(|| begun.elapsed());
        }
        Ok((first.unwrap_or_default(), begun.elapsed()))
    }
}

/// A server in this process.
fn own() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || server::serve(&listener));
    Ok(address)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_answered() {
        let plan = Plan { to: None, count: 3, down: 70_000, up: 9, pause: Duration::ZERO };
        let found = plan.carry_out().unwrap();
        assert_eq!((found.first.len(), found.last.len()), (3, 3));
        assert!(found.failures.is_empty(), "{:?}", found.failures);
        assert!(found.first.iter().zip(&found.last).all(|(first, last)| first <= last));
    }

    #[test]
    fn a_failure_is_told() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = Some(listener.local_addr().unwrap().to_string());
        drop(listener);
        let found = Plan { to, count: 1, down: 1, up: 0, pause: Duration::ZERO }.carry_out().unwrap();
        assert_eq!((found.first.len(), found.failures.len()), (0, 2));
    }
}
