//! What the paths to destinations bear, learned from the connections that used them, and what the next one may begin with. Pure.
//!
//! A new connection probes: ten segments, then twice as many each round trip. What its predecessors found out need not be found out again (RFC 9040,
//! temporal sharing), as long as it is so cautious that the path is never worse off. So a [`Path`] counts only what was under way at once and arrived; it
//! halves that with every minute in which nobody shows it again; and drops it at a loss, of which it keeps the memory longer. Connections that are in
//! use at the same time share it. Nothing of it goes from one owner to another, and a change of the owner's policy begins anew.

mod path_history;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo};

use crate::destination::Key;
use path_history::Path;

/// Most that a connection begins with, in octets, however much its path bears.
pub const MOST: u64 = 1 << 20;
/// Segments that every connection begins with (RFC 6928): with less there is nothing to open.
pub const INITIAL: u32 = 10;
/// Paths that are remembered.
const REMEMBERED: usize = 1_024;

/// Whose path it is, since which change of their policy, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Way {
    owner: String,
    epoch: u64,
    address: IpAddr,
}

impl Way {
    /// That of connections of a key.
    pub fn new(key: &Key, address: IpAddr) -> Self {
        Self { owner: key.owner.clone(), epoch: key.epoch, address: address.to_canonical() }
    }
}

/// All paths of a node.
#[derive(Debug, Default)]
pub struct Windows {
    paths: HashMap<Way, Path>,
    last: u64,
}

/// A connection that is in use.
#[derive(Debug)]
pub struct Use {
    way: Way,
    number: u64,
    /// What it was last known to have lost.
    lost: u32,
    /// Segments that it began with.
    began: u32,
    /// What it may begin with, if that is more than the kernel's.
    pub window: Option<InitialWindow>,
}

impl Windows {
    /// A connection is given to somebody. `flow` is what it shows by then: that of one which has sent nothing.
    pub fn begin(&mut self, now: Instant, way: Way, flow: &TcpFlowInfo) -> Use {
        self.last += 1;
        self.make_room();
        let path = self.paths.entry(way.clone()).or_insert_with(|| Path::new(now));
        let window = path.begin(now, self.last, flow);
        let began = window.map_or(flow.cwnd_segments, |window| window.segments);
        Use { way, number: self.last, lost: flow.lost_segments, began, window }
    }

    /// Whether [`begin`](Self::begin) may give a window to one that shows this.
    pub fn would_open(&self, now: Instant, way: &Way, flow: &TcpFlowInfo) -> bool {
        let initial = u64::from(INITIAL) * u64::from(flow.mss_bytes);
        self.paths.get(way).is_some_and(|path| path.bears(now) > initial)
    }

    /// What a connection has shown since it was given, or since it was last told; while it lives or when it ends.
    pub fn learn(&mut self, now: Instant, one: &mut Use, flow: &TcpFlowInfo) {
        let lost = flow.lost_segments > std::mem::replace(&mut one.lost, flow.lost_segments);
        if let Some(path) = self.paths.get_mut(&one.way) {
            path.learn(now, flow, one.began, lost);
        }
    }

    /// It has ended.
    pub fn end(&mut self, one: &Use) {
        if let Some(path) = self.paths.get_mut(&one.way) {
            path.end(one.number);
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
    fn make_room(&mut self) {
        if self.paths.len() < REMEMBERED {
            return;
        }
        let unused = self.paths.iter().filter(|(_, path)| !path.is_used());
        let oldest = unused.min_by_key(|(_, path)| path.seen()).map(|(way, _)| way.clone());
        oldest.inspect(|way| drop(self.paths.remove(way)));
    }
}
