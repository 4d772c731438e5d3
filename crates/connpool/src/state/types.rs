//! What the stock is told, and what it says.

use std::time::Duration;

use nearpath_types::egress::{EgressProtocol, EgressSpec};

/// A key that was declared. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(super) u64);

/// One connection, from the moment that it is to be opened until it is closed. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// One who waits. Tickets grow in the order in which they are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitTicket(pub(super) u64);

/// Whose turn it is goes round between these: a number for each function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequesterId(pub u32);

/// What holds for the connections of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTerms {
    /// Most connections at the place, whosever they are, with which this key may open one more.
    pub max: u32,
    /// Most that are kept open for nobody yet.
    pub warm: u32,
    /// One that is open for nobody for so long is closed.
    pub idle: Duration,
    /// One older than this is not handed out.
    pub age: Duration,
}

/// PostgreSQL drops who has not said who he is within a minute (`authentication_timeout`).
const MAX_POSTGRES_IDLE_AGE: Duration = Duration::from_secs(40);

impl KeyTerms {
    /// As declared; but where the server waits only a short time for the first word, connections that nobody has used are kept for less, and where it
    /// speaks first, not at all.
    pub fn from_egress(egress: &EgressSpec) -> Self {
        let &EgressSpec {
            max,
            warm,
            idle,
            age,
            ..
        } = egress;
        match egress.protocol {
            EgressProtocol::Postgres => Self {
                max,
                warm,
                idle: idle.min(MAX_POSTGRES_IDLE_AGE),
                age,
            },
            EgressProtocol::Mysql => Self {
                max,
                warm: 0,
                idle,
                age,
            },
            EgressProtocol::Tcp | EgressProtocol::Http | EgressProtocol::Redis => Self {
                max,
                warm,
                idle,
                age,
            },
        }
    }
}

/// What one who asks for a connection gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum RequestOutcome {
    /// This one, open and never used.
    Take(SocketId),
    /// A place in line: [`StateAction::Give`] or [`StateAction::Refuse`] will name it, unless it is cancelled.
    Wait(WaitTicket),
    /// None.
    Refused(RefusalReason),
}

/// Why one gets no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The destination did not take the connection that was opened for it: the one that has just been reported as failed.
    Failed,
    /// None became free in time.
    TimedOut {
        /// Connections that are open at the place.
        open: u32,
        /// Whether the place has lately refused connections.
        failing: bool,
    },
    /// Too many of its function wait already.
    QueueFull,
    /// The key was forgotten.
    KeyForgotten,
}

/// What is to be done. The order matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateAction {
    /// Open a connection, and report [`connected`](super::PoolState::connected) or [`failed`](super::PoolState::failed).
    Connect(KeyId, SocketId),
    /// This open connection is that waiter's. When it has gone meanwhile: [`unused`](super::PoolState::unused).
    Give(WaitTicket, SocketId),
    /// That waiter gets none.
    Refuse(WaitTicket, RefusalReason),
    /// Close it, or give up opening it, and report [`socket_closed`](super::PoolState::socket_closed).
    Close(SocketId),
    /// Somebody with this key waits below the ceiling: if an adapter keeps an idle connection at the same place, close that.
    Reclaim(KeyId),
}

/// How one key stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyFigures {
    /// Connections of this key, in whatever state.
    pub open: u32,
    /// Of them, kept open for nobody yet.
    pub warm: u32,
    /// Of them, being opened.
    pub connecting: u32,
    /// Clients that wait.
    pub waiting: u32,
    /// Connections that are open at the place, over all keys.
    pub open_in_group: u32,
    /// Connections given that were open already.
    pub hits: u64,
    /// Connections given that had to be opened.
    pub misses: u64,
    /// Clients that waited for a place below the ceiling.
    pub waits: u64,
    /// Clients that got no connection.
    pub refused: u64,
    /// Connections that the destination did not take.
    pub failed: u64,
    /// Connections found dead when they were to be handed out.
    pub stale: u64,
    /// Connections closed without ever having been used.
    pub wasted: u64,
}
