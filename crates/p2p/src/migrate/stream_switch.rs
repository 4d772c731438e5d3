//! When each direction of a way leaves the relay, and what is read from where. No I/O.

use super::Word;

/// The connection to the relay is of no use any more: bytes are missing, or the peer does not keep to its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Torn {
    /// It ended without a word.
    #[error("the relay's connection to the peer ended after byte {0}, before the peer did: connect again")]
    Cut(u64),
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
    After,
}

/// Where the next byte is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// On the relay.
    Relay,
    /// On the direct connection, which is still to come: the peer has it already.
    Awaited,
    /// On the direct connection.
    Direct,
    /// There is none.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Out {
    Relay,
    /// Over the relay everything was said.
    Ended,
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum In {
    Relay,
    Ended,
    Direct,
}

/// Both directions of one side's way.
#[derive(Debug)]
pub struct Halves {
    leads: bool,
    /// There is a direct connection.
    direct: bool,
    /// The leader has said that both have it; as the leader: was told to have said so.
    agreed: bool,
    out: Out,
    sent: u64,
    came_in: In,
    came: u64,
}

impl Halves {
    /// A way that begins on the relay. `leads`: as in the session.
    pub fn on_relay(leads: bool) -> Self {
        Self { leads, direct: false, agreed: false, out: Out::Relay, sent: 0, came_in: In::Relay, came: 0 }
    }

    /// A way without a relay: it waits for the direct connection.
    pub fn without_relay() -> Self {
        Self { leads: true, direct: false, agreed: true, out: Out::Direct, sent: 0, came_in: In::Direct, came: 0 }
    }

    /// The direct connection is there. Before this side has moved, another one may replace it.
    pub fn arrived(&mut self) {
        self.direct = true;
    }

    /// The direct connection is of no use after all, and another one may come; as long as nobody has moved.
    pub fn withdrawn(&mut self) {
        self.direct = self.is_bound();
    }

    /// Whether the direct connection must not be replaced any more: something went over it, or was said to go.
    pub fn is_bound(&self) -> bool {
        self.direct && (self.agreed || self.out == Out::Direct)
    }

    /// The word that is to be said next, on the relay, before anything else: by calling this it is said.
    pub fn say(&mut self) -> Option<Word> {
        let goes = self.direct && if self.leads { !self.agreed } else { self.agreed && self.out == Out::Relay };
        if !goes {
            return None;
        }
        self.agreed = true;
        if self.out == Out::Relay {
            self.out = Out::Direct;
        }
        Some(Word::Moved { at: self.sent })
    }

    /// This side has no more bytes: the word to say, if it is on the relay. Otherwise the direct connection says it.
    pub fn end(&mut self) -> Option<Word> {
        if self.out != Out::Relay {
            return None;
        }
        self.out = Out::Ended;
        Some(Word::Ended { at: self.sent })
    }

    /// So many bytes were given to the relay.
    pub fn sent(&mut self, bytes: usize) {
        debug_assert_eq!(self.out, Out::Relay, "what moved writes elsewhere");
        self.sent += bytes as u64;
    }

    /// Whether bytes go over the direct connection, which may be still to come; else they go over the relay.
    pub fn writes_direct(&self) -> bool {
        self.out == Out::Direct
    }

    /// Whether [`Self::end`] was said on the relay.
    pub fn has_ended(&self) -> bool {
        self.out == Out::Ended
    }

    /// So many bytes came over the relay.
    ///
    /// # Errors
    /// See [`Torn`].
    pub fn came(&mut self, bytes: usize) -> Result<(), Torn> {
        self.came += bytes as u64;
        if self.came_in == In::Relay { Ok(()) } else { Err(Torn::After) }
    }

    /// A word came over the relay.
    ///
    /// # Errors
    /// See [`Torn`].
    pub fn heard(&mut self, word: Word) -> Result<(), Torn> {
        let (Word::Moved { at } | Word::Ended { at }) = word;
        if at != self.came {
            return Err(Torn::Missing { said: at, came: self.came });
        }
        match (word, self.came_in) {
            (Word::Moved { .. }, In::Relay) => self.came_in = In::Direct,
            (Word::Ended { .. }, In::Relay) => self.came_in = In::Ended,
            // A leader that has ended still lets the follower move.
            (Word::Moved { .. }, In::Ended) if !self.leads && !self.agreed => (),
            _ => return Err(Torn::After),
        }
        if let Word::Moved { .. } = word {
            if self.leads && !self.agreed {
                return Err(Torn::After);
            }
            self.agreed = true;
        }
        Ok(())
    }

    /// The relay's connection ended. What this side still had to say there, nobody is waiting for.
    ///
    /// # Errors
    /// When more was to come.
    pub fn relay_ended(&self) -> Result<(), Torn> {
        if self.came_in == In::Relay { Err(Torn::Cut(self.came)) } else { Ok(()) }
    }

    /// Where the next byte is.
    pub fn source(&self) -> Source {
        match self.came_in {
            In::Relay => Source::Relay,
            In::Direct if self.direct => Source::Direct,
            In::Direct => Source::Awaited,
            In::Ended => Source::End,
        }
    }

    /// Whether the relay is needed no more.
    pub fn is_off_relay(&self) -> bool {
        self.out != Out::Relay && self.came_in != In::Relay
    }
}
