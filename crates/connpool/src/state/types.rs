//! What the stock is told, and what it says.

use std::time::Duration;

use nearpath_types::egress::{Egress, Protocol};

/// A key that was declared. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(super) u64);

/// One connection, from the moment that it is to be opened until it is closed. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// One who waits. Tickets grow in the order in which they are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// Whose turn it is goes round between these: a number for each function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(pub u32);

/// What holds for the connections of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
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
const SPEAKS_SOON: Duration = Duration::from_secs(40);

impl Terms {
    /// As declared; but where the server waits only a short time for the first word, connections that nobody has used are kept for less, and where it
    /// speaks first, not at all.
    pub fn of(egress: &Egress) -> Self {
        let &Egress { max, warm, idle, age, .. } = egress;
        match egress.protocol {
            Protocol::Postgres => Self { max, warm, idle: idle.min(SPEAKS_SOON), age },
            Protocol::Mysql => Self { max, warm: 0, idle, age },
            Protocol::Tcp | Protocol::Http | Protocol::Redis => Self { max, warm, idle, age },
        }
    }
}

/// What one who asks for a connection gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// This one, open and never used.
    Take(SocketId),
    /// A place in line: [`Action::Give`] or [`Action::Refuse`] will name it, unless it is cancelled.
    Wait(Ticket),
    /// None.
    Refused(Why),
}

/// Why one gets no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The destination did not take the connection that was opened for it: the one that has just been reported as failed.
    Failed,
    /// None became free in time.
    Late {
        /// Connections that are open at the place.
        open: u32,
        /// Whether the place has lately refused connections.
        failing: bool,
    },
    /// Too many of its function wait already.
    Crowded,
    /// The key was forgotten.
    Gone,
}

/// What is to be done. The order matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Open a connection, and report [`connected`](super::Stock::connected) or [`failed`](super::Stock::failed).
    Connect(KeyId, SocketId),
    /// This open connection is that waiter's. When it has gone meanwhile: [`unused`](super::Stock::unused).
    Give(Ticket, SocketId),
    /// That waiter gets none.
    Refuse(Ticket, Why),
    /// Close it, or give up opening it, and report [`closed`](super::Stock::closed).
    Close(SocketId),
    /// Somebody with this key waits below the ceiling: if an adapter keeps an idle connection at the same place, close that.
    Reclaim(KeyId),
}

/// How one key stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Connections of this key, in whatever state.
    pub open: u32,
    /// Of them, kept open for nobody yet.
    pub warm: u32,
    /// Of them, being opened.
    pub connecting: u32,
    /// Clients that wait.
    pub waiting: u32,
    /// Connections that are open at the place, over all keys.
    pub at_place: u32,
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
