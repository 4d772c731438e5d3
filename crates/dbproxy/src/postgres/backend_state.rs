//! State of a backend's session: its parameters and its prepared statements.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use ring::digest::{SHA256, digest};

use super::session_effect::PostgresSessionEffect;

/// Statements prepared at one backend, the same as PgBouncer's `max_prepared_statements`.
pub(super) const MAX_PREPARED: usize = 200;
/// Prefix of statement names at backends.
pub(super) const NAME_PREFIX: &str = "nearpath_";
/// Status of ReadyForQuery: no transaction is open.
pub(super) const STATUS_IDLE: u8 = b'I';

/// Parameters that the server changes by itself, in open sessions too. No statement sets them.
pub(super) const SERVER_PARAMETERS: [&str; 2] = ["in_hot_standby", "server_version"];

/// Parameters as the server reported them last.
pub(super) type SessionParameters = BTreeMap<String, String>;
/// Parameters with which sessions of a kind begin. The sessions that reported the same share them,
/// so a change that one of them sees is known for all.
pub(super) type InitialParameters = Rc<RefCell<SessionParameters>>;

/// A statement that a client prepared.
#[derive(Debug)]
pub(super) struct PreparedStatement {
    /// Its name at backends, whatever the client's name for it is.
    pub(super) name: Rc<StatementName>,
    /// Text and parameter types, as in a Parse.
    pub(super) body: Bytes,
    pub(super) effect: PostgresSessionEffect,
}

/// Name of a statement at all backends. Equal texts share one, whoever prepared them.
#[derive(Debug)]
pub(super) struct StatementName {
    id: u64,
    pub(super) text: String,
}

/// The names in use, by the digest of text and types. Only the clients keep the texts.
#[derive(Debug, Default)]
pub(super) struct StatementNames {
    known: RefCell<HashMap<[u8; 32], Weak<StatementName>>>,
    next: Cell<u64>,
    purge_at: Cell<usize>,
}

impl StatementNames {
    /// Returns the name for the text and types of a Parse.
    pub(super) fn name_for(&self, body: &[u8]) -> Rc<StatementName> {
        // A digest, because texts may be long; SHA-256, because a collision would run another
        // client's statement.
        let digest = digest(&SHA256, body)
            .as_ref()
            .try_into()
            .expect("SHA-256 gives 32 bytes");
        let mut known = self.known.borrow_mut();
        if let Some(name) = known.get(&digest).and_then(Weak::upgrade) {
            return name;
        }
        // Purged at twice the number of live names, so the cost per name is constant.
        if known.len() >= self.purge_at.get() {
            known.retain(|_, name| name.strong_count() > 0);
            self.purge_at.set(2 * known.len() + 64);
        }
        // Ids are never reused: a name may still be in use where its statement is being closed.
        let id = self.next.replace(self.next.get() + 1);
        let name = Rc::new(StatementName {
            id,
            text: format!("{NAME_PREFIX}{id}"),
        });
        known.insert(digest, Rc::downgrade(&name));
        name
    }
}

/// Place of a statement at a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum StatementSlot {
    /// Under the name that the statement has at all backends.
    Named(u64),
    /// As the unnamed statement, which the next unnamed Parse replaces.
    Unnamed,
}

/// A Parse that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentParse {
    slot: StatementSlot,
    token: u64,
}

/// State of one backend's session.
#[derive(Debug, Default)]
pub(super) struct BackendState {
    /// Status of its last ReadyForQuery; 0 when no further one will come.
    pub(super) status: u8,
    pub(super) parameters: SessionParameters,
    /// Parameters of a session that begins now.
    pub(super) initial_parameters: InitialParameters,
    /// Process id and secret for cancellations.
    pub(super) key: (i32, i32),
    /// The session may hold state that only the server knows of.
    pub(super) needs_cleaning: bool,
    prepared: HashMap<StatementSlot, PreparedEntry>,
    /// Counts uses and Parse messages.
    use_count: u64,
    series_id: u64,
}

