//! What is known of a backend's session: its settings, and the statements that are prepared in it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use ring::digest::{SHA256, digest};

use super::session_effect::PostgresSessionEffect;

/// Statements prepared at one backend at most; PgBouncer's `max_prepared_statements` is 200, too.
pub(super) const MAX_PREPARED: usize = 200;
/// What statements are called at backends begins so.
pub(super) const NAME_PREFIX: &str = "nearpath_";
/// Nothing is asked of it, no transaction is open.
pub(super) const STATUS_IDLE: u8 = b'I';

/// Settings, as the server reported them last.
pub(super) type SessionParameters = BTreeMap<String, String>;

/// A statement that a client prepared.
#[derive(Debug)]
pub(super) struct PreparedStatement {
    /// What it is called at backends, whatever the client calls it.
    pub(super) name: Rc<StatementName>,
    /// Text and types, as in a Parse.
    pub(super) body: Bytes,
    pub(super) effect: PostgresSessionEffect,
}

/// Statements with equal texts have one name at all backends, whoever prepared them.
#[derive(Debug)]
pub(super) struct StatementName {
    id: u64,
    pub(super) text: String,
}

/// The names that are in use, by the digest of what they name: texts are kept by their clients alone.
#[derive(Debug, Default)]
pub(super) struct StatementNames {
    known: RefCell<HashMap<[u8; 32], Weak<StatementName>>>,
    next: Cell<u64>,
    purge_at: Cell<usize>,
}

impl StatementNames {
    /// The name of a Parse's text and types.
    pub(super) fn name_for(&self, body: &[u8]) -> Rc<StatementName> {
        let digest = digest(&SHA256, body)
            .as_ref()
            .try_into()
            .expect("SHA-256 gives 32 bytes");
        let mut known = self.known.borrow_mut();
        if let Some(name) = known.get(&digest).and_then(Weak::upgrade) {
            return name;
        }
        if known.len() >= self.purge_at.get() {
            known.retain(|_, name| name.strong_count() > 0);
            self.purge_at.set(2 * known.len() + 64);
        }
        let id = self.next.replace(self.next.get() + 1);
        let name = Rc::new(StatementName {
            id,
            text: format!("{NAME_PREFIX}{id}"),
        });
        known.insert(digest, Rc::downgrade(&name));
        name
    }
}

/// Where a backend has a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum StatementSlot {
    /// Under the name that the statement has at all backends.
    Named(u64),
    /// As the one without a name, which each one that is prepared so replaces.
    Unnamed,
}

/// A Parse that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentParse {
    slot: StatementSlot,
    token: u64,
}

/// Of one backend.
#[derive(Debug, Default)]
pub(super) struct BackendState {
    /// The status of its last ReadyForQuery; 0 when it will not say one any more.
    pub(super) status: u8,
    pub(super) parameters: SessionParameters,
    /// The settings at its start.
    pub(super) initial_parameters: Rc<SessionParameters>,
    /// Process and secret: who has them can cancel.
    pub(super) key: (i32, i32),
    /// Something may be left that only the server knows of.
    pub(super) needs_cleaning: bool,
    prepared: HashMap<StatementSlot, PreparedEntry>,
    /// Counts uses and Parses.
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
    /// In this series of messages. If an earlier message of it fails, it was skipped, and so is all that relies on it; after the series' end it is not
    /// known until the reply comes.
    Sent(u64),
    /// Perhaps it is there, perhaps the server cannot run it any more as it is: it is closed before it is prepared.
    Doubtful,
}

impl PreparedStatement {
    /// Where it is prepared for clients that call it `name`.
    pub(super) fn slot(&self, name: &[u8]) -> StatementSlot {
        if name.is_empty() {
            StatementSlot::Unnamed
        } else {
            StatementSlot::Named(self.name.id)
        }
    }
}

impl BackendState {
    /// Whether a Bind that is sent now finds `statement` there; if so, that counts as a use.
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

