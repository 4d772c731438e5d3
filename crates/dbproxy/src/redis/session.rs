//! What a client's connection has under way and what it would leave behind: a pure state machine over its commands and their replies.
//!
//! Commands are taken as done when they are sent; where a reply says otherwise, the client keeps its backend, which is reset after it. So an unexpected
//! reply costs a connection its reuse, never its isolation.

use std::collections::VecDeque;

use super::frame::RespValue;
use super::session_effect::{CommandWords, RedisSessionEffect, SettingChange};
use super::settings::RedisIdentity;

/// What to do with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandAction {
    /// Send it on.
    Forward,
    /// It changes the connection: answer it if the answer is known, else send it on.
    Change(SettingChange),
    /// Ask again when no reply is outstanding.
    Wait,
    /// Answer `+OK`: the node has logged in.
    Acknowledge,
    /// Send it and everything after it on unread.
    Opaque,
    /// Clean the backend, if there is one, and answer.
    Reset,
    /// Answer, and end the connection.
    Quit,
}

/// What may be done with the backend of a client that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionResidue {
    /// Nothing of the client is in it.
    Nothing,
    /// State that a reset removes.
    State,
    /// Replies, or something that cannot be seen through.
    Unknown,
}

/// A reply that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RedisExpectedReply {
    /// So many that mean nothing.
    Plain(u64),
    /// One that may take any time.
    Blocking,
    /// To a change.
    Change(SettingChange),
    /// To what ends a transaction or a watch.
    TransactionEnd,
}

/// A change that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// What the connection was before.
    pub before: RedisIdentity,
    /// What was asked for.
    pub change: SettingChange,
    /// Whether the server did it.
    pub accepted: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct RedisSession {
    identity: RedisIdentity,
    expected: VecDeque<RedisExpectedReply>,
    in_transaction: bool,
    is_watching: bool,
    pin: Option<&'static str>,
    has_opaque_replies: bool,
    node_logs_in: bool,
    /// The database that it begins in.
    initial_db: u32,
}

impl RedisSession {
    /// A new client in the database `home`; `login`: the node logs in, and the client's own password is not looked at.
    pub fn new(node_logs_in: bool, initial_db: u32) -> Self {
        Self {
            node_logs_in,
            initial_db,
            identity: RedisIdentity::in_database(initial_db),
            ..Self::default()
        }
    }

    /// What its connection is.
    pub fn identity(&self) -> &RedisIdentity {
        &self.identity
    }

    /// Its connection was set up so without a backend.
    pub fn set_identity(&mut self, identity: RedisIdentity) {
        self.identity = identity;
    }

