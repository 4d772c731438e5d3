//! When each direction of a way leaves the relay, and what is read from where. No I/O.

use super::SwitchMessage;

/// The connection to the relay is of no use any more: bytes are missing, or the peer does not keep to its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// It ended without a word.
    #[error(
        "the relay's connection to the peer ended after byte {0}, before the peer did: connect again"
    )]
    Truncated(u64),
    /// The peer says to have sent another number of bytes than came.
    #[error("the peer sent {said} bytes over the relay, and {came} came")]
    Missing {
        /// By the peer's word.
        said: u64,
        /// What came.
        came: u64,
    },
    /// Bytes or words after the last one.
    #[error("the peer went on, on the relay, after it said that it would not")]
    UnexpectedFrame,
}

/// Where the next byte is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// On the relay.
    Relay,
    /// On the direct connection, which is still to come: the peer has it already.
    AwaitingDirect,
    /// On the direct connection.
    Direct,
    /// There is none.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutgoingState {
    Relay,
    /// Over the relay everything was said.
    Ended,
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IncomingState {
    Relay,
    Ended,
    Direct,
}

/// Both directions of one side's way.
#[derive(Debug)]
pub struct StreamSwitch {
    is_leader: bool,
    /// There is a direct connection.
    has_direct: bool,
    /// The leader has said that both have it; as the leader: was told to have said so.
    agreed: bool,
    outgoing: OutgoingState,
    sent: u64,
    incoming: IncomingState,
    received: u64,
}

impl StreamSwitch {
    /// A way that begins on the relay. `leads`: as in the session.
    pub fn on_relay(is_leader: bool) -> Self {
        Self {
            is_leader: is_leader,
            has_direct: false,
            agreed: false,
            outgoing: OutgoingState::Relay,
            sent: 0,
            incoming: IncomingState::Relay,
            received: 0,
        }
    }

    /// A way without a relay: it waits for the direct connection.
    pub fn without_relay() -> Self {
        Self {
            is_leader: true,
            has_direct: false,
            agreed: true,
            outgoing: OutgoingState::Direct,
            sent: 0,
            incoming: IncomingState::Direct,
            received: 0,
        }
    }

    /// The direct connection is there. Before this side has moved, another one may replace it.
    pub fn direct_found(&mut self) {
        self.has_direct = true;
    }

    /// The direct connection is of no use after all, and another one may come; as long as nobody has moved.
    pub fn direct_withdrawn(&mut self) {
        self.has_direct = self.is_committed();
    }

    /// Whether the direct connection must not be replaced any more: something went over it, or was said to go.
    pub fn is_committed(&self) -> bool {
        self.has_direct && (self.agreed || self.outgoing == OutgoingState::Direct)
    }

    /// The word that is to be said next, on the relay, before anything else: by calling this it is said.
    pub fn next_message(&mut self) -> Option<SwitchMessage> {
        let may_move = self.has_direct
            && if self.is_leader {
                !self.agreed
            } else {
                self.agreed && self.outgoing == OutgoingState::Relay
            };
        if !may_move {
            return None;
        }
        self.agreed = true;
        if self.outgoing == OutgoingState::Relay {
            self.outgoing = OutgoingState::Direct;
        }
        Some(SwitchMessage::Moved { at: self.sent })
    }

    /// This side has no more bytes: the word to say, if it is on the relay. Otherwise the direct connection says it.
    pub fn end_outgoing(&mut self) -> Option<SwitchMessage> {
        if self.outgoing != OutgoingState::Relay {
            return None;
        }
        self.outgoing = OutgoingState::Ended;
        Some(SwitchMessage::Ended { at: self.sent })
    }

    /// So many bytes were given to the relay.
    pub fn count_sent(&mut self, bytes: usize) {
        debug_assert_eq!(
            self.outgoing,
            OutgoingState::Relay,
            "what moved writes elsewhere"
        );
        self.sent += bytes as u64;
    }

    /// Whether bytes go over the direct connection, which may be still to come; else they go over the relay.
    pub fn writes_direct(&self) -> bool {
        self.outgoing == OutgoingState::Direct
    }

    /// Whether [`Self::end`] was said on the relay.
    pub fn has_ended(&self) -> bool {
        self.outgoing == OutgoingState::Ended
    }

    /// So many bytes came over the relay.
    ///
    /// # Errors
    /// See [`SwitchError`].
    pub fn count_received(&mut self, bytes: usize) -> Result<(), SwitchError> {
        self.received += bytes as u64;
        if self.incoming == IncomingState::Relay {
            Ok(())
        } else {
            Err(SwitchError::UnexpectedFrame)
        }
    }

    /// A word came over the relay.
    ///
    /// # Errors
    /// See [`SwitchError`].
    pub fn handle_message(&mut self, message: SwitchMessage) -> Result<(), SwitchError> {
        let (SwitchMessage::Moved { at } | SwitchMessage::Ended { at }) = message;
        if at != self.received {
            return Err(SwitchError::Missing {
                said: at,
                came: self.received,
            });
        }
        match (message, self.incoming) {
            (SwitchMessage::Moved { .. }, IncomingState::Relay) => {
                self.incoming = IncomingState::Direct
            }
            (SwitchMessage::Ended { .. }, IncomingState::Relay) => {
                self.incoming = IncomingState::Ended
            }
            // A leader that has ended still lets the follower move.
            (SwitchMessage::Moved { .. }, IncomingState::Ended)
                if !self.is_leader && !self.agreed =>
            {
                ()
            }
            _ => return Err(SwitchError::UnexpectedFrame),
        }
        if let SwitchMessage::Moved { .. } = message {
            if self.is_leader && !self.agreed {
                return Err(SwitchError::UnexpectedFrame);
            }
            self.agreed = true;
        }
        Ok(())
    }

    /// The relay's connection ended. What this side still had to say there, nobody is waiting for.
    ///
    /// # Errors
    /// When more was to come.
    pub fn relay_ended(&self) -> Result<(), SwitchError> {
        if self.incoming == IncomingState::Relay {
            Err(SwitchError::Truncated(self.received))
        } else {
            Ok(())
        }
    }

    /// Where the next byte is.
    pub fn read_source(&self) -> ReadSource {
        match self.incoming {
            IncomingState::Relay => ReadSource::Relay,
            IncomingState::Direct if self.has_direct => ReadSource::Direct,
            IncomingState::Direct => ReadSource::AwaitingDirect,
            IncomingState::Ended => ReadSource::End,
        }
    }

    /// Whether the relay is needed no more.
    pub fn is_done_with_relay(&self) -> bool {
        self.outgoing != OutgoingState::Relay && self.incoming != IncomingState::Relay
    }
}
