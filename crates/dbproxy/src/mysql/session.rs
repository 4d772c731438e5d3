//! What a client's connection has under way: a pure state machine over its commands and the packets of their replies
//! (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_command_phase.html>).

use std::collections::VecDeque;

use super::frame::{Packet, Reader};
use super::startup::can;

/// The server's status: more results follow.
const MORE_RESULTS: u16 = 1 << 3;
/// The server's status: rows are fetched later.
const CURSOR: u16 = 1 << 6;
/// The server's status: a transaction is open.
const IN_TRANSACTION: u16 = 1;

/// A reply that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// One packet.
    One,
    /// OK, an error, or results.
    Results,
    /// Rows, or descriptions of fields, until their end.
    Rows,
    /// A prepared statement.
    Prepared,
    /// So many packets, of which the last one may end it.
    Columns { left: u64, then: After },
    /// The end of columns.
    End(After),
    /// What the client sends.
    File,
}

/// What follows columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Rows,
    /// Of a prepared statement: so many more columns.
    Columns(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Session {
    /// Rows end with OK.
    no_eof: bool,
    expects: VecDeque<Expect>,
    status: u16,
    /// An error says nothing of transactions.
    unsure: bool,
    /// The next statement may ask for warnings.
    warned: bool,
    left: Option<&'static str>,
    opaque: Option<&'static str>,
}

/// A packet came that nobody asked for, or that cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexpected;

impl Session {
    /// Of a client with these capabilities.
    pub fn new(can: u32) -> Self {
        Self { no_eof: can & can::NO_EOF != 0, ..Self::default() }
    }

    /// Whether no reply is outstanding, and all that went over the connection was understood.
    pub fn quiet(&self) -> bool {
        self.expects.is_empty() && self.opaque.is_none()
    }

    /// Whether no transaction is open, as far as the server tells, and nothing is left that the next statement could ask for.
    pub fn is_free(&self) -> bool {
        self.quiet() && self.status & IN_TRANSACTION == 0 && !self.unsure && !self.warned
    }

    /// What replies said that stays on the connection.
    pub fn left(&self) -> Option<&'static str> {
        self.left
    }

    /// Why what goes over the connection is not understood any more.
    pub fn opaque(&self) -> Option<&'static str> {
        self.opaque
    }

    /// Whether the client's next packet is a piece of a file.
    pub fn takes_file(&self) -> bool {
        self.expects.front() == Some(&Expect::File)
    }

    /// The file has ended.
    pub fn file_ended(&mut self) {
        if self.takes_file() {
            self.expects[0] = Expect::Results;
        }
    }

    /// A command goes to the backend, known by its first byte.
    pub fn sent(&mut self, command: u8) {
        match command {
            // INIT_DB, STATISTICS, PROCESS_KILL, DEBUG, PING, STMT_RESET, SET_OPTION, RESET_CONNECTION.
            0x02 | 0x09 | 0x0c | 0x0d | 0x0e | 0x1a | 0x1b | 0x1f => self.expects.push_back(Expect::One),
            // QUERY, STMT_EXECUTE.
            0x03 | 0x17 => self.expects.push_back(Expect::Results),
            // FIELD_LIST, STMT_FETCH.
            0x04 | 0x1c => self.expects.push_back(Expect::Rows),
            0x16 => self.expects.push_back(Expect::Prepared),
            // STMT_SEND_LONG_DATA, STMT_CLOSE: no reply.
            0x18 | 0x19 => {}
            0x11 => self.opaque = Some("COM_CHANGE_USER"),
            _ => self.opaque = Some("an unusual command"),
        }
    }

    /// The backend sent a packet.
    ///
    /// # Errors
    /// When it answers to nothing.
    pub fn answered(&mut self, packet: &Packet<'_>) -> Result<(), Unexpected> {
        let expect = self.expects.front_mut().ok_or(Unexpected)?;
        let next = match (*expect, packet.head.first()) {
            (Expect::File, _) => return Err(Unexpected),
            // Even where more results were announced, nothing comes after an error.
            (_, Some(0xff)) => {
                self.unsure = true;
                None
            }
            (Expect::One, _) => {
                if let Some(end) = ok(packet) {
                    self.ended(end);
                }
                None
            }
            (Expect::Results, _) => self.result(packet)?,
            (Expect::Rows, Some(0xfe)) if self.ends(packet) => self.next_result(packet),
            (Expect::Rows, _) => Some(Expect::Rows),
            (Expect::Prepared, _) => self.prepared(packet)?,
            (Expect::Columns { left, then }, _) => self.column(left - 1, then),
            (Expect::End(then), _) => self.columns_end(packet, then)?,
        };
        match next {
            Some(next) => self.expects[0] = next,
            None => drop(self.expects.pop_front()),
        }
        Ok(())
    }

    fn ended(&mut self, end: Ended) {
        (self.status, self.unsure, self.warned) = (end.status, false, end.warnings > 0);
        if end.insert_id != 0 {
            self.left = Some("an insert id");
        }
    }

    fn result(&mut self, packet: &Packet<'_>) -> Result<Option<Expect>, Unexpected> {
        match packet.head.first() {
            Some(0) => {
                self.ended(ok(packet).ok_or(Unexpected)?);
                Ok((self.status & MORE_RESULTS != 0).then_some(Expect::Results))
            }
            Some(0xfb) => Ok(Some(Expect::File)),
            _ => {
                let left = Reader(packet.head).length().filter(|count| *count > 0).ok_or(Unexpected)?;
                Ok(Some(Expect::Columns { left, then: After::Rows }))
            }
        }
    }

    fn prepared(&self, packet: &Packet<'_>) -> Result<Option<Expect>, Unexpected> {
        let mut reader = Reader(packet.head);
        reader.bytes(5).ok_or(Unexpected)?;
        let columns = reader.number(2).ok_or(Unexpected)?;
        match reader.number(2).ok_or(Unexpected)? {
            0 => Ok(self.more_columns(columns)),
            left => Ok(Some(Expect::Columns { left, then: After::Columns(columns) })),
        }
    }

    fn more_columns(&self, left: u64) -> Option<Expect> {
        (left > 0).then_some(Expect::Columns { left, then: After::Columns(0) })
    }

    /// A column has come.
    fn column(&self, left: u64, then: After) -> Option<Expect> {
        match then {
            _ if left > 0 => Some(Expect::Columns { left, then }),
            _ if !self.no_eof => Some(Expect::End(then)),
            After::Rows => Some(Expect::Rows),
            After::Columns(more) => self.more_columns(more),
        }
    }

    fn columns_end(&mut self, packet: &Packet<'_>, then: After) -> Result<Option<Expect>, Unexpected> {
        let end = eof(packet).ok_or(Unexpected)?;
        match then {
            After::Rows if end.status & CURSOR != 0 => {
                self.ended(end);
                Ok(None)
            }
            After::Rows => Ok(Some(Expect::Rows)),
            After::Columns(more) => Ok(self.more_columns(more)),
        }
    }

    /// Whether a packet that begins with 0xfe ends rows: else it is a row that begins with a very long text.
    fn ends(&self, packet: &Packet<'_>) -> bool {
        packet.length < if self.no_eof { 0xff_ffff } else { 9 }
    }

    fn next_result(&mut self, packet: &Packet<'_>) -> Option<Expect> {
        if let Some(end) = if self.no_eof { ok(packet) } else { eof(packet) } {
            self.ended(end);
        }
        (self.status & MORE_RESULTS != 0).then_some(Expect::Results)
    }
}

