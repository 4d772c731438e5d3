//! Opening a connection: every address of the destination in turn, until one takes it or the time is up.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nearpath_kernel::sockets::lock_to_peer;
use nearpath_types::egress::EgressHost;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{timeout, timeout_at};

use super::resolver::NameResolver;
use crate::destination::EgressDestination;

/// Longest time for one connection, all addresses together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Least time for one address, as long as there is any.
const MIN_ADDRESS_TIMEOUT: Duration = Duration::from_millis(500);
/// A destination that has been silent for so long is asked whether it is still there; three questions without an answer end the connection.
const KEEPALIVE_DELAY: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const MAX_KEEPALIVE_PROBES: u32 = 3;

/// Connects to a destination by `deadline`, but within [`LONGEST`]; `gives`: it may be given away, if it is one that may.
pub(crate) async fn dial_destination(
    names: &NameResolver,
    to: &EgressDestination,
    deadline: Instant,
    gives: bool,
) -> io::Result<TcpStream> {
    let begun = Instant::now();
    let deadline = deadline.min(begun + CONNECT_TIMEOUT);
    let found = timeout_at(deadline.into(), resolve_host(names, &to.egress.host)).await;
    let addresses = found.map_err(|_| timed_out("no name server answered"))??;
    let why = match connect_to_any(&addresses, to, deadline, gives).await {
        Ok(stream) => return Ok(stream),
        Err(why) => why,
    };
    match timeout_at(
        deadline.into(),
        resolve_moved_host(names, &to.egress.host, &addresses, begun),
    )
    .await
    {
        Ok(Some(addresses)) => connect_to_any(&addresses, to, deadline, gives).await,
        _ => Err(why),
    }
}

async fn connect_to_any(
    addresses: &[IpAddr],
    to: &EgressDestination,
    deadline: Instant,
    gives: bool,
) -> io::Result<TcpStream> {
    let mut why = timed_out("it has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = (left / (addresses.len() - tried) as u32)
            .max(MIN_ADDRESS_TIMEOUT)
            .min(left);
        match timeout(share, connect_to_address(to, *address, gives)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                why = io::Error::new(
                    error.kind(),
                    format!("{address} did not take the connection: {error}"),
                )
            }
            Err(_) => why = timed_out(&format!("{address} did not answer within {share:?}")),
        }
    }
    Err(why)
}

async fn resolve_host(names: &NameResolver, host: &EgressHost) -> io::Result<Vec<IpAddr>> {
    match host {
        EgressHost::V4(address) => Ok(vec![(*address).into()]),
        EgressHost::V6(address) => Ok(vec![(*address).into()]),
        EgressHost::Name(name) => names.resolve(name).await,
        EgressHost::Below(_) => Err(io::Error::other("it is no whole name")),
    }
}

/// Where the destination is now, if nobody was found where it was.
async fn resolve_moved_host(
    names: &NameResolver,
    host: &EgressHost,
    before: &[IpAddr],
    begun: Instant,
) -> Option<Vec<IpAddr>> {
    match host {
        EgressHost::V4(_) | EgressHost::V6(_) | EgressHost::Below(_) => None,
        EgressHost::Name(name) => names.resolve_moved(name, before, begun).await,
    }
}

/// One that may be given away hears its peer alone, from the beginning.
async fn connect_to_address(
    to: &EgressDestination,
    address: IpAddr,
    gives: bool,
) -> io::Result<TcpStream> {
    let stream = match (to.uses_v6_sockets(), address) {
        (true, IpAddr::V4(v4)) => {
            let mapped = SocketAddr::from((v4.to_ipv6_mapped(), to.egress.port));
            TcpSocket::new_v6()?.connect(mapped).await
        }
        _ => TcpStream::connect(SocketAddr::new(address, to.egress.port)).await,
    }?;
    if gives && to.can_be_handed_over() {
        lock_to_peer(&stream)?;
    }
    Ok(stream)
}

/// What the node sets on a connection that it uses itself. One that is given away is as the kernel made it, until it is set as its function's was.
pub(super) fn configure_socket(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_DELAY)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, MAX_KEEPALIVE_PROBES)?)
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}
