//! Capacity of the paths to destinations, learned from the connections that used them. Pure.
//!
//! A new connection probes: ten segments, then twice as many each round trip. Later connections
//! reuse what earlier ones found (RFC 9040, temporal sharing), but never so that the path is worse
//! off. The history of a path counts only bytes that were in flight at once and arrived. It halves them
//! with every minute without proof. A loss resets them, and leaves a limit that lasts longer.
//! Connections in use at the same time share the capacity. Owners do not share it, and a change of
//! the owner's policy starts a new history (ADR 33).

mod path_history;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo};

use crate::destination::PoolKey;
use path_history::PathHistory;

/// Maximum initial window in bytes, whatever the capacity of the path.
pub const MAX_INITIAL_WINDOW_BYTES: u64 = 1 << 20;
/// Initial window of the kernel in segments (RFC 6928); a smaller one is never set.
pub const DEFAULT_INITIAL_SEGMENTS: u32 = 10;
/// Maximum number of paths in the cache.
const MAX_REMEMBERED_PATHS: usize = 1_024;

/// Owner, policy epoch and address of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathKey {
    owner: String,
    epoch: u64,
    address: IpAddr,
}

impl PathKey {
    /// Creates the key of the path that connections of a pool key take to `address`.
    pub fn new(key: &PoolKey, address: IpAddr) -> Self {
        Self {
            owner: key.owner.clone(),
            epoch: key.epoch,
            address: address.to_canonical(),
        }
    }
}

/// Histories of all paths of a node.
#[derive(Debug, Default)]
pub struct CwndCache {
    paths: HashMap<PathKey, PathHistory>,
    last_number: u64,
}

/// A connection in use.
#[derive(Debug)]
pub struct PathUse {
    path_key: PathKey,
    connection_number: u64,
    /// Lost segments at the last report.
    lost_segments: u32,
    /// Segments of its window at the start.
    initial_segments: u32,
    /// Its initial window, if that exceeds the kernel's.
    pub initial_window: Option<InitialWindow>,
}

impl CwndCache {
    /// Registers a connection that is handed out. `flow` must be that of a connection that has sent
    /// nothing.
    pub fn begin_use(&mut self, now: Instant, key: PathKey, flow: &TcpFlowInfo) -> PathUse {
        self.last_number += 1;
        // Before the insert, so that the table never exceeds its bound.
        self.forget_oldest_path();
        let path = self
            .paths
            .entry(key.clone())
            .or_insert_with(|| PathHistory::new(now));
        let window = path.begin_use(now, self.last_number, flow);
        // Growth beyond this window proves capacity later (`proven_by_flow`).
        let initial_segments = window.map_or(flow.cwnd_segments, |window| window.segments);
        PathUse {
            path_key: key,
            connection_number: self.last_number,
            lost_segments: flow.lost_segments,
            initial_segments,
            initial_window: window,
        }
    }

    /// Returns true if [`begin_use`](Self::begin_use) may give a connection with this flow a larger
    /// window.
    pub fn would_raise_cwnd(&self, now: Instant, key: &PathKey, flow: &TcpFlowInfo) -> bool {
        let initial = u64::from(DEFAULT_INITIAL_SEGMENTS) * u64::from(flow.mss_bytes);
        self.paths
            .get(key)
            .is_some_and(|path| path.capacity_bytes(now) > initial)
    }

    /// Records the flow of a connection, while it lives or when it ends.
    pub fn record_flow(&mut self, now: Instant, path_use: &mut PathUse, flow: &TcpFlowInfo) {
        // Flows repeat the total of lost segments, so only an increase is a new loss.
        let lost =
            flow.lost_segments > std::mem::replace(&mut path_use.lost_segments, flow.lost_segments);
        if let Some(path) = self.paths.get_mut(&path_use.path_key) {
            path.record_flow(now, flow, path_use.initial_segments, lost);
        }
    }

    /// Unregisters a connection.
    pub fn end_use(&mut self, path_use: &PathUse) {
        if let Some(path) = self.paths.get_mut(&path_use.path_key) {
            path.end_use(path_use.connection_number);
        }
    }

    /// Returns the number of cached paths.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Returns true if no path is cached.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Makes room for one path: forgets the unused one with the oldest proof.
    fn forget_oldest_path(&mut self) {
        if self.paths.len() < MAX_REMEMBERED_PATHS {
            return;
        }
        // A path in use stays, because its connections still report to it.
        let unused = self.paths.iter().filter(|(_, path)| !path.is_used());
        let oldest = unused
            .min_by_key(|(_, path)| path.last_proven())
            .map(|(key, _)| key.clone());
        oldest.inspect(|key| drop(self.paths.remove(key)));
    }
}
