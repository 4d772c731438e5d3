//! How neighbours of a strict circle give each other their pools, as the node does in a domain.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nearpath_domain::packet;
use nearpath_shm::{PeerPool, SlotPool};

/// For two neighbours: the end of the one before, and of the one after.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (before, after) = packet::socket_pair()?;
    rustix::io::ioctl_fionbio(&before, false)?;
    rustix::io::ioctl_fionbio(&after, false)?;
    Ok((before, after))
}

/// Gives the own pool to both neighbours and takes theirs.
pub(super) fn introduce(pool: &SlotPool, neighbours: [OwnedFd; 2]) -> io::Result<[PeerPool; 2]> {
    for neighbour in &neighbours {
        packet::send_bytes(neighbour, b"pool", &[pool.as_fd()])?;
    }
    let [before, after] = neighbours;
    Ok([
        take(&before, pool.region_bytes())?,
        take(&after, pool.region_bytes())?,
    ])
}

fn take(neighbour: &OwnedFd, bytes: usize) -> io::Result<PeerPool> {
    let packet = packet::receive_packet(neighbour)?
        .ok_or_else(|| io::Error::other("a neighbour has gone"))?;
    let pool = packet
        .descriptors
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::other("a neighbour sent no pool"))?;
    PeerPool::open_read_only(pool, bytes)
}
