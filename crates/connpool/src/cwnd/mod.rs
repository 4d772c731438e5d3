//! What the paths to destinations bear, learned from the connections that used them, and what the next one may begin with. Pure.
//!
//! A new connection probes: ten segments, then twice as many each round trip. What its predecessors found out need not be found out again (RFC 9040,
//! temporal sharing), as long as it is so cautious that the path is never worse off. So a [`PathHistory`] counts only what was under way at once and arrived; it
//! halves that with every minute in which nobody shows it again; and drops it at a loss, of which it keeps the memory longer. Connections that are in
//! use at the same time share it. Nothing of it goes from one owner to another, and a change of the owner's policy begins anew.

mod path_history;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo};

use crate::destination::PoolKey;
use path_history::PathHistory;

/// Most that a connection begins with, in octets, however much its path bears.
pub const MAX_INITIAL_WINDOW_BYTES: u64 = 1 << 20;
/// Segments that every connection begins with (RFC 6928): with less there is nothing to open.
pub const DEFAULT_INITIAL_SEGMENTS: u32 = 10;
/// Paths that are remembered.
const MAX_REMEMBERED_PATHS: usize = 1_024;

/// Whose path it is, since which change of their policy, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathKey {
    owner: String,
    epoch: u64,
    address: IpAddr,
}

impl PathKey {
    /// That of connections of a key.
    pub fn new(key: &PoolKey, address: IpAddr) -> Self {
        Self {
            owner: key.owner.clone(),
            epoch: key.epoch,
            address: address.to_canonical(),
        }
    }
}

/// All paths of a node.
#[derive(Debug, Default)]
pub struct CwndCache {
    paths: HashMap<PathKey, PathHistory>,
    last_number: u64,
}

/// A connection that is in use.
#[derive(Debug)]
pub struct PathUse {
    path_key: PathKey,
    connection_number: u64,
    /// What it was last known to have lost.
    lost_segments: u32,
    /// Segments that it began with.
    initial_segments: u32,
    /// What it may begin with, if that is more than the kernel's.
    pub initial_window: Option<InitialWindow>,
}

impl CwndCache {
    /// A connection is given to somebody. `flow` is what it shows by then: that of one which has sent nothing.
    pub fn begin_use(&mut self, now: Instant, way: PathKey, flow: &TcpFlowInfo) -> PathUse {
        self.last_number += 1;
        self.forget_oldest_path();
        let path = self
            .paths
            .entry(way.clone())
            .or_insert_with(|| PathHistory::new(now));
        let window = path.begin_use(now, self.last_number, flow);
        let began = window.map_or(flow.cwnd_segments, |window| window.segments);
        PathUse {
            path_key: way,
            connection_number: self.last_number,
            lost_segments: flow.lost_segments,
            initial_segments: began,
            initial_window: window,
        }
    }

    /// Whether [`begin`](Self::begin) may give a window to one that shows this.
    pub fn would_raise_cwnd(&self, now: Instant, way: &PathKey, flow: &TcpFlowInfo) -> bool {
        let initial = u64::from(DEFAULT_INITIAL_SEGMENTS) * u64::from(flow.mss_bytes);
        self.paths
            .get(way)
            .is_some_and(|path| path.capacity_bytes(now) > initial)
    }

    /// What a connection has shown since it was given, or since it was last told; while it lives or when it ends.
    pub fn record_flow(&mut self, now: Instant, one: &mut PathUse, flow: &TcpFlowInfo) {
        let lost =
            flow.lost_segments > std::mem::replace(&mut one.lost_segments, flow.lost_segments);
        if let Some(path) = self.paths.get_mut(&one.path_key) {
            path.record_flow(now, flow, one.initial_segments, lost);
        }
    }

    /// It has ended.
    pub fn end_use(&mut self, one: &PathUse) {
        if let Some(path) = self.paths.get_mut(&one.path_key) {
            path.end_use(one.connection_number);
        }
    }

    /// How many paths are remembered.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Forgets the path that was not used for longest, of those that nobody uses.
    fn forget_oldest_path(&mut self) {
        if self.paths.len() < MAX_REMEMBERED_PATHS {
            return;
        }
        let unused = self.paths.iter().filter(|(_, path)| !path.is_used());
        let oldest = unused
            .min_by_key(|(_, path)| path.last_proven())
            .map(|(way, _)| way.clone());
        oldest.inspect(|way| drop(self.paths.remove(way)));
    }
}
