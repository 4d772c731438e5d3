//! A program that opens connections in sequence and prints the duration of each: from socket() to
//! the first and to the last byte of the response.
//!
//! A function of this program is started once per request, like a short-lived function. The plan is
//! the request, and the output is the response.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::server;

/// Options of the dial program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DialPlan {
    /// `HOST:PORT`; `None`: its own server on its own loopback.
    pub(crate) to: Option<String>,
    /// Number of measured connections; one more precedes them.
    pub(crate) count: usize,
    /// Protocol of the requests.
    pub(crate) protocol: RequestProtocol,
    /// Bytes of a response.
    pub(crate) down: u32,
    /// Bytes of a request after its head.
    pub(crate) up: u32,
    /// Bind the socket before connect(): then no other socket can replace it.
    pub(crate) bound: bool,
    /// Pause between two connections.
    pub(crate) pause: Duration,
}

/// Protocols of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestProtocol {
    /// A hundred bytes, and a response without a head.
    Plain,
    /// HTTP/1.1.
    Http,
}

/// Times and failures of the connections.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DialResult {
    /// Times from socket() to the first byte, in nanoseconds.
    pub(crate) first: Vec<u64>,
    /// Times to the last byte, in nanoseconds.
    pub(crate) last: Vec<u64>,
    /// Errors of the failed connections.
    pub(crate) failures: Vec<String>,
}

/// Reads a plan and prints its result.
pub(crate) fn run() -> io::Result<()> {
    let plan: DialPlan = serde_json::from_reader(io::stdin())?;
    let found = plan.run_plan()?;
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

impl DialPlan {
    fn run_plan(&self) -> io::Result<DialResult> {
        let to = self.target_address()?; // a name is looked up once: this is about connections
        let mut found = DialResult::default();
        // One more than counts: the first one warms up caches and routes.
        for number in 0..=self.count {
            match self.connect_once(to) {
                Ok((first, last)) if number > 0 => {
                    found.first.push(to_nanos(first));
                    found.last.push(to_nanos(last));
                }
                Ok(_) => {}
                Err(error) => found.failures.push(error.to_string()),
            }
            thread::sleep(self.pause);
        }
        Ok(found)
    }

    fn target_address(&self) -> io::Result<SocketAddr> {
        let Some(to) = &self.to else {
            return start_own_server();
        };
        let mut addresses = to.to_socket_addrs()?;
        addresses
            .next()
            .ok_or_else(|| io::Error::other(format!("no address found for {to}")))
    }

    fn connect_once(&self, to: SocketAddr) -> io::Result<(Duration, Duration)> {
        let mut request = match self.protocol {
            RequestProtocol::Plain => server::plain_request(self.down, self.up),
            RequestProtocol::Http => server::web_request(&to.to_string(), self.down, self.up),
        };
        request.resize(request.len() + self.up as usize, 0);
        let begun = Instant::now();
        let mut stream = if self.bound {
            connect_bound(to)?
        } else {
            TcpStream::connect(to)?
        };
        stream.write_all(&request)?;
        let first = self.read_answer(&mut stream, begun)?;
        Ok((first, begun.elapsed()))
    }

    /// Reads a response. Returns the time of its first byte.
    fn read_answer(&self, stream: &mut TcpStream, begun: Instant) -> io::Result<Duration> {
        let (mut piece, mut start) = ([0; 65_536], 0);
        let (mut first, mut left) = (
            None,
            (self.protocol == RequestProtocol::Plain).then_some(self.down as usize),
        );
        while left != Some(0) {
            let read = match stream.read(&mut piece[start..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => read,
            };
            first.get_or_insert_with(|| begun.elapsed());
            match &mut left {
                Some(left) => *left = left.saturating_sub(read),
                None => {
                    start += read;
                    let head = memchr::memmem::find(&piece[..start], b"\r\n\r\n").map(|at| at + 4);
                    left = head.map(|head| (self.down as usize).saturating_sub(start - head));
                    start = if left.is_some() { 0 } else { start };
                }
            }
        }
        Ok(first.unwrap_or_default())
    }
}

/// Connects with a socket that is bound first.
fn connect_bound(to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    connect(&socket, &to)?;
    Ok(socket.into())
}

/// Starts a server in this process.
fn start_own_server() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    // Ends with the process; the listener needs no shutdown.
    thread::spawn(move || server::serve_plain(&listener));
    Ok(address)
}

fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(to: Option<String>, count: usize) -> DialPlan {
        DialPlan {
            to,
            count,
            protocol: RequestProtocol::Plain,
            down: 1,
            up: 0,
            bound: false,
            pause: Duration::ZERO,
        }
    }

    #[test]
    fn each_connection_gets_a_response() {
        let plan = DialPlan {
            down: 70_000,
            up: 9,
            ..plan(None, 3)
        };
        let found = plan.run_plan().unwrap();
        assert_eq!((found.first.len(), found.last.len()), (3, 3));
        assert!(found.failures.is_empty(), "{:?}", found.failures);
        assert!(
            found
                .first
                .iter()
                .zip(&found.last)
                .all(|(first, last)| first <= last)
        );
    }

    #[test]
    fn a_failure_is_reported() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = Some(listener.local_addr().unwrap().to_string());
        drop(listener);
        let found = plan(to, 1).run_plan().unwrap();
        assert_eq!((found.first.len(), found.failures.len()), (0, 2));
    }
}
