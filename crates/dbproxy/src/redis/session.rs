//! What a client's connection has under way and what it would leave behind: a pure state machine over its commands and their replies.
//!
//! Commands are taken as done when they are sent; where a reply says otherwise, the client keeps its backend, which is reset after it. So an unexpected
//! reply costs a connection its reuse, never its isolation.

use std::collections::VecDeque;

use super::frame::Value;
use super::session_effect::{Change, Meaning, Words};
use super::settings::Identity;

/// What to do with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Send it on.
    Forward,
    /// It changes the connection: answer it if the answer is known, else send it on.
    Change(Change),
    /// Ask again when no reply is outstanding.
    Wait,
    /// Answer `+OK`: the node has logged in.
    Agree,
    /// Send it and everything after it on unread.
    Opaque,
    /// Clean the backend, if there is one, and answer.
    Reset,
    /// Answer, and end the connection.
    Quit,
}

/// What may be done with the backend of a client that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// Nothing of the client is in it.
    Nothing,
    /// State that a reset removes.
    State,
    /// Replies, or something that cannot be seen through.
    Unknown,
}

/// A reply that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expect {
    /// So many that mean nothing.
    Plain(u64),
    /// One that may take any time.
    Blocking,
    /// To a change.
    Change(Change),
    /// To what ends a transaction or a watch.
    End,
}

/// A change that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// What the connection was before.
    pub of: Identity,
    /// What was asked for.
    pub change: Change,
    /// Whether the server did it.
    pub agreed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Session {
    identity: Identity,
    expects: VecDeque<Expect>,
    multi: bool,
    watch: bool,
    kept: Option<&'static str>,
    opaque: bool,
    login: bool,
    /// The database that it begins in.
    home: u32,
}

impl Session {
    /// A new client in the database `home`; `login`: the node logs in, and the client's own password is not looked at.
    pub fn new(login: bool, home: u32) -> Self {
        Self { login, home, identity: Identity::within(home), ..Self::default() }
    }

    /// What its connection is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its connection was set up so without a backend.
    pub fn becomes(&mut self, identity: Identity) {
        self.identity = identity;
    }

