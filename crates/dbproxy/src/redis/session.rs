//! State machine of a client's connection: outstanding replies, and the state that the backend
//! would keep. Pure.
//!
//! A command counts as executed when it is sent. If a reply says otherwise, the client keeps its
//! backend, which is reset afterwards. So an unexpected reply costs a connection its reuse, never
//! its isolation.

use std::collections::VecDeque;

use super::frame::RespValue;
use super::session_effect::{CommandWords, RedisSessionEffect, SettingChange};
use super::settings::RedisIdentity;

/// Action for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandAction {
    /// Forward the command.
    Forward,
    /// The command changes the connection: answer it if the reply is known, else forward it.
    Change(SettingChange),
    /// Try again when no reply is outstanding.
    Wait,
    /// Answer `+OK`: the node has already logged in.
    Acknowledge,
    /// Forward this command and everything after it unread.
    Opaque,
    /// Clean the backend, if there is one, and answer.
    Reset,
    /// Answer and close the connection.
    Quit,
}

/// State of a departing client in its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionResidue {
    /// The backend holds nothing of the client.
    Nothing,
    /// The backend holds state that a reset removes.
    State,
    /// Replies are outstanding, or the traffic is unreadable.
    Unknown,
}

/// An outstanding reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RedisExpectedReply {
    /// So many replies without effect on the session.
    Plain(u64),
    /// A reply that may take any time.
    Blocking,
    /// The reply to a setting.
    Change(SettingChange),
    /// The reply to a command that ends a transaction or a watch.
    TransactionEnd,
}

/// A setting that the server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// Identity before the change.
    pub before: RedisIdentity,
    /// The requested change.
    pub change: SettingChange,
    /// The server accepted the change.
    pub accepted: bool,
}

/// Session of one client.
#[derive(Debug, Default)]
pub struct RedisSession {
    identity: RedisIdentity,
    expected: VecDeque<RedisExpectedReply>,
    in_transaction: bool,
    is_watching: bool,
    pin: Option<&'static str>,
    has_opaque_replies: bool,
    node_logs_in: bool,
    /// The database at the start of the session.
    initial_db: u32,
}

impl RedisSession {
    /// Creates the session of a new client in the database `initial_db`. With `node_logs_in` the
    /// client's own password is ignored.
    pub fn new(node_logs_in: bool, initial_db: u32) -> Self {
        Self {
            node_logs_in,
            initial_db,
            identity: RedisIdentity::in_database(initial_db),
            ..Self::default()
        }
    }

    /// Returns the identity of the connection.
    pub fn identity(&self) -> &RedisIdentity {
        &self.identity
    }

    /// Sets the identity that the connection has got without a backend.
    pub fn set_identity(&mut self, identity: RedisIdentity) {
        self.identity = identity;
    }

