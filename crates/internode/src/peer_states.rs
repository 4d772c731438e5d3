//! State of all other nodes at one moment. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::{FunctionLoad, FunctionMap, NodeName, PeerNode};

use crate::protocol::NodeIncarnation;

/// State of the other nodes by name. A clone shares the states of all nodes, and so do consecutive
/// versions, except for nodes that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerStates {
    /// State of each node.
    pub peers: BTreeMap<NodeName, Arc<PeerStatus>>,
}

/// Availability of another node for calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAvailability {
    /// First attempt to connect.
    Connecting,
    /// The node reports and answers: calls may go there.
    Up,
    /// The node reports and answers, but went down several times before: no calls go there yet.
    HeldDown {
        /// Time from which calls may go there.
        until: Instant,
    },
    /// The node does not report or does not answer.
    Down {
        /// Last failure.
        cause: Arc<str>,
    },
}

/// State of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Availability for calls.
    pub availability: PeerAvailability,
    /// Time since which it is so.
    pub since: Instant,
    /// Node with the address of the last connection, for calls; `None`: never connected.
    pub node: Option<Arc<PeerNode>>,
    /// Functions that may run on the node; none while it is down.
    pub functions: FunctionMap<FunctionLoad>,
    /// The node takes no new calls.
    pub is_draining: bool,
    /// The node has ended its reports while it drained: open calls may still end there.
    pub is_leaving: bool,
    /// Release of the node; `None`: never reported.
    pub version: Option<Arc<str>>,
    /// Run of the node's process; `None`: never reported.
    pub incarnation: Option<NodeIncarnation>,
    /// Round-trip time: the smallest of the last minute.
    pub round_trip: Option<Duration>,
    /// Node's clock minus the own, in microseconds, from the ping with this round trip.
    pub clock_offset_micros: Option<i64>,
    /// Time of the last change of the node's functions.
    pub changed_at: Option<Instant>,
    /// Subscriptions after the first one.
    pub reconnects: u64,
}

impl PeerStatus {
    /// Creates the state of a node that was never connected.
    pub fn new(now: Instant) -> Self {
        Self {
            availability: PeerAvailability::Connecting,
            since: now,
            node: None,
            functions: FunctionMap::default(),
            is_draining: false,
            is_leaving: false,
            version: None,
            incarnation: None,
            round_trip: None,
            clock_offset_micros: None,
            changed_at: None,
            reconnects: 0,
        }
    }

    /// Returns the node if it takes calls.
    pub fn callable_node(&self) -> Option<&Arc<PeerNode>> {
        let is_callable = self.availability == PeerAvailability::Up && !self.is_draining;
        self.node.as_ref().filter(|_| is_callable)
    }

    /// Returns whether open calls go on at the node, whether or not it takes new ones.
    pub fn is_reachable(&self) -> bool {
        use PeerAvailability::{Connecting, Down, HeldDown, Up};
        match self.availability {
            Up | HeldDown { .. } => true,
            // Its threads end one by one, and the first one may have had the reports.
            Down { .. } => self.is_leaving,
            Connecting => false,
        }
    }

    /// Returns the age of the last change of the node's functions.
    pub fn change_age(&self, now: Instant) -> Option<Duration> {
        self.changed_at.map(|at| now.saturating_duration_since(at))
    }
}