    /// Why it keeps its backend.
    pub fn kept(&self) -> Option<&'static str> {
        self.kept
    }

    /// Whether no reply is outstanding.
    pub fn quiet(&self) -> bool {
        self.expects.is_empty()
    }

    /// Whether its bytes can no longer be seen through.
    pub fn is_opaque(&self) -> bool {
        self.opaque
    }

    /// Whether a command is done when its reply is there, and nothing else hangs on it.
    pub fn is_plain(&self) -> bool {
        !self.opaque && !self.multi && !self.watch && self.kept.is_none()
    }

    /// Whether a change is outstanding.
    pub fn is_changing(&self) -> bool {
        self.expects.iter().any(|expect| matches!(expect, Expect::Change(_)))
    }

    /// Whether its backend may serve another client now.
    pub fn free(&self) -> bool {
        self.leaves() == Leaves::Nothing
    }

    /// What it would leave behind.
    pub fn leaves(&self) -> Leaves {
        if self.opaque || !self.quiet() {
            Leaves::Unknown
        } else if self.multi || self.watch || self.kept.is_some() {
            Leaves::State
        } else {
            Leaves::Nothing
        }
    }

    /// Whether a reply is outstanding that may never come.
    pub fn blocks(&self) -> bool {
        self.expects.contains(&Expect::Blocking)
    }

    /// Whether the next reply is to a change.
    pub fn learns(&self) -> bool {
        matches!(self.expects.front(), Some(Expect::Change(_)))
    }

    /// It sent a command. What is to be forwarded counts as sent with [`sent`](Self::sent).
    pub fn asked(&mut self, words: &Words<'_>) -> Verdict {
        match words.meaning(self.multi) {
            Meaning::Opaque(_) | Meaning::Reset | Meaning::Quit if !self.quiet() => Verdict::Wait,
            Meaning::Opaque(_) => Verdict::Opaque,
            Meaning::Reset => Verdict::Reset,
            Meaning::Quit => Verdict::Quit,
            Meaning::Change(Change::Auth(..)) if self.login => {
                if self.quiet() {
                    Verdict::Agree
                } else {
                    Verdict::Wait
                }
            }
            Meaning::Change(change) => self.change(change),
            _ => Verdict::Forward,
        }
    }

    fn change(&self, change: Change) -> Verdict {
        match change {
            Change::Hello { version, auth: Some(_), name } if self.login => {
                Verdict::Change(Change::Hello { version, auth: None, name })
            }
            change => Verdict::Change(change),
        }
    }

    /// A command goes to the backend.
    pub fn sent(&mut self, words: &Words<'_>) {
        match words.meaning(self.multi) {
            Meaning::Blocking => self.expects.push_back(Expect::Blocking),
            Meaning::Ends => {
                (self.multi, self.watch) = (false, false);
                self.expects.push_back(Expect::End);
            }
            Meaning::Unwatch => {
                self.watch = false;
                self.expects.push_back(Expect::End);
            }
            meaning => {
                self.plain();
                self.marks(meaning);
            }
        }
    }

    fn marks(&mut self, meaning: Meaning) {
        match meaning {
            Meaning::Multi => self.multi = true,
            Meaning::Watch => self.watch = true,
            Meaning::Keeps(why) => self.kept = self.kept.or(Some(why)),
            Meaning::Opaque(why) => (self.kept, self.opaque) = (Some(why), true),
            _ => {}
        }
    }

    /// A change goes to the backend.
    pub fn sent_change(&mut self, change: Change) {
        self.expects.push_back(Expect::Change(change));
    }

    fn plain(&mut self) {
        match self.expects.back_mut() {
            Some(Expect::Plain(count)) => *count += 1,
            _ => self.expects.push_back(Expect::Plain(1)),
        }
    }

    /// The backend sent a value. `None`: nobody asked for it.
    pub fn answered(&mut self, value: &Value<'_>) -> Option<Option<Changed>> {
        if value.is_push() {
            self.kept = self.kept.or(Some("messages that nobody asked for"));
            return Some(None);
        }
        match self.expects.front_mut()? {
            Expect::Plain(count) if *count > 1 => {
                *count -= 1;
                return Some(None);
            }
            Expect::End if !ends(value) => self.kept = self.kept.or(Some("a transaction that did not end")),
            _ => {}
        }
        let Some(Expect::Change(change)) = self.expects.pop_front() else { return Some(None) };
        let queued = value.line == b"+QUEUED";
        if queued {
            // In a transaction that was thought to have ended.
            self.kept = self.kept.or(Some("a setting changed within MULTI"));
        }
        Some(Some(self.changed(change, !value.is_error() && !queued)))
    }

    fn changed(&mut self, change: Change, agreed: bool) -> Changed {
        let of = self.identity.clone();
        if agreed {
            self.identity = of.after(&change);
        } else if matches!(change, Change::Hello { .. }) {
            // It may have been done by half.
            self.kept = self.kept.or(Some("HELLO was refused"));
        }
        Changed { of, change, agreed }
    }

    /// Its backend was reset, or it has none and asked for a reset.
    pub fn reset(&mut self) {
        *self = Self::new(self.login, self.home);
    }
}

