//! Dials a destination: tries its addresses in turn until one accepts or time is up.

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

/// Maximum time for one connection over all addresses.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time for one address, unless less is left. An equal share of a long list would be too
/// short for a distant server.
const MIN_ADDRESS_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum addresses that an error lists.
const MAX_LISTED_ADDRESSES: usize = 4;
/// Silence after which keepalive probes start. Three unanswered probes end the connection, so a
/// dead peer holds a slot for 90 s at most.
const KEEPALIVE_DELAY: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const MAX_KEEPALIVE_PROBES: u32 = 3;

/// Connects to a destination by `deadline`, within [`CONNECT_TIMEOUT`]. With `hands_over`, the
/// socket is prepared for handover if the destination allows that.
pub(crate) async fn dial_destination(
    resolver: &NameResolver,
    to: &EgressDestination,
    deadline: Instant,
    hands_over: bool,
) -> io::Result<TcpStream> {
    let started = Instant::now();
    let deadline = deadline.min(started + CONNECT_TIMEOUT);
    let found = timeout_at(deadline.into(), resolve_host(resolver, &to.egress.host)).await;
    let addresses = found.map_err(|_| timed_out("the name lookup timed out"))??;
    let why = match connect_to_any(&addresses, to, deadline, hands_over).await {
        Ok(stream) => return Ok(stream),
        Err(why) => why,
    };
    // All addresses failed. The name may have moved to another server since it was cached.
    match timeout_at(
        deadline.into(),
        resolve_moved_host(resolver, &to.egress.host, &addresses, started),
    )
    .await
    {
        Ok(Some(addresses)) => connect_to_any(&addresses, to, deadline, hands_over).await,
        _ => Err(why),
    }
}

async fn connect_to_any(
    addresses: &[IpAddr],
    to: &EgressDestination,
    deadline: Instant,
    hands_over: bool,
) -> io::Result<TcpStream> {
    let mut failures = Vec::new();
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        // An equal share of the time for every address left, so a silent one does not use up
        // all of it.
        let share = (left / (addresses.len() - tried) as u32)
            .max(MIN_ADDRESS_TIMEOUT)
            .min(left);
        let connected = timeout(share, connect_to_address(to, *address, hands_over)).await;
        match connected.unwrap_or_else(|_| Err(timed_out(&format!("timed out after {share:?}")))) {
            Ok(stream) => return Ok(stream),
            Err(error) => failures.push((*address, error)),
        }
    }
    Err(connect_error(&failures))
}

/// Describes the failures of all addresses of a destination in one error.
fn connect_error(failures: &[(IpAddr, io::Error)]) -> io::Error {
    let Some((last, why)) = failures.last() else {
        return timed_out("no address to connect to");
    };
    let text = match failures.len() {
        1 => format!("connect to {last} failed: {why}"),
        all => {
            let listed = failures.iter().take(MAX_LISTED_ADDRESSES);
            let listed: Vec<_> = listed
                .map(|(address, error)| format!("{address}: {error}"))
                .collect();
            let omitted = all - listed.len();
            let more = if omitted > 0 {
                format!("; and {omitted} more")
            } else {
                String::new()
            };
            format!(
                "connect to all {all} addresses failed: {}{more}",
                listed.join("; ")
            )
        }
    };
    // The kind is kept for callers that tell a refusal from a timeout.
    io::Error::new(why.kind(), text)
}

async fn resolve_host(resolver: &NameResolver, host: &EgressHost) -> io::Result<Vec<IpAddr>> {
    match host {
        EgressHost::V4(address) => Ok(vec![(*address).into()]),
        EgressHost::V6(address) => Ok(vec![(*address).into()]),
        EgressHost::Name(name) => resolver.resolve(name).await,
        EgressHost::Below(_) => Err(io::Error::other("a wildcard name cannot be resolved")),
    }
}

/// Resolves the host again after all its addresses failed; `None` if nothing changed.
async fn resolve_moved_host(
    resolver: &NameResolver,
    host: &EgressHost,
    before: &[IpAddr],
    started: Instant,
) -> Option<Vec<IpAddr>> {
    match host {
        EgressHost::V4(_) | EgressHost::V6(_) | EgressHost::Below(_) => None,
        EgressHost::Name(name) => resolver.resolve_moved(name, before, started).await,
    }
}

/// Connects to one address. A socket for handover accepts packets of its peer only, from the start.
async fn connect_to_address(
    to: &EgressDestination,
    address: IpAddr,
    hands_over: bool,
) -> io::Result<TcpStream> {
    let stream = match (to.uses_v6_sockets(), address) {
        // An `AF_INET6` socket reaches IPv4 only by mapped addresses.
        (true, IpAddr::V4(v4)) => {
            let mapped = SocketAddr::from((v4.to_ipv6_mapped(), to.egress.port));
            TcpSocket::new_v6()?.connect(mapped).await
        }
        _ => TcpStream::connect(SocketAddr::new(address, to.egress.port)).await,
    }?;
    // Locked before it is used, so that the holder never receives packets of another peer.
    if hands_over && to.can_be_handed_over() {
        lock_to_peer(&stream)?;
    }
    Ok(stream)
}

/// Sets the options of a connection that the node uses itself. A socket for handover keeps the
/// kernel's defaults, until it gets the options of the function's socket.
pub(super) fn configure_socket(stream: &TcpStream) -> io::Result<()> {
    // Adapters write whole messages; Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_DELAY)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, MAX_KEEPALIVE_PROBES)?)
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_every_address_and_what_it_answered() {
        let refused = |last| {
            (
                IpAddr::from([192, 0, 2, last]),
                io::Error::from(io::ErrorKind::ConnectionRefused),
            )
        };
        let silent = (
            IpAddr::from([192, 0, 2, 9]),
            timed_out("timed out after 5s"),
        );
        let one = connect_error(&[refused(1)]).to_string();
        assert_eq!(one, "connect to 192.0.2.1 failed: connection refused");
        let both = connect_error(&[refused(1), silent]);
        assert_eq!(both.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            both.to_string(),
            "connect to all 2 addresses failed: 192.0.2.1: connection refused; 192.0.2.9: timed out after 5s"
        );
        let many: Vec<_> = (1..=6).map(refused).collect();
        let many = connect_error(&many).to_string();
        assert!(many.ends_with("; and 2 more"), "{many}");
    }
}