#[derive(Debug)]
struct PreparedEntry {
    name: Rc<StatementName>,
    last_use: u64,
    token: u64,
    certainty: PreparedCertainty,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PreparedCertainty {
    Confirmed,
    /// Sent in this series of messages. If an earlier message of the series fails, the server skips
    /// the Parse and everything that relies on it. After the end of the series only its reply
    /// confirms it.
    Sent(u64),
    /// Unknown, or no longer executable as it is. It is closed before it is prepared again.
    Doubtful,
}

impl PreparedStatement {
    /// Returns the place where the statement is prepared for clients that call it `name`.
    pub(super) fn slot(&self, name: &[u8]) -> StatementSlot {
        if name.is_empty() {
            StatementSlot::Unnamed
        } else {
            StatementSlot::Named(self.name.id)
        }
    }
}

impl BackendState {
    /// Takes the current parameters for those of a session that begins now: no client has changed
    /// any since the session was opened or cleaned.
    pub(super) fn adopt_parameters(&self) {
        self.initial_parameters
            .borrow_mut()
            .clone_from(&self.parameters);
    }

    /// Stores a parameter that no client has set: sessions begin with it from now on.
    pub(super) fn set_initial_parameter(&mut self, name: String, value: String) {
        self.initial_parameters
            .borrow_mut()
            .insert(name.clone(), value.clone());
        self.parameters.insert(name, value);
    }

    /// Returns whether a Bind that is sent now finds `statement`; if so, this counts as a use.
    pub(super) fn has_prepared(
        &mut self,
        slot: StatementSlot,
        statement: &PreparedStatement,
    ) -> bool {
        self.use_count += 1;
        let (count, series) = (self.use_count, self.series_id);
        let known = self.prepared.get_mut(&slot).filter(|prepared| {
            prepared.name.id == statement.name.id
                && [
                    PreparedCertainty::Confirmed,
                    PreparedCertainty::Sent(series),
                ]
                .contains(&prepared.certainty)
        });
        known.map(|prepared| prepared.last_use = count).is_some()
    }

    /// Records a Parse that is sent. Also returns the statement to close before: the same one, if
    /// it may exist, or the least recently used one.
    pub(super) fn record_parse(
        &mut self,
        slot: StatementSlot,
        statement: &PreparedStatement,
    ) -> (SentParse, Option<Rc<StatementName>>) {
        self.use_count += 1;
        let (token, standing) = (self.use_count, PreparedCertainty::Sent(self.series_id));
        let before = self.prepared.remove(&slot).map(|prepared| prepared.name);
        // A Parse replaces the unnamed statement by itself; a named one has to be closed first, or
        // the server reports a duplicate.
        let closed = if slot == StatementSlot::Unnamed {
            None
        } else {
            before.or_else(|| self.evict_least_used())
        };
        let prepared = PreparedEntry {
            name: statement.name.clone(),
            last_use: token,
            token,
            certainty: standing,
        };
        self.prepared.insert(slot, prepared);
        (SentParse { slot, token }, closed)
    }

    fn evict_least_used(&mut self) -> Option<Rc<StatementName>> {
        if self.prepared.len() < MAX_PREPARED {
            return None;
        }
        // The unnamed statement takes no part: clients rely on it until their next Parse or query.
        let named = self
            .prepared
            .iter()
            .filter(|(slot, _)| **slot != StatementSlot::Unnamed);
        let least = named
            .min_by_key(|(_, prepared)| prepared.last_use)
            .map(|(slot, _)| *slot)?;
        self.prepared.remove(&least).map(|prepared| prepared.name)
    }

    /// Records that the server has prepared the statement.
    pub(super) fn confirm_parse(&mut self, sent: SentParse) {
        // The token tells this Parse from a later one in the same place.
        let same = self
            .prepared
            .get_mut(&sent.slot)
            .filter(|prepared| prepared.token == sent.token);
        same.into_iter()
            .for_each(|prepared| prepared.certainty = PreparedCertainty::Confirmed);
    }

    /// Records that the server did not execute this Parse; an earlier one may have succeeded.
    pub(super) fn doubt_parse(&mut self, sent: SentParse) {
        let same = self
            .prepared
            .get_mut(&sent.slot)
            .filter(|prepared| prepared.token == sent.token);
        same.into_iter()
            .for_each(|prepared| prepared.certainty = PreparedCertainty::Doubtful);
    }