    /// Why it keeps its backend.
    pub fn pin(&self) -> Option<&'static str> {
        self.pin
    }

    /// Whether no reply is outstanding.
    pub fn is_quiet(&self) -> bool {
        self.expected.is_empty()
    }

    /// Whether its bytes can no longer be seen through.
    pub fn is_opaque(&self) -> bool {
        self.has_opaque_replies
    }

    /// Whether a command is done when its reply is there, and nothing else hangs on it.
    pub fn is_plain(&self) -> bool {
        !self.has_opaque_replies && !self.in_transaction && !self.is_watching && self.pin.is_none()
    }

    /// Whether a change is outstanding.
    pub fn is_changing(&self) -> bool {
        self.expected
            .iter()
            .any(|expect| matches!(expect, RedisExpectedReply::Change(_)))
    }

    /// Whether its backend may serve another client now.
    pub fn is_free(&self) -> bool {
        self.residue() == SessionResidue::Nothing
    }

    /// What it would leave behind.
    pub fn residue(&self) -> SessionResidue {
        if self.has_opaque_replies || !self.is_quiet() {
            SessionResidue::Unknown
        } else if self.in_transaction || self.is_watching || self.pin.is_some() {
            SessionResidue::State
        } else {
            SessionResidue::Nothing
        }
    }

    /// Whether a reply is outstanding that may never come.
    pub fn is_blocked(&self) -> bool {
        self.expected.contains(&RedisExpectedReply::Blocking)
    }

    /// Whether the next reply is to a change.
    pub fn expects_change_reply(&self) -> bool {
        matches!(self.expected.front(), Some(RedisExpectedReply::Change(_)))
    }

    /// It sent a command. What is to be forwarded counts as sent with [`sent`](Self::sent).
    pub fn handle_command(&mut self, words: &CommandWords<'_>) -> CommandAction {
        match words.session_effect(self.in_transaction) {
            RedisSessionEffect::Opaque(_)
            | RedisSessionEffect::Reset
            | RedisSessionEffect::Quit
                if !self.is_quiet() =>
            {
                CommandAction::Wait
            }
            RedisSessionEffect::Opaque(_) => CommandAction::Opaque,
            RedisSessionEffect::Reset => CommandAction::Reset,
            RedisSessionEffect::Quit => CommandAction::Quit,
            RedisSessionEffect::Change(SettingChange::Auth(..)) if self.node_logs_in => {
                if self.is_quiet() {
                    CommandAction::Acknowledge
                } else {
                    CommandAction::Wait
                }
            }
            RedisSessionEffect::Change(change) => self.change_action(change),
            _ => CommandAction::Forward,
        }
    }

    fn change_action(&self, change: SettingChange) -> CommandAction {
        match change {
            SettingChange::Hello {
                version,
                auth: Some(_),
                name,
            } if self.node_logs_in => CommandAction::Change(SettingChange::Hello {
                version,
                auth: None,
                name,
            }),
            change => CommandAction::Change(change),
        }
    }

    /// A command goes to the backend.
    pub fn record_command(&mut self, words: &CommandWords<'_>) {
        match words.session_effect(self.in_transaction) {
            RedisSessionEffect::Blocking => self.expected.push_back(RedisExpectedReply::Blocking),
            RedisSessionEffect::EndsTransaction => {
                (self.in_transaction, self.is_watching) = (false, false);
                self.expected.push_back(RedisExpectedReply::TransactionEnd);
            }
            RedisSessionEffect::Unwatch => {
                self.is_watching = false;
                self.expected.push_back(RedisExpectedReply::TransactionEnd);
            }
            meaning => {
                self.expect_plain();
                self.apply_effect(meaning);
            }
        }
    }

    fn apply_effect(&mut self, meaning: RedisSessionEffect) {
        match meaning {
            RedisSessionEffect::Multi => self.in_transaction = true,
            RedisSessionEffect::Watch => self.is_watching = true,
            RedisSessionEffect::Pins(why) => self.pin = self.pin.or(Some(why)),
            RedisSessionEffect::Opaque(why) => {
                (self.pin, self.has_opaque_replies) = (Some(why), true)
            }
            _ => {}
        }
    }

    /// A change goes to the backend.
    pub fn record_change(&mut self, change: SettingChange) {
        self.expected.push_back(RedisExpectedReply::Change(change));
    }

    fn expect_plain(&mut self) {
        match self.expected.back_mut() {
            Some(RedisExpectedReply::Plain(count)) => *count += 1,
            _ => self.expected.push_back(RedisExpectedReply::Plain(1)),
        }
    }

    /// The backend sent a value. `NoConnection`: nobody asked for it.
    pub fn handle_reply(&mut self, value: &RespValue<'_>) -> Option<Option<ChangeOutcome>> {
        if value.is_push() {
            self.pin = self.pin.or(Some("messages that nobody asked for"));
            return Some(None);
        }
        match self.expected.front_mut()? {
            RedisExpectedReply::Plain(count) if *count > 1 => {
                *count -= 1;
                return Some(None);
            }
            RedisExpectedReply::TransactionEnd if !proves_transaction_end(value) => {
                self.pin = self.pin.or(Some("a transaction that did not end"))
            }
            _ => {}
        }
        let Some(RedisExpectedReply::Change(change)) = self.expected.pop_front() else {
            return Some(None);
        };
        let queued = value.line == b"+QUEUED";
        if queued {
            // In a transaction that was thought to have ended.
            self.pin = self.pin.or(Some("a setting changed within MULTI"));
        }
        Some(Some(
            self.apply_change(change, !value.is_error() && !queued),
        ))
    }

    fn apply_change(&mut self, change: SettingChange, agreed: bool) -> ChangeOutcome {
        let of = self.identity.clone();
        if agreed {
            self.identity = of.with_change(&change);
        } else if matches!(change, SettingChange::Hello { .. }) {
            // It may have been done by half.
            self.pin = self.pin.or(Some("HELLO was refused"));
        }
        ChangeOutcome {
            before: of,
            change,
            accepted: agreed,
        }
    }

    /// Its backend was reset, or it has none and asked for a reset.
    pub fn reset(&mut self) {
        *self = Self::new(self.node_logs_in, self.initial_db);
    }
}