    /// Notes that a Parse is sent for it. Besides, what has to be closed before: itself, if that may be there, or the one that was not used for longest.
    pub(super) fn record_parse(
        &mut self,
        slot: StatementSlot,
        statement: &PreparedStatement,
    ) -> (SentParse, Option<Rc<StatementName>>) {
        self.use_count += 1;
        let (token, standing) = (self.use_count, PreparedCertainty::Sent(self.series_id));
        let before = self.prepared.remove(&slot).map(|prepared| prepared.name);
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
        let named = self
            .prepared
            .iter()
            .filter(|(slot, _)| **slot != StatementSlot::Unnamed);
        let least = named
            .min_by_key(|(_, prepared)| prepared.last_use)
            .map(|(slot, _)| *slot)?;
        self.prepared.remove(&least).map(|prepared| prepared.name)
    }

    /// The server has prepared it.
    pub(super) fn confirm_parse(&mut self, sent: SentParse) {
        let same = self
            .prepared
            .get_mut(&sent.slot)
            .filter(|prepared| prepared.token == sent.token);
        same.into_iter()
            .for_each(|prepared| prepared.certainty = PreparedCertainty::Confirmed);
    }

    /// The server did not prepare it, or not then: an earlier Parse may have.
    pub(super) fn doubt_parse(&mut self, sent: SentParse) {
        let same = self
            .prepared
            .get_mut(&sent.slot)
            .filter(|prepared| prepared.token == sent.token);
        same.into_iter()
            .for_each(|prepared| prepared.certainty = PreparedCertainty::Doubtful);
    }

    /// It has to be prepared again: a table that it names has changed.
    pub(super) fn doubt_statement(&mut self, statement: &PreparedStatement) {
        let prepared = self
            .prepared
            .get_mut(&StatementSlot::Named(statement.name.id));
        prepared
            .into_iter()
            .for_each(|prepared| prepared.certainty = PreparedCertainty::Doubtful);
    }

    /// All that have names are gone, those apart that are on their way.
    pub(super) fn forget_named(&mut self) {
        self.prepared.retain(|slot, prepared| {
            *slot == StatementSlot::Unnamed
                || matches!(prepared.certainty, PreparedCertainty::Sent(_))
        });
    }

    /// The one without a name is gone.
    pub(super) fn forget_unnamed(&mut self) {
        self.prepared.remove(&StatementSlot::Unnamed);
    }

    /// A series of messages ends: what follows is not skipped with it.
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
        assert!(
            names.known.borrow().len() < 130,
            "forgotten ones take no memory"
        );
    }

    #[test]
    fn the_least_recently_used_statement_is_closed() {
        let (names, mut facts) = (StatementNames::default(), BackendState::default());
        let all: Vec<_> = (0..=MAX_PREPARED)
            .map(|n| statement(&names, &n.to_string()))
            .collect();
        let slot = |n: usize| all[n].slot(b"a");
        for (n, statement) in all[..MAX_PREPARED].iter().enumerate() {
            assert!(facts.record_parse(slot(n), statement).1.is_none());
        }
        assert!(facts.has_prepared(slot(0), &all[0]));
        let closed = facts
            .record_parse(slot(MAX_PREPARED), &all[MAX_PREPARED])
            .1
            .unwrap();
        assert!(
            Rc::ptr_eq(&closed, &all[1].name)
                && !facts.has_prepared(slot(1), &all[1])
                && facts.has_prepared(slot(0), &all[0])
        );
        facts.doubt_statement(&all[0]);
        assert!(!facts.has_prepared(slot(0), &all[0]));
        let closed = facts.record_parse(slot(0), &all[0]).1.unwrap();
        assert!(
            Rc::ptr_eq(&closed, &all[0].name),
            "closed before it is prepared again"
        );
    }

    #[test]
    fn after_a_series_only_a_reply_confirms() {
        let (names, mut facts) = (StatementNames::default(), BackendState::default());
        let statement = statement(&names, "a");
        let slot = statement.slot(b"a");
        let (first, _) = facts.record_parse(slot, &statement);
        assert!(facts.has_prepared(slot, &statement));
        facts.end_series();
        assert!(!facts.has_prepared(slot, &statement));
        let (second, closed) = facts.record_parse(slot, &statement);
        assert!(closed.is_some(), "it may be there");
        facts.end_series();
        facts.doubt_parse(first);
        facts.confirm_parse(second);
        assert!(
            facts.has_prepared(slot, &statement),
            "the fate of the first says nothing of the second"
        );
        facts.forget_named();
        assert!(!facts.has_prepared(slot, &statement));
    }
}