    /// Marks a statement that has to be prepared again: a table that it uses has changed.
    pub(super) fn doubt_statement(&mut self, statement: &PreparedStatement) {
        let prepared = self
            .prepared
            .get_mut(&StatementSlot::Named(statement.name.id));
        prepared
            .into_iter()
            .for_each(|prepared| prepared.certainty = PreparedCertainty::Doubtful);
    }

    /// Drops all named statements except those that are in flight.
    pub(super) fn forget_named(&mut self) {
        self.prepared.retain(|slot, prepared| {
            *slot == StatementSlot::Unnamed
                || matches!(prepared.certainty, PreparedCertainty::Sent(_))
        });
    }

    /// Drops the unnamed statement.
    pub(super) fn forget_unnamed(&mut self) {
        self.prepared.remove(&StatementSlot::Unnamed);
    }

    /// Ends a series of messages: later messages are not skipped with it.
    pub(super) fn end_series(&mut self) {
        self.series_id += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(names: &StatementNames, body: &str) -> PreparedStatement {
        PreparedStatement {
            name: names.name_for(body.as_bytes()),
            body: Bytes::new(),
            effect: PostgresSessionEffect::default(),
        }
    }

    #[test]
    fn equal_texts_share_one_name_while_it_is_in_use() {
        let names = StatementNames::default();
        let first = names.name_for(b"a");
        assert!(
            Rc::ptr_eq(&first, &names.name_for(b"a")) && !Rc::ptr_eq(&first, &names.name_for(b"b"))
        );
        let text = first.text.clone();
        drop(first);
        assert_ne!(
            names.name_for(b"a").text,
            text,
            "its name may still be in use where it is being closed"
        );
        (0..1_000).for_each(|n| drop(names.name_for(format!("{n}").as_bytes())));
        assert!(names.known.borrow().len() < 130, "unused names are purged");
    }

    #[test]
    fn the_least_recently_used_statement_is_closed() {
        let (names, mut backend_state) = (StatementNames::default(), BackendState::default());
        let all: Vec<_> = (0..=MAX_PREPARED)
            .map(|n| statement(&names, &n.to_string()))
            .collect();
        let slot = |n: usize| all[n].slot(b"a");
        for (n, statement) in all[..MAX_PREPARED].iter().enumerate() {
            assert!(backend_state.record_parse(slot(n), statement).1.is_none());
        }
        assert!(backend_state.has_prepared(slot(0), &all[0]));
        let closed = backend_state
            .record_parse(slot(MAX_PREPARED), &all[MAX_PREPARED])
            .1
            .unwrap();
        assert!(
            Rc::ptr_eq(&closed, &all[1].name)
                && !backend_state.has_prepared(slot(1), &all[1])
                && backend_state.has_prepared(slot(0), &all[0])
        );
        backend_state.doubt_statement(&all[0]);
        assert!(!backend_state.has_prepared(slot(0), &all[0]));
        let closed = backend_state.record_parse(slot(0), &all[0]).1.unwrap();
        assert!(
            Rc::ptr_eq(&closed, &all[0].name),
            "closed before it is prepared again"
        );
    }

    #[test]
    fn after_a_series_only_a_reply_confirms() {
        let (names, mut backend_state) = (StatementNames::default(), BackendState::default());
        let statement = statement(&names, "a");
        let slot = statement.slot(b"a");
        let (first, _) = backend_state.record_parse(slot, &statement);
        assert!(backend_state.has_prepared(slot, &statement));
        backend_state.end_series();
        assert!(!backend_state.has_prepared(slot, &statement));
        let (second, closed) = backend_state.record_parse(slot, &statement);
        assert!(closed.is_some(), "it may be there");
        backend_state.end_series();
        backend_state.doubt_parse(first);
        backend_state.confirm_parse(second);
        assert!(
            backend_state.has_prepared(slot, &statement),
            "a failure of the first Parse does not affect the second"
        );
        backend_state.forget_named();
        assert!(!backend_state.has_prepared(slot, &statement));
    }
}