/// Whether a reply proves that no transaction and no watch is left: what `EXEC`, `DISCARD` and `UNWATCH` did, or what they never do half.
fn proves_transaction_end(value: &RespValue<'_>) -> bool {
    matches!(value.line.first(), Some(b'*' | b'_' | b'$'))
        || value.line == b"+OK"
        || value.line.starts_with(b"-EXECABORT")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn send_command(session: &mut RedisSession, text: &str) -> CommandAction {
        let words = CommandWords::parse(text.as_bytes()).unwrap();
        let verdict = session.handle_command(&words);
        match &verdict {
            CommandAction::Change(change) => session.record_change(change.clone()),
            CommandAction::Forward | CommandAction::Opaque => session.record_command(&words),
            _ => {}
        }
        verdict
    }

    fn receive_reply(session: &mut RedisSession, line: &str) {
        session
            .handle_reply(&RespValue {
                line: line.as_bytes(),
            })
            .expect("it was asked for");
    }

    #[test]
    fn a_transaction_keeps_its_backend_until_it_ends() {
        let mut session = RedisSession::default();
        send_command(&mut session, "WATCH k");
        receive_reply(&mut session, "+OK");
        assert_eq!(session.residue(), SessionResidue::State);
        for text in ["MULTI", "SET k v", "EXEC"] {
            send_command(&mut session, text);
        }
        for line in ["+OK", "+QUEUED", "*1"] {
            assert_eq!(session.residue(), SessionResidue::Unknown);
            receive_reply(&mut session, line);
        }
        assert_eq!(session.residue(), SessionResidue::Nothing);
    }

    #[test]
    fn a_transaction_that_the_server_does_not_end_is_reset() {
        for line in ["-ERR wrong number of arguments", "-NOPERM", "+QUEUED"] {
            let mut session = RedisSession::default();
            send_command(&mut session, "MULTI");
            receive_reply(&mut session, "+OK");
            send_command(&mut session, "EXEC");
            receive_reply(&mut session, line);
            assert_eq!(session.residue(), SessionResidue::State, "{line}");
        }
    }

    #[test]
    fn a_setting_takes_effect_when_the_server_accepts_it() {
        let mut session = RedisSession::default();
        send_command(&mut session, "SELECT 3");
        receive_reply(&mut session, "-ERR DB index is out of range");
        assert_eq!(*session.identity(), RedisIdentity::default());
        send_command(&mut session, "SELECT 3");
        receive_reply(&mut session, "+OK");
        assert_eq!(
            *session.identity(),
            RedisIdentity::default().with_change(&SettingChange::Select(3))
        );
        assert!(session.is_free());
    }

    #[test]
    fn a_client_password_is_ignored_where_the_node_logs_in() {
        let mut session = RedisSession::new(true, 0);
        assert_eq!(
            send_command(&mut session, "AUTH whatever"),
            CommandAction::Acknowledge
        );
        let hello = SettingChange::Hello {
            version: Some(3),
            auth: None,
            name: None,
        };
        assert_eq!(
            send_command(&mut session, "HELLO 3 AUTH me whatever"),
            CommandAction::Change(hello)
        );
        assert_eq!(
            send_command(&mut session, "AUTH whatever"),
            CommandAction::Wait
        );
    }

    #[test]
    fn an_unexpected_reply_is_noticed() {
        let mut session = RedisSession::default();
        assert_eq!(session.handle_reply(&RespValue { line: b"+OK" }), None);
        send_command(&mut session, "SUBSCRIBE news");
        assert_eq!(session.residue(), SessionResidue::Unknown);
    }

    proptest! {
        /// A backend is free only if every command was answered and no transaction, watch or kept state can be open, by a plain model of the server.
        #[test]
        fn free_means_that_the_server_agrees(commands in proptest::collection::vec(0_usize..7, 1..30), lag in 0_usize..4) {
            let texts = ["GET a", "MULTI", "EXEC", "DISCARD", "WATCH a", "UNWATCH", "CLIENT TRACKING on"];
            let (mut session, mut waiting) = (RedisSession::default(), VecDeque::new());
            let (mut multi, mut watch, mut tracks) = (false, false, false);
            for at in commands {
                send_command(&mut session, texts[at]);
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
                    receive_reply(&mut session, waiting.pop_front().unwrap());
                }
                let clean = waiting.is_empty() && !multi && !watch && !tracks;
                prop_assert!(!session.is_free() || clean, "{session:?}");
            }
        }
    }
}
