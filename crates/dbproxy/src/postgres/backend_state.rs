//! What is known of a backend's session: its settings, and the statements that are prepared in it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use ring::digest::{SHA256, digest};

use super::session_effect::Judgement;

/// Statements prepared at one backend at most; PgBouncer's `max_prepared_statements` is 200, too.
pub(super) const MOST_PREPARED: usize = 200;
/// What statements are called at backends begins so.
pub(super) const PREFIX: &str = "nearpath_";
/// Nothing is asked of it, no transaction is open.
pub(super) const IDLE: u8 = b'I';

/// Settings, as the server reported them last.
pub(super) type Values = BTreeMap<String, String>;

/// A statement that a client prepared.
#[derive(Debug)]
pub(super) struct Statement {
    /// What it is called at backends, whatever the client calls it.
    pub(super) name: Rc<Name>,
    /// Text and types, as in a Parse.
    pub(super) body: Bytes,
    pub(super) judgement: Judgement,
}

/// Statements with equal texts have one name at all backends, whoever prepared them.
#[derive(Debug)]
pub(super) struct Name {
    id: u64,
    pub(super) text: String,
}

/// The names that are in use, by the digest of what they name: texts are kept by their clients alone.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: RefCell<HashMap<[u8; 32], Weak<Name>>>,
    next: Cell<u64>,
    purge_at: Cell<usize>,
}

impl Names {
    /// The name of a Parse's text and types.
    pub(super) fn of(&self, body: &[u8]) -> Rc<Name> {
        let digest = digest(&SHA256, body).as_ref().try_into().expect("SHA-256 gives 32 bytes");
        let mut known = self.known.borrow_mut();
        if let Some(name) = known.get(&digest).and_then(Weak::upgrade) {
            return name;
        }
        if known.len() >= self.purge_at.get() {
            known.retain(|_, name| name.strong_count() > 0);
            self.purge_at.set(2 * known.len() + 64);
        }
        let id = self.next.replace(self.next.get() + 1);
        let name = Rc::new(Name { id, text: format!("{PREFIX}{id}") });
        known.insert(digest, Rc::downgrade(&name));
        name
    }
}

/// Where a backend has a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    /// Under the name that the statement has at all backends.
    Named(u64),
    /// As the one without a name, which each one that is prepared so replaces.
    Unnamed,
}

/// A Parse that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    slot: Slot,
    token: u64,
}

/// Of one backend.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The status of its last ReadyForQuery; 0 when it will not say one any more.
    pub(super) status: u8,
    pub(super) values: Values,
    /// The settings at its start.
    pub(super) initial: Rc<Values>,
    /// Process and secret: who has them can cancel.
    pub(super) key: (i32, i32),
    /// Something may be left that only the server knows of.
    pub(super) leaves: bool,
    prepared: HashMap<Slot, Prepared>,
    /// Counts uses and Parses.
    count: u64,
    series: u64,
}

#[derive(Debug)]
struct Prepared {
    name: Rc<Name>,
    used: u64,
    token: u64,
    standing: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Sure,
    /// In this series of messages. If an earlier message of it fails, it was skipped, and so is all that relies on it; after the series' end it is not
    /// known until the reply comes.
    Sent(u64),
    /// Perhaps it is there, perhaps the server cannot run it any more as it is: it is closed before it is prepared.
    Doubtful,
}

impl Statement {
    /// Where it is prepared for clients that call it `name`.
    pub(super) fn slot(&self, name: &[u8]) -> Slot {
        if name.is_empty() { Slot::Unnamed } else { Slot::Named(self.name.id) }
    }
}

impl Facts {
    /// Whether a Bind that is sent now finds `statement` there; if so, that counts as a use.
    pub(super) fn knows(&mut self, slot: Slot, statement: &Statement) -> bool {
        self.count += 1;
        let (count, series) = (self.count, self.series);
        let known = self.prepared.get_mut(&slot).filter(|prepared| {
            prepared.name.id == statement.name.id
                && [Standing::Sure, Standing::Sent(series)].contains(&prepared.standing)
        });
        known.map(|prepared| prepared.used = count).is_some()
    }

    /// Notes that a Parse is sent for it. Besides, what has to be closed before: itself, if that may be there, or the one that was not used for longest.
    pub(super) fn learns(&mut self, slot: Slot, statement: &Statement) -> (Sent, Option<Rc<Name>>) {
        self.count += 1;
        let (token, standing) = (self.count, Standing::Sent(self.series));
        let before = self.prepared.remove(&slot).map(|prepared| prepared.name);
        let closed = if slot == Slot::Unnamed { None } else { before.or_else(|| self.make_room()) };
        let prepared = Prepared { name: statement.name.clone(), used: token, token, standing };
        self.prepared.insert(slot, prepared);
        (Sent { slot, token }, closed)
    }