    /// Returns the reason why the client keeps its backend.
    pub fn pin(&self) -> Option<&'static str> {
        self.pin
    }

    /// Returns whether no reply is outstanding.
    pub fn is_quiet(&self) -> bool {
        self.expected.is_empty()
    }

    /// Returns whether the traffic is no longer readable.
    pub fn is_opaque(&self) -> bool {
        self.has_opaque_replies
    }

    /// Returns whether the next command is complete with its reply: no transaction, watch or kept
    /// state is involved.
    pub fn is_plain(&self) -> bool {
        !self.has_opaque_replies && !self.in_transaction && !self.is_watching && self.pin.is_none()
    }

    /// Returns whether a setting is outstanding.
    pub fn is_changing(&self) -> bool {
        self.expected
            .iter()
            .any(|reply| matches!(reply, RedisExpectedReply::Change(_)))
    }

    /// Returns whether the backend may serve another client now.
    pub fn is_free(&self) -> bool {
        self.residue() == SessionResidue::Nothing
    }

    /// Returns what the client would leave in its backend.
    pub fn residue(&self) -> SessionResidue {
        if self.has_opaque_replies || !self.is_quiet() {
            SessionResidue::Unknown
        } else if self.in_transaction || self.is_watching || self.pin.is_some() {
            SessionResidue::State
        } else {
            SessionResidue::Nothing
        }
    }

    /// Returns whether a reply is outstanding that may never come.
    pub fn is_blocked(&self) -> bool {
        self.expected.contains(&RedisExpectedReply::Blocking)
    }

    /// Returns whether the next reply belongs to a setting.
    pub fn expects_change_reply(&self) -> bool {
        matches!(self.expected.front(), Some(RedisExpectedReply::Change(_)))
    }

    /// Handles a command of the client. A forwarded command is recorded with
    /// [`record_command`](Self::record_command).
    pub fn handle_command(&mut self, words: &CommandWords<'_>) -> CommandAction {
        match words.session_effect(self.in_transaction) {
            // These need an empty queue: the adapter answers them itself, or stops counting replies
            // after them.
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
            // Answered in place only if no reply is outstanding, because replies have to stay in
            // order.
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

    /// Records a command that goes to the backend.
    pub fn record_command(&mut self, words: &CommandWords<'_>) {
        match words.session_effect(self.in_transaction) {
            RedisSessionEffect::Blocking => self.expected.push_back(RedisExpectedReply::Blocking),
            RedisSessionEffect::EndsTransaction => {
                // `EXEC` and `DISCARD` also end all watches
                // (redis.io/docs/latest/develop/interact/transactions).
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
            RedisSessionEffect::Pins(reason) => self.pin = self.pin.or(Some(reason)),
            RedisSessionEffect::Opaque(reason) => {
                (self.pin, self.has_opaque_replies) = (Some(reason), true)
            }
            _ => {}
        }
    }

    /// Records a setting that goes to the backend.
    pub fn record_change(&mut self, change: SettingChange) {
        self.expected.push_back(RedisExpectedReply::Change(change));
    }

    fn expect_plain(&mut self) {
        match self.expected.back_mut() {
            // Consecutive plain replies share one entry: a pipeline of thousands takes no memory.
            Some(RedisExpectedReply::Plain(count)) => *count += 1,
            _ => self.expected.push_back(RedisExpectedReply::Plain(1)),
        }
    }

    /// Handles a value of the backend. `None`: no command asked for it.
    pub fn handle_reply(&mut self, value: &RespValue<'_>) -> Option<Option<ChangeOutcome>> {
        if value.is_push() {
            // Pushes mean that the client has subscribed or tracks keys; only a reset ends that.
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
            // The server was still within a transaction that the session took for ended.
            self.pin = self.pin.or(Some("a setting changed within MULTI"));
            // The connection cannot be cleaned then, only closed.
            self.has_opaque_replies |= change.survives_reset();
        }
        Some(Some(
            self.apply_change(change, !value.is_error() && !queued),
        ))
    }

    fn apply_change(&mut self, change: SettingChange, accepted: bool) -> ChangeOutcome {
        let before = self.identity.clone();
        if accepted {
            self.identity = before.with_change(&change);
            if matches!(change, SettingChange::MaintenanceNotifications(_)) {
                self.pin = self.pin.or(Some("CLIENT MAINT_NOTIFICATIONS"));
            }
        } else if matches!(change, SettingChange::Hello { .. }) {
            // `HELLO` may have been executed in part: it sets user, version and name in turn.
            self.pin = self.pin.or(Some("HELLO was refused"));
        }
        ChangeOutcome {
            before,
            change,
            accepted,
        }
    }

    /// Resets the session: its backend was reset, or it has none.
    pub fn reset(&mut self) {
        *self = Self::new(self.node_logs_in, self.initial_db);
    }
}

/// Returns whether a reply proves that no transaction and no watch is left. Anything else keeps the
/// backend.
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
        let action = session.handle_command(&words);
        match &action {
            CommandAction::Change(change) => session.record_change(change.clone()),
            CommandAction::Forward | CommandAction::Opaque => session.record_command(&words),
            _ => {}
        }
        action
    }

    fn receive_reply(session: &mut RedisSession, line: &str) {
        session
            .handle_reply(&RespValue {
                line: line.as_bytes(),
            })
            .expect("the reply is expected");
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
    fn only_accepted_notifications_of_maintenance_pin() {
        let mut session = RedisSession::default();
        let command = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip";
        assert!(matches!(
            send_command(&mut session, command),
            CommandAction::Change(_)
        ));
        receive_reply(
            &mut session,
            "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'",
        );
        assert!(session.is_free());
        send_command(&mut session, command);
        receive_reply(&mut session, "+OK");
        assert!(!session.is_free());
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
        /// By a plain model of the server: a backend is free only if every command was answered and
        /// no transaction, watch or kept state is open.
        #[test]
        fn a_free_backend_has_no_state_at_the_server(commands in proptest::collection::vec(0_usize..7, 1..30), lag in 0_usize..4) {
            let texts = ["GET a", "MULTI", "EXEC", "DISCARD", "WATCH a", "UNWATCH", "CLIENT TRACKING on"];
            let (mut session, mut waiting) = (RedisSession::default(), VecDeque::new());
            let (mut multi, mut watch, mut tracks) = (false, false, false);
            for at in commands {
                send_command(&mut session, texts[at]);
                // The model's reply.
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
