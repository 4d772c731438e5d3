//! Exchange of pools between neighbours of a strict ring, as by the node in a domain.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nearpath_domain::packet;
use nearpath_shm::{PeerPool, SlotPool};

/// Creates a socket pair: one end for the previous endpoint, one for the next.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (before, after) = packet::socket_pair()?;
    // The domain's sockets are non-blocking, but here an endpoint waits for its peer to start.
    rustix::io::ioctl_fionbio(&before, false)?;
    rustix::io::ioctl_fionbio(&after, false)?;
    Ok((before, after))
}

/// Sends the own pool to both neighbours and receives theirs.
pub(super) fn exchange_pools(pool: &SlotPool, pairs: [OwnedFd; 2]) -> io::Result<[PeerPool; 2]> {
    // Both are sent before either is received: two endpoints that receive first would wait for each
    // other.
    for neighbour in &pairs {
        packet::send_bytes(neighbour, b"pool", &[pool.as_fd()])?;
    }
    let [before, after] = pairs;
    Ok([
        receive_pool(&before, pool.region_bytes())?,
        receive_pool(&after, pool.region_bytes())?,
    ])
}

fn receive_pool(neighbour: &OwnedFd, bytes: usize) -> io::Result<PeerPool> {
    let packet = packet::receive_packet(neighbour)?
        .ok_or_else(|| io::Error::other("a neighbour has exited"))?;
    let pool = packet
        .descriptors
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::other("a neighbour sent no pool"))?;
    // Read-only is the point of `strict`: only its maker can write a pool.
    PeerPool::open_read_only(pool, bytes)
}