    fn make_room(&mut self) -> Option<Rc<Name>> {
        if self.prepared.len() < MOST_PREPARED {
            return None;
        }
        let named = self.prepared.iter().filter(|(slot, _)| **slot != Slot::Unnamed);
        let least = named.min_by_key(|(_, prepared)| prepared.used).map(|(slot, _)| *slot)?;
        self.prepared.remove(&least).map(|prepared| prepared.name)
    }

    /// The server has prepared it.
    pub(super) fn is_sure(&mut self, sent: Sent) {
        let same = self.prepared.get_mut(&sent.slot).filter(|prepared| prepared.token == sent.token);
        same.into_iter().for_each(|prepared| prepared.standing = Standing::Sure);
    }

    /// The server did not prepare it, or not then: an earlier Parse may have.
    pub(super) fn forgets(&mut self, sent: Sent) {
        let same = self.prepared.get_mut(&sent.slot).filter(|prepared| prepared.token == sent.token);
        same.into_iter().for_each(|prepared| prepared.standing = Standing::Doubtful);
    }

    /// It has to be prepared again: a table that it names has changed.
    pub(super) fn outlives(&mut self, statement: &Statement) {
        let prepared = self.prepared.get_mut(&Slot::Named(statement.name.id));
        prepared.into_iter().for_each(|prepared| prepared.standing = Standing::Doubtful);
    }

    /// All that have names are gone, those apart that are on their way.
    pub(super) fn forgets_named(&mut self) {
        self.prepared.retain(|slot, prepared| *slot == Slot::Unnamed || matches!(prepared.standing, Standing::Sent(_)));
    }

    /// The one without a name is gone.
    pub(super) fn forgets_unnamed(&mut self) {
        self.prepared.remove(&Slot::Unnamed);
    }

    /// A series of messages ends: what follows is not skipped with it.
    pub(super) fn ends_series(&mut self) {
        self.series += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(names: &Names, body: &str) -> Statement {
        Statement { name: names.of(body.as_bytes()), body: Bytes::new(), judgement: Judgement::default() }
    }

    #[test]
    fn equal_texts_have_one_name_while_somebody_knows_it() {
        let names = Names::default();
        let first = names.of(b"a");
        assert!(Rc::ptr_eq(&first, &names.of(b"a")) && !Rc::ptr_eq(&first, &names.of(b"b")));
        let text = first.text.clone();
        drop(first);
        assert_ne!(names.of(b"a").text, text, "its name may still be in use where it is being closed");
        (0..1_000).for_each(|n| drop(names.of(format!("{n}").as_bytes())));
        assert!(names.known.borrow().len() < 130, "forgotten ones take no memory");
    }

    #[test]
    fn the_statement_that_was_not_used_for_longest_makes_room() {
        let (names, mut facts) = (Names::default(), Facts::default());
        let all: Vec<_> = (0..=MOST_PREPARED).map(|n| statement(&names, &n.to_string())).collect();
        let slot = |n: usize| all[n].slot(b"a");
        for (n, statement) in all[..MOST_PREPARED].iter().enumerate() {
            assert!(facts.learns(slot(n), statement).1.is_none());
        }
        assert!(facts.knows(slot(0), &all[0]));
        let closed = facts.learns(slot(MOST_PREPARED), &all[MOST_PREPARED]).1.unwrap();
        assert!(Rc::ptr_eq(&closed, &all[1].name) && !facts.knows(slot(1), &all[1]) && facts.knows(slot(0), &all[0]));
        facts.outlives(&all[0]);
        assert!(!facts.knows(slot(0), &all[0]));
        let closed = facts.learns(slot(0), &all[0]).1.unwrap();
        assert!(Rc::ptr_eq(&closed, &all[0].name), "closed before it is prepared again");
    }

    #[test]
    fn after_a_series_only_a_reply_makes_sure() {
        let (names, mut facts) = (Names::default(), Facts::default());
        let statement = statement(&names, "a");
        let slot = statement.slot(b"a");
        let (first, _) = facts.learns(slot, &statement);
        assert!(facts.knows(slot, &statement));
        facts.ends_series();
        assert!(!facts.knows(slot, &statement));
        let (second, closed) = facts.learns(slot, &statement);
        assert!(closed.is_some(), "it may be there");
        facts.ends_series();
        facts.forgets(first);
        facts.is_sure(second);
        assert!(facts.knows(slot, &statement), "the fate of the first says nothing of the second");
        facts.forgets_named();
        assert!(!facts.knows(slot, &statement));
    }
}
