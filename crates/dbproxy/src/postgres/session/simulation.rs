//! Many clients on few backends, each of which must hear what a server of its own would have said.

use std::collections::{BTreeMap, HashMap};

use bytes::{BufMut, BytesMut};
use nearpath_types::egress::Mode;
use proptest::prelude::*;

use super::super::backend_state::{Facts, Names, Values};
use super::super::frame::{HEAD, Inbox, Piece, text};
use super::super::message;
use super::{Talk, Ways};

/// What a client does.
#[derive(Debug, Clone)]
enum Deed {
    Query(&'static str),
    Parse(&'static str, &'static str),
    Bind(&'static str),
    Describe(&'static str),
    Execute,
    Close(&'static str),
    Sync,
    Flush,
}

const TEXTS: [&str; 6] = ["SELECT 1", "SELECT 2", "SELECT 3", "FAIL", "BAD", "ROLLBACK"];
const QUERIES: [&str; 12] = [
    "SELECT 4",
    "FAIL",
    "BAD",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SET TimeZone = 'a'",
    "SET TimeZone = 'b'",
    "SHOW TimeZone",
    "DEALLOCATE a",
    "DEALLOCATE ALL",
    "LISTEN x",
];

/// What a client says in one breath: simple queries, or series of messages. (One within the other is not told apart in all that it may do: a query that
/// the server skips still ends the statement without a name.)
fn breath() -> impl Strategy<Value = Vec<Deed>> {
    let name = || prop::sample::select(vec!["", "a", "b"]);
    let query = prop::sample::select(QUERIES.to_vec()).prop_map(Deed::Query);
    let series = prop_oneof![
        4 => (name(), prop::sample::select(TEXTS.to_vec())).prop_map(|(name, text)| Deed::Parse(name, text)),
        4 => name().prop_map(Deed::Bind),
        1 => name().prop_map(Deed::Describe),
        3 => Just(Deed::Execute),
        1 => name().prop_map(Deed::Close),
        1 => Just(Deed::Sync),
        1 => Just(Deed::Flush),
    ];
    prop_oneof![prop::collection::vec(query, 1..4), prop::collection::vec(series, 1..10)]
}

impl Deed {
    fn words(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        self.write(&mut out);
        out.to_vec()
    }

    fn write(&self, out: &mut BytesMut) {
        let mut say =
            |tag, parts: &[&[u8]]| message::message(out, tag, |out| parts.iter().for_each(|part| out.put_slice(part)));
        match self {
            Self::Query(sql) => say(b'Q', &[sql.as_bytes(), b"\0"]),
            Self::Parse(name, sql) => say(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"]),
            Self::Bind(name) => say(b'B', &[b"\0", name.as_bytes(), b"\0\0\0\0\0\0\0"]),
            Self::Describe(name) => say(b'D', &[b"S", name.as_bytes(), b"\0"]),
            Self::Execute => say(b'E', &[b"\0\0\0\0\0"]),
            Self::Close(name) => say(b'C', &[b"S", name.as_bytes(), b"\0"]),
            Self::Sync => say(b'S', &[]),
            Self::Flush => say(b'H', &[]),
        }
    }
}

/// As much of a server's session as matters here.
#[derive(Default)]
struct Session {
    statements: HashMap<Vec<u8>, String>,
    portal: Option<String>,
    skips: bool,
    in_transaction: bool,
    failed: bool,
    values: BTreeMap<String, String>,
    values_before: BTreeMap<String, String>,
    /// A name that is taken can be prepared again: so is a client's behind the pool, where a server's own would say no.
    lenient: bool,
    inbox: Inbox,
}

type Said = Result<(), &'static str>;

impl Session {
    fn new(lenient: bool) -> Self {
        let values = BTreeMap::from([("TimeZone".to_owned(), "z".to_owned())]);
        Self { values, lenient, ..Self::default() }
    }

    fn hear(&mut self, bytes: &[u8], out: &mut BytesMut) {
        self.inbox.room().extend_from_slice(bytes);
        while let Some(Piece::Whole(message)) = self.inbox.next().unwrap() {
            let body = &message[HEAD..];
            match message[0] {
                b'S' => {
                    self.skips = false;
                    self.ready(out);
                }
                _ if self.skips => {}
                b'Q' => {
                    self.statements.remove(&b""[..]);
                    let sql = String::from_utf8_lossy(text(body).unwrap().0).into_owned();
                    let said = if sql == "BAD" { Err("syntax") } else { self.run(&sql, out) };
                    self.report(said, out);
                    self.ready(out);
                }
                tag => {
                    let said = self.series(tag, body, out);
                    self.skips = said.is_err();
                    self.report(said, out);
                }
            }
        }
    }

    fn report(&mut self, said: Said, out: &mut BytesMut) {
        if let Err(what) = said {
            self.failed = self.in_transaction;
            message::message(out, b'E', |out| out.put_slice(format!("SERROR\0CXX000\0M{what}\0\0").as_bytes()));
        }
    }

    fn ready(&mut self, out: &mut BytesMut) {
        let status = if !self.in_transaction {
            b'I'
        } else if self.failed {
            b'E'
        } else {
            b'T'
        };
        if status == b'I' {
            self.portal = None;
        }
        message::ready(out, status);
    }

    fn series(&mut self, tag: u8, body: &[u8], out: &mut BytesMut) -> Said {
        match tag {
            b'P' => {
                let (name, rest) = text(body).unwrap();
                let sql = String::from_utf8_lossy(text(rest).unwrap().0).into_owned();
                if name.is_empty() {
                    self.statements.remove(name);
                }
                self.parse(name, sql)?;
                message::message(out, b'1', |_| ());
            }
            b'B' => {
                // A portal takes the place of the one before when it is made, after all that can be wrong (`exec_bind_message`).
                let name = text(&body[1..]).unwrap().0;
                let sql = self.statements.get(name).cloned().ok_or("no statement")?;
                self.is_fit_for(&sql)?;
                self.portal = Some(sql);
                message::message(out, b'2', |_| ());
            }
            b'D' => {
                let sql = self.statements.get(text(&body[1..]).unwrap().0).ok_or("no statement")?;
                self.is_fit_for(sql)?;
                message::message(out, b't', |out| out.put_slice(sql.as_bytes()));
                message::message(out, b'n', |_| ());
            }
            b'E' => {
                let sql = self.portal.clone().ok_or("no portal")?;
                self.run(&sql, out)?;
            }
            b'C' => {
                self.statements.remove(text(&body[1..]).unwrap().0);
                out.put_slice(message::CLOSED);
            }
            b'H' => {}
            other => panic!("{other}"),
        }
        Ok(())
    }

    fn parse(&mut self, name: &[u8], sql: String) -> Said {
        if sql == "BAD" {
            return Err("syntax");
        }
        self.is_fit_for(&sql)?;
        if !self.lenient && self.statements.contains_key(name) {
            return Err("taken");
        }
        self.statements.insert(name.to_vec(), sql);
        Ok(())
    }

    fn is_fit_for(&self, sql: &str) -> Said {
        if self.failed && !matches!(sql, "ROLLBACK" | "COMMIT") { Err("aborted") } else { Ok(()) }
    }

    fn run(&mut self, sql: &str, out: &mut BytesMut) -> Said {
        self.is_fit_for(sql)?;
        let row = |out: &mut BytesMut, value: &str| message::message(out, b'D', |out| out.put_slice(value.as_bytes()));
        match sql {
            "FAIL" => return Err("failed"),
            "BEGIN" if !self.in_transaction => {
                self.in_transaction = true;
                self.values_before = self.values.clone();
            }
            "COMMIT" | "ROLLBACK" if self.in_transaction => {
                if self.failed || sql == "ROLLBACK" {
                    let before = self.values_before.clone();
                    before.into_iter().for_each(|(name, value)| self.set(&name, &value, out));
                }
                (self.in_transaction, self.failed) = (false, false);
            }
            "SHOW TimeZone" => row(out, &self.values["TimeZone"]),
            "DEALLOCATE ALL" => self.statements.retain(|name, _| name.is_empty()),
            "DEALLOCATE a" => drop(self.statements.remove(&b"a"[..]).ok_or("no statement")?),
            _ => {
                let value = sql.strip_prefix("SET TimeZone = ").or_else(|| {
                    sql.strip_prefix("SELECT pg_catalog.set_config('TimeZone', ")?.strip_suffix(", false)")
                });
                match value {
                    Some(value) => self.set("TimeZone", value.trim_matches('\''), out),
                    None => row(out, sql),
                }
            }
        }
        let tag = if sql.starts_with("DEALLOCATE ") && sql != "DEALLOCATE ALL" { "DEALLOCATE" } else { sql };
        message::tag(out, tag);
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str, out: &mut BytesMut) {
        if self.values.insert(name.into(), value.into()).as_deref() != Some(value) {
            message::parameter(out, name, value);
        }
    }
}

struct Backend {
    session: Session,
    facts: Facts,
    inbox: Inbox,
}

struct Client {
    talk: Talk,
    backend: Option<Backend>,
    heard: BytesMut,
}

/// Few backends, and what they have in common.
struct Pool {
    free: Vec<Backend>,
    names: Names,
    /// Replies come in parts of so many bytes.
    part: usize,
}

impl Pool {
    fn new(backends: usize, part: usize) -> Self {
        let values = Values::from([("TimeZone".into(), "z".into())]);
        let backend = |_| {
            let mut facts = Facts::default();
            (facts.status, facts.values) = (b'I', values.clone());
            Backend { session: Session::new(false), facts, inbox: Inbox::default() }
        };
        Self { free: (0..backends).map(backend).collect(), names: Names::default(), part }
    }

    /// Has a client say something.
    fn say(&mut self, client: &mut Client, words: &[u8]) {
        let mut said = Inbox::default();
        said.room().extend_from_slice(words);
        let mut to_backend = BytesMut::new();
        while let Some(piece) = said.next().unwrap() {
            if client.backend.is_none() {
                if !client.talk.needs_backend(&piece) {
                    client.talk.answer(piece, &mut client.heard);
                    continue;
                }
                let mut backend = self.free.remove(0);
                client.talk.arrive(None, &mut backend.facts, &mut to_backend);
                client.backend = Some(backend);
            }
            let backend = client.backend.as_mut().unwrap();
            let (to_client, names) = (&mut client.heard, &self.names);
            let ways = &mut Ways { to_backend: &mut to_backend, to_client, names };
            client.talk.hear(piece, &mut backend.facts, ways).unwrap();
        }
        self.answer(client, &to_backend);
    }

    fn answer(&mut self, client: &mut Client, to_backend: &[u8]) {
        let Some(mut backend) = client.backend.take() else { return };
        let mut replies = BytesMut::new();
        backend.session.hear(to_backend, &mut replies);
        for part in replies.chunks(self.part) {
            backend.inbox.room().extend_from_slice(part);
            client.talk.relay(&mut backend.inbox, &mut backend.facts, &mut client.heard).unwrap();
        }
        let at_rest = client.talk.is_at_rest(&backend.facts);
        if client.talk.pin().is_none() && at_rest { self.free.push(backend) } else { client.backend = Some(backend) }
    }
}

proptest! {
    #[test]
    fn each_client_hears_what_its_own_server_would_say(
        deeds in prop::collection::vec((0_usize..4, breath()), 1..25),
        backends in 1_usize..4,
        part in 1_usize..64,
    ) {
        let values = Values::from([("TimeZone".into(), "z".into())]);
        let client = |_| Client { talk: Talk::new(Mode::Transaction, values.clone()), backend: None, heard: BytesMut::new() };
        let (mut pool, mut clients): (_, Vec<_>) = (Pool::new(backends, part), (0..4).map(client).collect());
        let mut alone: Vec<_> = (0..4).map(|_| (Session::new(true), BytesMut::new())).collect();
        for (who, deeds) in deeds {
            let client = &mut clients[who];
            if client.backend.is_none() && pool.free.is_empty() {
                continue;
            }
            let (session, heard) = &mut alone[who];
            let before = heard.len();
            let ends = deeds.iter().chain([&Deed::Sync]);
            // No name is freed with a reply to come: it is not known then whether the server frees it.
            let said = ends.filter(|deed| deeds.len() == 1 || !matches!(deed, Deed::Query("DEALLOCATE a")));
            let words: Vec<_> = said.map(Deed::words).collect();
            session.hear(&words.concat(), heard);
            // Who relies on what has failed before he knows gets what he asked for here, and an error there.
            let failed = heard[before..].windows(6).any(|window| window == b"SERROR");
            let breaths = if failed { words.split_inclusive(|word| word[0] == b'S').collect() } else { vec![&words[..]] };
            breaths.into_iter().for_each(|breath| pool.say(client, &breath.concat()));
            prop_assert_eq!(&client.heard, &*heard, "client {}: {:?}", who, deeds);
            prop_assert!(client.talk.is_quiet());
        }
    }
}