/// Whether a reply proves that no transaction and no watch is left: what `EXEC`, `DISCARD` and `UNWATCH` did, or what they never do half.
fn ends(value: &Value<'_>) -> bool {
    matches!(value.line.first(), Some(b'*' | b'_' | b'$'))
        || value.line == b"+OK"
        || value.line.starts_with(b"-EXECABORT")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn send(session: &mut Session, text: &str) -> Verdict {
        let words = Words::read(text.as_bytes()).unwrap();
        let verdict = session.asked(&words);
        match &verdict {
            Verdict::Change(change) => session.sent_change(change.clone()),
            Verdict::Forward | Verdict::Opaque => session.sent(&words),
            _ => {}
        }
        verdict
    }

    fn reply(session: &mut Session, line: &str) {
        session.answered(&Value { line: line.as_bytes() }).expect("it was asked for");
    }

    #[test]
    fn a_transaction_keeps_its_backend_until_it_ends() {
        let mut session = Session::default();
        send(&mut session, "WATCH k");
        reply(&mut session, "+OK");
        assert_eq!(session.leaves(), Leaves::State);
        for text in ["MULTI", "SET k v", "EXEC"] {
            send(&mut session, text);
        }
        for line in ["+OK", "+QUEUED", "*1"] {
            assert_eq!(session.leaves(), Leaves::Unknown);
            reply(&mut session, line);
        }
        assert_eq!(session.leaves(), Leaves::Nothing);
    }

    #[test]
    fn a_transaction_that_the_server_does_not_end_is_reset() {
        for line in ["-ERR wrong number of arguments", "-NOPERM", "+QUEUED"] {
            let mut session = Session::default();
            send(&mut session, "MULTI");
            reply(&mut session, "+OK");
            send(&mut session, "EXEC");
            reply(&mut session, line);
            assert_eq!(session.leaves(), Leaves::State, "{line}");
        }
    }

    #[test]
    fn a_setting_counts_when_the_server_agreed() {
        let mut session = Session::default();
        send(&mut session, "SELECT 3");
        reply(&mut session, "-ERR DB index is out of range");
        assert_eq!(*session.identity(), Identity::default());
        send(&mut session, "SELECT 3");
        reply(&mut session, "+OK");
        assert_eq!(*session.identity(), Identity::default().after(&Change::Select(3)));
        assert!(session.free());
    }

    #[test]
    fn a_password_is_not_looked_at_where_the_node_logs_in() {
        let mut session = Session::new(true, 0);
        assert_eq!(send(&mut session, "AUTH whatever"), Verdict::Agree);
        let hello = Change::Hello { version: Some(3), auth: None, name: None };
        assert_eq!(send(&mut session, "HELLO 3 AUTH me whatever"), Verdict::Change(hello));
        assert_eq!(send(&mut session, "AUTH whatever"), Verdict::Wait);
    }

    #[test]
    fn what_nobody_asked_for_is_noticed() {
        let mut session = Session::default();
        assert_eq!(session.answered(&Value { line: b"+OK" }), None);
        send(&mut session, "SUBSCRIBE news");
        assert_eq!(session.leaves(), Leaves::Unknown);
    }

    proptest! {
        /// A backend is free only if every command was answered and no transaction, watch or kept state can be open, by a plain model of the server.
        #[test]
        fn free_means_that_the_server_agrees(commands in proptest::collection::vec(0_usize..7, 1..30), lag in 0_usize..4) {
            let texts = ["GET a", "MULTI", "EXEC", "DISCARD", "WATCH a", "UNWATCH", "CLIENT TRACKING on"];
            let (mut session, mut waiting) = (Session::default(), VecDeque::new());
            let (mut multi, mut watch, mut tracks) = (false, false, false);
            for at in commands {
                send(&mut session, texts[at]);
                // The server, in words of its own.
                let line = match (at, multi) {
                    (1, true) => "-ERR MULTI calls can not be nested",
                    (1, false) => { multi = true; "+OK" }
                    (2, true) => { multi = false; watch = false; "*1" }
                    (3, true) => { multi = false; watch = false; "+OK" }
                    (2 | 3, false) => "-ERR without MULTI",
                    (4, true) => "-ERR WATCH inside MULTI is not allowed",
                    (6, _) => { tracks = true; "+OK" }
                    (_, true) => "+QUEUED",
                    (4, false) => { watch = true; "+OK" }
                    (5, false) => { watch = false; "+OK" }
                    _ => "$-1",
                };
                waiting.push_back(line);
                while waiting.len() > lag {
                    reply(&mut session, waiting.pop_front().unwrap());
                }
                let clean = waiting.is_empty() && !multi && !watch && !tracks;
                prop_assert!(!session.free() || clean, "{session:?}");
            }
        }
    }
}
