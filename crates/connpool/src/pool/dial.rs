//! Opening a connection: every address of the destination in turn, until one takes it or the time is up.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nearpath_kernel::sockets::lock_to_peer;
use nearpath_types::egress::Host;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{timeout, timeout_at};

use super::resolver::Names;
use crate::destination::Destination;

/// Longest time for one connection, all addresses together.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// Least time for one address, as long as there is any.
const LEAST: Duration = Duration::from_millis(500);
/// A destination that has been silent for so long is asked whether it is still there; three questions without an answer end the connection.
const SILENCE: Duration = Duration::from_secs(60);
const BETWEEN: Duration = Duration::from_secs(10);
const QUESTIONS: u32 = 3;

/// Connects to a destination by `deadline`, but within [`LONGEST`]; `gives`: it may be given away, if it is one that may.
pub(crate) async fn dial(names: &Names, to: &Destination, deadline: Instant, gives: bool) -> io::Result<TcpStream> {
    let begun = Instant::now();
    let deadline = deadline.min(begun + LONGEST);
    let found = timeout_at(deadline.into(), addresses(names, &to.egress.host)).await;
    let addresses = found.map_err(|_| late("no name server answered"))??;
    let why = match at_one_of(&addresses, to, deadline, gives).await {
        Ok(stream) => return Ok(stream),
        Err(why) => why,
    };
    match timeout_at(deadline.into(), moved(names, &to.egress.host, &addresses, begun)).await {
        Ok(Some(addresses)) => at_one_of(&addresses, to, deadline, gives).await,
        _ => Err(why),
    }
}

async fn at_one_of(addresses: &[IpAddr], to: &Destination, deadline: Instant, gives: bool) -> io::Result<TcpStream> {
    let mut why = late("it has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = (left / (addresses.len() - tried) as u32).max(LEAST).min(left);
        match timeout(share, connect(to, *address, gives)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                why = io::Error::new(error.kind(), format!("{address} did not take the connection: {error}"))
            }
            Err(_) => why = late(&format!("{address} did not answer within {share:?}")),
        }
    }
    Err(why)
}

async fn addresses(names: &Names, host: &Host) -> io::Result<Vec<IpAddr>> {
    match host {
        Host::V4(address) => Ok(vec![(*address).into()]),
        Host::V6(address) => Ok(vec![(*address).into()]),
        Host::Name(name) => names.addresses(name).await,
        Host::Below(_) => Err(io::Error::other("it is no whole name")),
    }
}

/// Where the destination is now, if nobody was found where it was.
async fn moved(names: &Names, host: &Host, before: &[IpAddr], begun: Instant) -> Option<Vec<IpAddr>> {
    match host {
        Host::V4(_) | Host::V6(_) | Host::Below(_) => None,
        Host::Name(name) => names.moved(name, before, begun).await,
    }
}

/// One that may be given away hears its peer alone, from the beginning.
async fn connect(to: &Destination, address: IpAddr, gives: bool) -> io::Result<TcpStream> {
    let stream = match (to.is_by_v6_sockets(), address) {
        (true, IpAddr::V4(v4)) => {
            let mapped = SocketAddr::from((v4.to_ipv6_mapped(), to.egress.port));
            TcpSocket::new_v6()?.connect(mapped).await
        }
        _ => TcpStream::connect(SocketAddr::new(address, to.egress.port)).await,
    }?;
    if gives && to.may_be_given() {
        lock_to_peer(&stream)?;
    }
    Ok(stream)
}

/// What the node sets on a connection that it uses itself. One that is given away is as the kernel made it, until it is set as its function's was.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, BETWEEN)?;
    Ok(sockopt::set_tcp_keepcnt(stream, QUESTIONS)?)
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}
