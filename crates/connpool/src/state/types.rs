//! Inputs and outputs of the state machine.

use std::time::Duration;

use nearpath_types::egress::EgressSpec;
use nearpath_types::egress::protocol::UnusedConnections;

/// Id of a declared key. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(super) u64);

/// Id of a connection, from the start of its connect until it is closed. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// Id of a waiting client. Later clients have greater tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitTicket(pub(super) u64);

/// Id of a function for the round-robin between functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequesterId(pub u32);

/// Settings of the connections of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTerms {
    /// Maximum connections in the limit group with which this key may open one more.
    pub max: u32,
    /// Maximum connections kept warm.
    pub warm: u32,
    /// Maximum idle time of a warm connection.
    pub idle: Duration,
    /// Maximum age of a connection that is handed out.
    pub age: Duration,
}

impl KeyTerms {
    /// Takes the declared settings. Servers that close silent connections get a shorter idle time.
    /// Servers that speak first keep none warm, because their greeting would wait unread.
    pub fn from_egress(egress: &EgressSpec) -> Self {
        let (warm, idle) = match egress.protocol.traits().unused {
            UnusedConnections::Idle => (egress.warm, egress.idle),
            UnusedConnections::AtMost(bound) => (egress.warm, egress.idle.min(bound)),
            UnusedConnections::Never => (0, egress.idle),
        };
        Self {
            max: egress.max,
            warm,
            idle,
            age: egress.age,
        }
    }
}

/// Outcome of a request for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum RequestOutcome {
    /// This connection, open and unused.
    Take(SocketId),
    /// The client waits: [`StateAction::Give`] or [`StateAction::Refuse`] follows, unless it
    /// cancels.
    Wait(WaitTicket),
    /// No connection.
    Refused(RefusalReason),
}

/// Reason why a client gets no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The destination refused the connection opened for it, the one just reported as failed.
    Failed,
    /// No slot became free in time.
    TimedOut {
        /// Connections open in the limit group.
        open: u32,
        /// True if the group has refused connections lately.
        failing: bool,
    },
    /// Too many clients of the function wait already.
    QueueFull,
    /// The key was forgotten.
    KeyForgotten,
}

/// Action for the driver. The order matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateAction {
    /// Open a connection, then report [`socket_connected`](super::PoolState::socket_connected) or
    /// [`socket_failed`](super::PoolState::socket_failed).
    Connect(KeyId, SocketId),
    /// Hand this connection to this waiter. If the waiter has gone, report
    /// [`socket_unused`](super::PoolState::socket_unused).
    Give(WaitTicket, SocketId),
    /// Refuse this waiter.
    Refuse(WaitTicket, RefusalReason),
    /// Close the connection or abort its connect, then report
    /// [`socket_closed`](super::PoolState::socket_closed).
    Close(SocketId),
    /// A client of this key waits below the limit: close an idle connection of an adapter in the
    /// same group, if there is one.
    Reclaim(KeyId),
}

/// Figures of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyFigures {
    /// Connections of the key in any phase.
    pub open: u32,
    /// Warm ones among them.
    pub warm: u32,
    /// Connects among them.
    pub connecting: u32,
    /// Waiting clients.
    pub waiting: u32,
    /// Connections open in the limit group, over all keys.
    pub open_in_group: u32,
    /// Connections handed out that were open already.
    pub hits: u64,
    /// Connections handed out that had to be opened.
    pub misses: u64,
    /// Clients that waited for a slot below the limit.
    pub waits: u64,
    /// Clients that got no connection.
    pub refused: u64,
    /// Connections that the destination refused.
    pub failed: u64,
    /// Connections found dead when they were to be handed out.
    pub stale: u64,
    /// Connections closed without any use.
    pub wasted: u64,
}
