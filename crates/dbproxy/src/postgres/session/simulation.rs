//! Many clients on few backends. Each of them must get what a server of its own would have sent.

use std::collections::{BTreeMap, HashMap};

use bytes::{BufMut, BytesMut};
use nearpath_types::egress::PoolingMode;
use proptest::prelude::*;

use super::super::backend_state::{BackendState, SessionParameters, StatementNames};
use super::super::frame::{HEADER_BYTES, MessagePiece, PostgresFramer, split_text};
use super::super::message;
use super::{PostgresSession, SessionOutputs};

/// An action of a client.
#[derive(Debug, Clone)]
enum ClientAction {
    Query(&'static str),
    Parse(&'static str, &'static str),
    Bind(&'static str),
    Describe(&'static str),
    Execute,
    Close(&'static str),
    Sync,
    Flush,
}

const STATEMENT_TEXTS: [&str; 6] = [
    "SELECT 1", "SELECT 2", "SELECT 3", "FAIL", "BAD", "ROLLBACK",
];
const QUERY_TEXTS: [&str; 12] = [
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

/// Actions that a client sends in one batch: simple queries, or series of messages. The two are not
/// mixed: a query that the server skips still ends the unnamed statement.
fn any_batch() -> impl Strategy<Value = Vec<ClientAction>> {
    let name = || prop::sample::select(vec!["", "a", "b"]);
    let query = prop::sample::select(QUERY_TEXTS.to_vec()).prop_map(ClientAction::Query);
    let series = prop_oneof![
        4 => (name(), prop::sample::select(STATEMENT_TEXTS.to_vec())).prop_map(|(name, text)| ClientAction::Parse(name, text)),
        4 => name().prop_map(ClientAction::Bind),
        1 => name().prop_map(ClientAction::Describe),
        3 => Just(ClientAction::Execute),
        1 => name().prop_map(ClientAction::Close),
        1 => Just(ClientAction::Sync),
        1 => Just(ClientAction::Flush),
    ];
    prop_oneof![
        prop::collection::vec(query, 1..4),
        prop::collection::vec(series, 1..10)
    ]
}

impl ClientAction {
    fn encode(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        self.write(&mut out);
        out.to_vec()
    }

    fn write(&self, out: &mut BytesMut) {
        let mut write = |tag, parts: &[&[u8]]| {
            message::write_message(out, tag, |out| {
                parts.iter().for_each(|part| out.put_slice(part))
            })
        };
        match self {
            Self::Query(sql) => write(b'Q', &[sql.as_bytes(), b"\0"]),
            Self::Parse(name, sql) => {
                write(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"])
            }
            Self::Bind(name) => write(b'B', &[b"\0", name.as_bytes(), b"\0\0\0\0\0\0\0"]),
            Self::Describe(name) => write(b'D', &[b"S", name.as_bytes(), b"\0"]),
            Self::Execute => write(b'E', &[b"\0\0\0\0\0"]),
            Self::Close(name) => write(b'C', &[b"S", name.as_bytes(), b"\0"]),
            Self::Sync => write(b'S', &[]),
            Self::Flush => write(b'H', &[]),
        }
    }
}

/// The parts of a server's session that matter here.
#[derive(Default)]
struct ModelSession {
    statements: HashMap<Vec<u8>, String>,
    portal: Option<String>,
    is_skipping: bool,
    in_transaction: bool,
    has_failed: bool,
    parameters: BTreeMap<String, String>,
    parameters_before: BTreeMap<String, String>,
    /// A name that is taken can be prepared again, as behind the pool. A real server refuses that.
    is_lenient: bool,
    incoming: PostgresFramer,
}

type ModelResult = Result<(), &'static str>;

impl ModelSession {
    fn new(is_lenient: bool) -> Self {
        let parameters = BTreeMap::from([("TimeZone".to_owned(), "z".to_owned())]);
        Self {
            parameters,
            is_lenient,
            ..Self::default()
        }
    }

    fn receive(&mut self, bytes: &[u8], out: &mut BytesMut) {
        self.incoming.buffer().extend_from_slice(bytes);
        while let Some(MessagePiece::Whole(message)) = self.incoming.next_piece().unwrap() {
            let body = &message[HEADER_BYTES..];
            match message[0] {
                b'S' => {
                    self.is_skipping = false;
                    self.write_ready(out);
                }
                _ if self.is_skipping => {}
                b'Q' => {
                    self.statements.remove(&b""[..]);
                    let sql = String::from_utf8_lossy(split_text(body).unwrap().0).into_owned();
                    let outcome = if sql == "BAD" {
                        Err("syntax")
                    } else {
                        self.run_statement(&sql, out)
                    };
                    self.report_error(outcome, out);
                    self.write_ready(out);
                }
                tag => {
                    let outcome = self.handle_series(tag, body, out);
                    self.is_skipping = outcome.is_err();
                    self.report_error(outcome, out);
                }
            }
        }
    }

    fn report_error(&mut self, outcome: ModelResult, out: &mut BytesMut) {
        if let Err(what) = outcome {
            self.has_failed = self.in_transaction;
            message::write_message(out, b'E', |out| {
                out.put_slice(format!("SERROR\0CXX000\0M{what}\0\0").as_bytes())
            });
        }
    }

    fn write_ready(&mut self, out: &mut BytesMut) {
        let status = if !self.in_transaction {
            b'I'
        } else if self.has_failed {
            b'E'
        } else {
            b'T'
        };
        if status == b'I' {
            self.portal = None;
        }
        message::write_ready(out, status);
    }

    fn handle_series(&mut self, tag: u8, body: &[u8], out: &mut BytesMut) -> ModelResult {
        match tag {
            b'P' => {
                let (name, rest) = split_text(body).unwrap();
                let sql = String::from_utf8_lossy(split_text(rest).unwrap().0).into_owned();
                if name.is_empty() {
                    self.statements.remove(name);
                }
                self.handle_parse(name, sql)?;
                message::write_message(out, b'1', |_| ());
            }
            b'B' => {
                // A portal replaces the earlier one when it is created, after all checks
                // (`exec_bind_message`).
                let name = split_text(&body[1..]).unwrap().0;
                let sql = self.statements.get(name).cloned().ok_or("no statement")?;
                self.check_aborted(&sql)?;
                self.portal = Some(sql);
                message::write_message(out, b'2', |_| ());
            }
            b'D' => {
                let sql = self
                    .statements
                    .get(split_text(&body[1..]).unwrap().0)
                    .ok_or("no statement")?;
                self.check_aborted(sql)?;
                message::write_message(out, b't', |out| out.put_slice(sql.as_bytes()));
                message::write_message(out, b'n', |_| ());
            }
            b'E' => {
                let sql = self.portal.clone().ok_or("no portal")?;
                self.run_statement(&sql, out)?;
            }
            b'C' => {
                self.statements.remove(split_text(&body[1..]).unwrap().0);
                out.put_slice(message::CLOSE_COMPLETE);
            }
            b'H' => {}
            other => panic!("{other}"),
        }
        Ok(())
    }

    fn handle_parse(&mut self, name: &[u8], sql: String) -> ModelResult {
        if sql == "BAD" {
            return Err("syntax");
        }
        self.check_aborted(&sql)?;
        if !self.is_lenient && self.statements.contains_key(name) {
            return Err("taken");
        }
        self.statements.insert(name.to_vec(), sql);
        Ok(())
    }

    fn check_aborted(&self, sql: &str) -> ModelResult {
        if self.has_failed && !matches!(sql, "ROLLBACK" | "COMMIT") {
            Err("aborted")
        } else {
            Ok(())
        }
    }

    fn run_statement(&mut self, sql: &str, out: &mut BytesMut) -> ModelResult {
        self.check_aborted(sql)?;
        let row = |out: &mut BytesMut, value: &str| {
            message::write_message(out, b'D', |out| out.put_slice(value.as_bytes()))
        };
        match sql {
            "FAIL" => return Err("failed"),
            "BEGIN" if !self.in_transaction => {
                self.in_transaction = true;
                self.parameters_before = self.parameters.clone();
            }
            "COMMIT" | "ROLLBACK" if self.in_transaction => {
                if self.has_failed || sql == "ROLLBACK" {
                    let before = self.parameters_before.clone();
                    before
                        .into_iter()
                        .for_each(|(name, value)| self.set_parameter(&name, &value, out));
                }
                (self.in_transaction, self.has_failed) = (false, false);
            }
            "SHOW TimeZone" => row(out, &self.parameters["TimeZone"]),
            "DEALLOCATE ALL" => self.statements.retain(|name, _| name.is_empty()),
            "DEALLOCATE a" => drop(self.statements.remove(&b"a"[..]).ok_or("no statement")?),
            _ => {
                let value = sql.strip_prefix("SET TimeZone = ").or_else(|| {
                    sql.strip_prefix("SELECT pg_catalog.set_config('TimeZone', ")?
                        .strip_suffix(", false)")
                });
                match value {
                    Some(value) => self.set_parameter("TimeZone", value.trim_matches('\''), out),
                    None => row(out, sql),
                }
            }
        }
        let tag = if sql.starts_with("DEALLOCATE ") && sql != "DEALLOCATE ALL" {
            "DEALLOCATE"
        } else {
            sql
        };
        message::write_command_tag(out, tag);
        Ok(())
    }

    fn set_parameter(&mut self, name: &str, value: &str, out: &mut BytesMut) {
        if self.parameters.insert(name.into(), value.into()).as_deref() != Some(value) {
            message::write_parameter(out, name, value);
        }
    }
}

struct ModelBackend {
    session: ModelSession,
    state: BackendState,
    incoming: PostgresFramer,
}

struct ModelClient {
    session: PostgresSession,
    backend: Option<ModelBackend>,
    received: BytesMut,
}

/// Few backends and their shared state.
struct ModelPool {
    idle_backends: Vec<ModelBackend>,
    names: StatementNames,
    /// Replies arrive in chunks of so many bytes.
    chunk_bytes: usize,
}

impl ModelPool {
    fn new(backends: usize, chunk_bytes: usize) -> Self {
        let values = SessionParameters::from([("TimeZone".into(), "z".into())]);
        let backend = |_| {
            let mut backend_state = BackendState::default();
            (backend_state.status, backend_state.parameters) = (b'I', values.clone());
            ModelBackend {
                session: ModelSession::new(false),
                state: backend_state,
                incoming: PostgresFramer::default(),
            }
        };
        Self {
            idle_backends: (0..backends).map(backend).collect(),
            names: StatementNames::default(),
            chunk_bytes,
        }
    }

    /// Lets a client send something.
    fn send(&mut self, client: &mut ModelClient, messages: &[u8]) {
        let mut outcome = PostgresFramer::default();
        outcome.buffer().extend_from_slice(messages);
        let mut to_backend = BytesMut::new();
        while let Some(piece) = outcome.next_piece().unwrap() {
            if client.backend.is_none() {
                if !client.session.needs_backend(&piece) {
                    client.session.answer_locally(piece, &mut client.received);
                    continue;
                }
                let mut backend = self.idle_backends.remove(0);
                client
                    .session
                    .restore_settings(None, &mut backend.state, &mut to_backend);
                client.backend = Some(backend);
            }
            let backend = client.backend.as_mut().unwrap();
            let (to_client, names) = (&mut client.received, &self.names);
            let outputs = &mut SessionOutputs {
                to_backend: &mut to_backend,
                to_client,
                names,
            };
            client
                .session
                .handle_client(piece, &mut backend.state, outputs)
                .unwrap();
        }
        self.exchange(client, &to_backend);
    }

    fn exchange(&mut self, client: &mut ModelClient, to_backend: &[u8]) {
        let Some(mut backend) = client.backend.take() else {
            return;
        };
        let mut replies = BytesMut::new();
        backend.session.receive(to_backend, &mut replies);
        for part in replies.chunks(self.chunk_bytes) {
            backend.incoming.buffer().extend_from_slice(part);
            client
                .session
                .handle_backend(
                    &mut backend.incoming,
                    &mut backend.state,
                    &mut client.received,
                )
                .unwrap();
        }
        let at_rest = client.session.is_free(&backend.state);
        if client.session.pin().is_none() && at_rest {
            self.idle_backends.push(backend)
        } else {
            client.backend = Some(backend)
        }
    }
}

proptest! {
    #[test]
    fn each_client_gets_the_replies_of_its_own_server(
        actions in prop::collection::vec((0_usize..4, any_batch()), 1..25),
        backends in 1_usize..4,
        part in 1_usize..64,
    ) {
        let values = SessionParameters::from([("TimeZone".into(), "z".into())]);
        let client = |_| ModelClient { session: PostgresSession::new(PoolingMode::Transaction, values.clone()), backend: None, received: BytesMut::new() };
        let (mut pool, mut clients): (_, Vec<_>) = (ModelPool::new(backends, part), (0..4).map(client).collect());
        let mut alone: Vec<_> = (0..4).map(|_| (ModelSession::new(true), BytesMut::new())).collect();
        for (who, actions) in actions {
            let client = &mut clients[who];
            if client.backend.is_none() && pool.idle_backends.is_empty() {
                continue;
            }
            let (session, received) = &mut alone[who];
            let before = received.len();
            let ends = actions.iter().chain([&ClientAction::Sync]);
            // No name is freed while a reply is outstanding: the model could not tell whether the
            // server frees it.
            let outcome = ends.filter(|action| actions.len() == 1 || !matches!(action, ClientAction::Query("DEALLOCATE a")));
            let messages: Vec<_> = outcome.map(ClientAction::encode).collect();
            session.receive(&messages.concat(), received);
            // A client that relies on a failed message before it knows of the failure gets its
            // result here, and an error from the model.
            let failed = received[before..].windows(6).any(|window| window == b"SERROR");
            let batches = if failed { messages.split_inclusive(|word| word[0] == b'S').collect() } else { vec![&messages[..]] };
            batches.into_iter().for_each(|batch| pool.send(client, &batch.concat()));
            prop_assert_eq!(&client.received, &*received, "client {}: {:?}", who, actions);
            prop_assert!(client.session.is_quiet());
        }
    }
}
