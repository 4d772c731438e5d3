//! Who comes, and what is to be done.

use nearpath_shm::Party;
use nearpath_types::{FunctionId, InstanceId};

use crate::protocol::End;

use super::Channel;

/// Who a party is; what the node knows from the socket that it came by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// It may call every function.
    Gateway,
    /// An instance of a function.
    Instance(InstanceId, FunctionId),
}

impl Who {
    /// The function, unless it is the gateway.
    pub fn function(&self) -> Option<&FunctionId> {
        match self {
            Self::Gateway => None,
            Self::Instance(_, function) => Some(function),
        }
    }

    /// The instance, unless it is the gateway.
    pub fn instance(&self) -> Option<InstanceId> {
        match self {
            Self::Gateway => None,
            Self::Instance(instance, _) => Some(*instance),
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make a channel and tell both.
    Open {
        /// Its number: never given before.
        channel: Channel,
        /// Who calls.
        caller: Party,
        /// Who is called.
        callee: Party,
    },
    /// Write `closed` and wake both sides.
    Close {
        /// Which.
        channel: Channel,
        /// No new calls, or the caller or callee is gone.
        how: Closing,
    },
    /// Tell a party that a channel comes to its end.
    Tell {
        /// Whom.
        party: Party,
        /// Which.
        channel: Channel,
        /// How.
        state: End,
    },
    /// Nobody living holds the channel: let go of it.
    Forget {
        /// Which.
        channel: Channel,
    },
    /// Give the slots of the dead back; say [`Registrar::rested`] of those numbers that no slot bears.
    Sweep,
    /// All that this instance was asked is answered, and it is asked no more.
    Quiet {
        /// The instance that was withdrawn.
        instance: InstanceId,
    },
}

/// How a channel is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// No new calls.
    Withdrawn,
    /// The caller is gone, or done.
    Caller,
    /// The callee is gone.
    Callee,
    /// It is of no use to either.
    Broken,
}

/// A party speaks of a channel that is none of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the party speaks of a channel that is none of its own")]
pub struct NotAsked;