/// What the end of a result tells.
struct Ended {
    status: u16,
    warnings: u64,
    insert_id: u64,
}

/// What an OK packet tells.
fn ok(packet: &Packet<'_>) -> Option<Ended> {
    let mut reader = Reader(packet.head);
    if !matches!(reader.byte()?, 0 | 0xfe) {
        return None;
    }
    reader.length()?;
    let insert_id = reader.length()?;
    let status = u16::try_from(reader.number(2)?).ok()?;
    Some(Ended { status, warnings: reader.number(2)?, insert_id })
}

/// What an EOF packet tells.
fn eof(packet: &Packet<'_>) -> Option<Ended> {
    let mut reader = Reader(packet.head);
    if reader.byte()? != 0xfe || packet.length >= 9 {
        return None;
    }
    let warnings = reader.number(2)?;
    let status = u16::try_from(reader.number(2)?).ok()?;
    Some(Ended { status, warnings, insert_id: 0 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];
    const MORE: &[u8] = &[0, 0, 0, 10, 0, 0, 0];
    const EOF: &[u8] = &[0xfe, 0, 0, 2, 0];
    const EOF_MORE: &[u8] = &[0xfe, 0, 0, 10, 0];
    const OK_EOF: &[u8] = &[0xfe, 0, 0, 3, 0, 0, 0];
    const ERR: &[u8] = &[0xff, 1, 4];
    const COLUMN: &[u8] = &[3, b'd', b'e', b'f'];
    const ROW: &[u8] = &[1, b'x'];

    /// Whether `replies` are exactly those to `command`.
    fn fits(can: u32, command: u8, replies: &[&[u8]]) -> bool {
        let mut session = Session::new(can);
        session.sent(command);
        for (at, head) in replies.iter().enumerate() {
            if session.quiet() && at > 0 {
                return false;
            }
            if session.answered(&Packet { head, length: head.len() as u64, number: 0 }).is_err() {
                return false;
            }
        }
        session.quiet()
    }

    #[test]
    fn replies_end_where_the_documentation_says() {
        let classic: &[(u8, &[&[u8]])] = &[
            (0x0e, &[OK]),
            (0x03, &[OK]),
            (0x03, &[ERR]),
            (0x03, &[MORE, OK]),
            (0x03, &[&[2], COLUMN, COLUMN, EOF, ROW, ROW, EOF]),
            (0x03, &[&[1], COLUMN, EOF, ROW, ERR]),
            (0x03, &[&[1], COLUMN, EOF, EOF_MORE, &[1], COLUMN, EOF, EOF_MORE, OK]),
            (0x17, &[&[1], COLUMN, &[0xfe, 0, 0, 66, 0]]),
            (0x1c, &[ROW, ROW, EOF]),
            (0x04, &[COLUMN, COLUMN, EOF]),
            (0x16, &[&[0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0], COLUMN, EOF, COLUMN, COLUMN, EOF]),
            (0x16, &[&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]),
            (0x16, &[&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], COLUMN, EOF]),
            (0x16, &[ERR]),
        ];
        for (command, replies) in classic {
            assert!(fits(0, *command, replies), "{command:x} {replies:?}");
            assert!(replies.len() == 1 || !fits(0, *command, &replies[..replies.len() - 1]), "{command:x} {replies:?}");
        }
        let new: &[(u8, &[&[u8]])] = &[
            (0x03, &[&[1], COLUMN, ROW, OK_EOF]),
            (0x03, &[&[1], COLUMN, OK_EOF]),
            (0x16, &[&[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0], COLUMN, COLUMN]),
        ];
        for (command, replies) in new {
            assert!(fits(can::NO_EOF, *command, replies), "{command:x} {replies:?}");
        }
    }

    #[test]
    fn a_file_is_asked_for_and_answered() {
        let mut session = Session::new(0);
        session.sent(0x03);
        let say = |session: &mut Session, head: &[u8]| {
            session.answered(&Packet { head, length: head.len() as u64, number: 0 })
        };
        say(&mut session, b"\xfbname").unwrap();
        assert!(session.takes_file());
        assert_eq!(say(&mut session, OK), Err(Unexpected));
        session.file_ended();
        say(&mut session, OK).unwrap();
        assert!(session.quiet());
        assert_eq!(say(&mut session, OK), Err(Unexpected));
    }

    #[test]
    fn the_status_tells_of_transactions_and_unknown_commands_of_nothing() {
        let mut session = Session::new(0);
        session.sent(0x03);
        session.answered(&Packet { head: &[0, 0, 0, 3, 0, 0, 0], length: 7, number: 1 }).unwrap();
        assert!(!session.is_free() && session.quiet());
        let mut fresh = Session::new(0);
        for (reply, free) in [(OK, true), (ERR, false), (&[0, 0, 0, 2, 0, 1, 0], false), (OK, true)] {
            fresh.sent(0x03);
            fresh.answered(&Packet { head: reply, length: reply.len() as u64, number: 1 }).unwrap();
            assert_eq!(fresh.is_free(), free, "{reply:?}");
        }
        fresh.sent(0x03);
        fresh.answered(&Packet { head: &[0, 1, 7, 2, 0, 0, 0], length: 7, number: 1 }).unwrap();
        assert_eq!(fresh.left(), Some("an insert id"));
        session.sent(0x12);
        assert!(!session.quiet());
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_fail(can in any::<bool>(), commands in proptest::collection::vec(0_u8..0x20, 1..4), packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..40)) {
            let mut session = Session::new(if can { can::NO_EOF } else { 0 });
            commands.into_iter().for_each(|command| session.sent(command));
            for head in packets {
                let _ = session.answered(&Packet { head: &head, length: head.len() as u64, number: 0 });
            }
        }
    }
}
