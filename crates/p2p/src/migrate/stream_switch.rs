//! Decides when each direction of a stream leaves the relay, and where the next byte is read. No
//! I/O.

use super::SwitchMessage;

/// Relay connection is unusable: bytes are missing, or the peer violates the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// Relay ended without a message.
    #[error("the relay ended after byte {0}, before the peer did: connect again")]
    Truncated(u64),
    /// Peer announced another number of bytes than arrived.
    #[error("the peer announced {announced} bytes on the relay, and {received} arrived")]
    Missing {
        /// Number that the peer announced.
        announced: u64,
        /// Number of bytes that arrived.
        received: u64,
    },
    /// Bytes or messages followed the last message.
    #[error("the peer sent more on the relay after its last message")]
    UnexpectedFrame,
}

/// Place of the next byte to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// On the relay.
    Relay,
    /// On the direct connection, which is still awaited; the peer has it already.
    AwaitingDirect,
    /// On the direct connection.
    Direct,
    /// The stream has ended.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutgoingState {
    Relay,
    /// The end message was sent on the relay.
    Ended,
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IncomingState {
    Relay,
    Ended,
    Direct,
}

/// Both directions of one side's stream.
#[derive(Debug)]
pub struct StreamSwitch {
    is_leader: bool,
    /// True if there is a direct connection.
    has_direct: bool,
    /// True if the leader has announced its move; as the leader: whether that message was taken for
    /// sending.
    agreed: bool,
    outgoing: OutgoingState,
    sent: u64,
    incoming: IncomingState,
    received: u64,
}

impl StreamSwitch {
    /// Creates a switch that begins on the relay. `is_leader`: as in the session.
    pub fn on_relay(is_leader: bool) -> Self {
        Self {
            is_leader,
            has_direct: false,
            agreed: false,
            outgoing: OutgoingState::Relay,
            sent: 0,
            incoming: IncomingState::Relay,
            received: 0,
        }
    }

    /// Creates a switch without a relay: both directions wait for the direct connection.
    pub fn without_relay() -> Self {
        // Both sides count as agreed: without a relay there is nothing to switch.
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

    /// Records a direct connection. Another one may replace it until this side has moved.
    pub fn direct_found(&mut self) {
        self.has_direct = true;
    }

    /// Records that the direct connection is unusable, and another one may come, unless a side has
    /// moved.
    pub fn direct_withdrawn(&mut self) {
        self.has_direct = self.is_committed();
    }

    /// Returns whether the direct connection must not be replaced: bytes went over it, or a message
    /// announced them.
    pub fn is_committed(&self) -> bool {
        self.has_direct && (self.agreed || self.outgoing == OutgoingState::Direct)
    }

    /// Takes the next message for the relay; it counts as sent and goes before anything else.
    pub fn next_message(&mut self) -> Option<SwitchMessage> {
        // The follower waits for the leader's announcement: the leader may have selected another
        // pair (decision 35).
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
        // A leader that has ended announces the move as well, for the follower's direction.
        if self.outgoing == OutgoingState::Relay {
            self.outgoing = OutgoingState::Direct;
        }
        Some(SwitchMessage::Moved { at: self.sent })
    }

    /// Ends this side. Returns the end message, if it belongs on the relay; otherwise the socket
    /// signals the end.
    pub fn end_outgoing(&mut self) -> Option<SwitchMessage> {
        if self.outgoing != OutgoingState::Relay {
            return None;
        }
        self.outgoing = OutgoingState::Ended;
        Some(SwitchMessage::Ended { at: self.sent })
    }

    /// Counts bytes given to the relay.
    pub fn count_sent(&mut self, bytes: usize) {
        debug_assert_eq!(
            self.outgoing,
            OutgoingState::Relay,
            "what moved writes elsewhere"
        );
        self.sent += bytes as u64;
    }

    /// Returns whether bytes go over the direct connection, which may still be awaited.
    pub fn writes_direct(&self) -> bool {
        self.outgoing == OutgoingState::Direct
    }

    /// Returns whether the end was announced on the relay.
    pub fn has_ended(&self) -> bool {
        self.outgoing == OutgoingState::Ended
    }

    /// Counts bytes received from the relay.
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

    /// Handles a message from the relay.
    ///
    /// # Errors
    /// See [`SwitchError`].
    pub fn handle_message(&mut self, message: SwitchMessage) -> Result<(), SwitchError> {
        let (SwitchMessage::Moved { at } | SwitchMessage::Ended { at }) = message;
        // Numbers must agree exactly: a lost or added frame would shift every later byte.
        if at != self.received {
            return Err(SwitchError::Missing {
                announced: at,
                received: self.received,
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
                if !self.is_leader && !self.agreed => {}
            _ => return Err(SwitchError::UnexpectedFrame),
        }
        if let SwitchMessage::Moved { .. } = message {
            // Only the leader announces first; a follower's move before that violates the protocol.
            if self.is_leader && !self.agreed {
                return Err(SwitchError::UnexpectedFrame);
            }
            self.agreed = true;
        }
        Ok(())
    }

    /// Handles the end of the relay's connection. Messages of this side that are still pending have
    /// no recipient.
    ///
    /// # Errors
    /// Fails when the peer had not finished there.
    pub fn relay_ended(&self) -> Result<(), SwitchError> {
        if self.incoming == IncomingState::Relay {
            Err(SwitchError::Truncated(self.received))
        } else {
            Ok(())
        }
    }

    /// Returns where to read the next byte.
    pub fn read_source(&self) -> ReadSource {
        match self.incoming {
            IncomingState::Relay => ReadSource::Relay,
            IncomingState::Direct if self.has_direct => ReadSource::Direct,
            IncomingState::Direct => ReadSource::AwaitingDirect,
            IncomingState::Ended => ReadSource::End,
        }
    }

    /// Returns whether the relay is no longer needed.
    pub fn is_done_with_relay(&self) -> bool {
        self.outgoing != OutgoingState::Relay && self.incoming != IncomingState::Relay
    }
}
