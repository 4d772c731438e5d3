//! What is known of a backend's session: its settings, and the statements that are prepared in it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use bytes::Bytes;

use super::sql::Judgement;

/// Statements prepared at one backend at most; PgBouncer's `max_prepared_statements` is 200, too.
pub(super) const MOST_PREPARED: usize = 200;
/// Nothing is asked of it, no transaction is open.
pub(super) const IDLE: u8 = b'I';

/// Settings, as the server reported them last.
pub(super) type Values = BTreeMap<String, String>;

/// A statement that clients prepared, whoever they are: equal texts are one.
#[derive(Debug)]
pub(super) struct Statement {
    id: u64,
    /// What it is called at backends, whatever clients call it.
    pub(super) name: String,
    /// Text and types, as in a Parse.
    pub(super) body: Bytes,
    pub(super) judgement: Judgement,
}

/// All statements of a room, as long as somebody knows them.
#[derive(Debug, Default)]
pub(super) struct Statements {
    known: RefCell<HashMap<Bytes, Weak<Statement>>>,
    next: Cell<u64>,
    purge_at: Cell<usize>,
}

impl Statements {
    /// The one statement with this text.
    pub(super) fn of(&self, body: &[u8], judge: impl FnOnce() -> Judgement) -> Rc<Statement> {
        let mut known = self.known.borrow_mut();
        if let Some(statement) = known.get(body).and_then(Weak::upgrade) {
            return statement;
        }
        if known.len() >= self.purge_at.get() {
            known.retain(|_, statement| statement.strong_count() > 0);
            self.purge_at.set(2 * known.len() + 64);
        }
        let (id, body) = (self.next.replace(self.next.get() + 1), Bytes::copy_from_slice(body));
        let name = format!("nearpath_{id}");
        let statement = Rc::new(Statement { id, name, body: body.clone(), judgement: judge() });
        known.insert(body, Rc::downgrade(&statement));
        statement
    }
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
    /// The statement without a name.
    pub(super) unnamed: Option<Rc<Statement>>,
    /// Something may be left that only the server knows of.
    pub(super) leaves: bool,
    prepared: HashMap<u64, Prepared>,
    uses: u64,
}

#[derive(Debug)]
struct Prepared {
    statement: Rc<Statement>,
    used: u64,
    /// The server cannot run it any more as it is.
    stale: bool,
}

impl Facts {
    /// Whether `statement` is prepared here; if so, that counts as a use.
    pub(super) fn knows(&mut self, statement: &Statement) -> bool {
        self.uses += 1;
        let uses = self.uses;
        self.prepared.get_mut(&statement.id).filter(|prepared| !prepared.stale).map(|it| it.used = uses).is_some()
    }

    /// Notes it as prepared. What has to be closed before: its stale self, or the one that was not used for longest.
    pub(super) fn learns(&mut self, statement: &Rc<Statement>) -> Option<Rc<Statement>> {
        let stale = self.prepared.remove(&statement.id).map(|prepared| prepared.statement);
        let full = self.prepared.len() >= MOST_PREPARED;
        let least =
            full.then(|| self.prepared.values().min_by_key(|it| it.used)).flatten().map(|it| it.statement.clone());
        least.iter().for_each(|least| drop(self.prepared.remove(&least.id)));
        self.uses += 1;
        let prepared = Prepared { statement: statement.clone(), used: self.uses, stale: false };
        self.prepared.insert(statement.id, prepared);
        stale.or(least)
    }

    /// The server did not prepare it after all.
    pub(super) fn forgets(&mut self, statement: &Statement) {
        self.prepared.remove(&statement.id);
    }

    /// It has to be prepared again: a table that it names has changed.
    pub(super) fn outlives(&mut self, statement: &Statement) {
        self.prepared.get_mut(&statement.id).into_iter().for_each(|prepared| prepared.stale = true);
    }

    /// All statements are gone.
    pub(super) fn forgets_all(&mut self) {
        self.prepared.clear();
        self.unnamed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_statement_while_somebody_knows_it() {
        let statements = Statements::default();
        let of = |text: &[u8]| statements.of(text, Judgement::default);
        let first = of(b"a");
        assert!(Rc::ptr_eq(&first, &of(b"a")) && !Rc::ptr_eq(&first, &of(b"b")));
        let name = first.name.clone();
        drop(first);
        assert_ne!(of(b"a").name, name, "its name may still be in use where it is being closed");
        (0..1_000).for_each(|n| drop(of(format!("{n}").as_bytes())));
        assert!(statements.known.borrow().len() < 130, "forgotten ones take no memory");
    }

    #[test]
    fn the_statement_that_was_not_used_for_longest_makes_room() {
        let (statements, mut facts) = (Statements::default(), Facts::default());
        let all: Vec<_> =
            (0..=MOST_PREPARED).map(|n| statements.of(format!("{n}").as_bytes(), Judgement::default)).collect();
        assert!(all[..MOST_PREPARED].iter().all(|statement| facts.learns(statement).is_none()));
        assert!(facts.knows(&all[0]));
        let closed = facts.learns(&all[MOST_PREPARED]).unwrap();
        assert!(Rc::ptr_eq(&closed, &all[1]) && !facts.knows(&all[1]) && facts.knows(&all[0]));
        facts.outlives(&all[0]);
        assert!(!facts.knows(&all[0]));
        assert!(Rc::ptr_eq(&facts.learns(&all[0]).unwrap(), &all[0]), "closed before it is prepared again");
    }
}
