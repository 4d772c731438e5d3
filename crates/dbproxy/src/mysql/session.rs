//! What a client's connection has under way: a pure state machine over its commands and the packets of their replies
//! (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_command_phase.html>).

use std::collections::VecDeque;

use super::frame::{MysqlPacket, PayloadReader};
use super::startup::capability;

/// The server's status: more results follow.
const SERVER_MORE_RESULTS: u16 = 1 << 3;
/// The server's status: rows are fetched later.
const SERVER_CURSOR_EXISTS: u16 = 1 << 6;
/// The server's status: a transaction is open.
const SERVER_IN_TRANSACTION: u16 = 1;

/// A reply that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MysqlExpectedReply {
    /// One packet.
    Single,
    /// OK, an error, or results.
    Results,
    /// Rows, or descriptions of fields, until their end.
    Rows,
    /// A prepared statement.
    Prepared,
    /// So many packets, of which the last one may end it.
    Columns { left: u64, then: AfterColumns },
    /// The end of columns.
    ColumnsEnd(AfterColumns),
    /// What the client sends.
    LocalFile,
}

/// What follows columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterColumns {
    Rows,
    /// Of a prepared statement: so many more columns.
    Columns(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub struct MysqlSession {
    /// Rows end with OK.
    no_eof: bool,
    expected: VecDeque<MysqlExpectedReply>,
    status: u16,
    /// An error says nothing of transactions.
    is_status_unknown: bool,
    /// The next statement may ask for warnings.
    has_warnings: bool,
    residue: Option<&'static str>,
    opaque_reason: Option<&'static str>,
}

/// A packet came that nobody asked for, or that cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct UnexpectedPacket;

impl MysqlSession {
    /// Of a client with these capabilities.
    pub fn new(can: u32) -> Self {
        Self {
            no_eof: can & capability::DEPRECATE_EOF != 0,
            ..Self::default()
        }
    }

    /// Whether no reply is outstanding, and all that went over the connection was understood.
    pub fn is_quiet(&self) -> bool {
        self.expected.is_empty() && self.opaque_reason.is_none()
    }

    /// Whether no transaction is open, as far as the server tells, and nothing is left that the next statement could ask for.
    pub fn is_free(&self) -> bool {
        self.is_quiet()
            && self.status & SERVER_IN_TRANSACTION == 0
            && !self.is_status_unknown
            && !self.has_warnings
    }

    /// What replies said that stays on the connection.
    pub fn residue(&self) -> Option<&'static str> {
        self.residue
    }

    /// Why what goes over the connection is not understood any more.
    pub fn opaque_reason(&self) -> Option<&'static str> {
        self.opaque_reason
    }

    /// Whether the client's next packet is a piece of a file.
    pub fn expects_file(&self) -> bool {
        self.expected.front() == Some(&MysqlExpectedReply::LocalFile)
    }

    /// The file has ended.
    pub fn finish_file(&mut self) {
        if self.expects_file() {
            self.expected[0] = MysqlExpectedReply::Results;
        }
    }

    /// A command goes to the backend, known by its first byte.
    pub fn record_command(&mut self, command: u8) {
        match command {
            // INIT_DB, STATISTICS, PROCESS_KILL, DEBUG, PING, STMT_RESET, SET_OPTION, RESET_CONNECTION.
            0x02 | 0x09 | 0x0c | 0x0d | 0x0e | 0x1a | 0x1b | 0x1f => {
                self.expected.push_back(MysqlExpectedReply::Single)
            }
            // QUERY, STMT_EXECUTE.
            0x03 | 0x17 => self.expected.push_back(MysqlExpectedReply::Results),
            // FIELD_LIST, STMT_FETCH.
            0x04 | 0x1c => self.expected.push_back(MysqlExpectedReply::Rows),
            0x16 => self.expected.push_back(MysqlExpectedReply::Prepared),
            // STMT_SEND_LONG_DATA, STMT_CLOSE: no reply.
            0x18 | 0x19 => {}
            0x11 => self.opaque_reason = Some("COM_CHANGE_USER"),
            _ => self.opaque_reason = Some("an unusual command"),
        }
    }

    /// The backend sent a packet.
    ///
    /// # Errors
    /// When it answers to nothing.
    pub fn handle_reply(&mut self, packet: &MysqlPacket<'_>) -> Result<(), UnexpectedPacket> {
        let expect = self.expected.front_mut().ok_or(UnexpectedPacket)?;
        let next = match (*expect, packet.head.first()) {
            (MysqlExpectedReply::LocalFile, _) => return Err(UnexpectedPacket),
            // Even where more results were announced, nothing comes after an error.
            (_, Some(0xff)) => {
                self.is_status_unknown = true;
                None
            }
            (MysqlExpectedReply::Single, _) => {
                if let Some(end) = parse_ok(packet) {
                    self.apply_end(end);
                }
                None
            }
            (MysqlExpectedReply::Results, _) => self.handle_result(packet)?,
            (MysqlExpectedReply::Rows, Some(0xfe)) if self.ends_rows(packet) => {
                self.handle_rows_end(packet)
            }
            (MysqlExpectedReply::Rows, _) => Some(MysqlExpectedReply::Rows),
            (MysqlExpectedReply::Prepared, _) => self.handle_prepared(packet)?,
            (MysqlExpectedReply::Columns { left, then }, _) => self.handle_column(left - 1, then),
            (MysqlExpectedReply::ColumnsEnd(then), _) => self.handle_columns_end(packet, then)?,
        };
        match next {
            Some(next) => self.expected[0] = next,
            None => drop(self.expected.pop_front()),
        }
        Ok(())
    }

    fn apply_end(&mut self, end: ResultEnd) {
        (self.status, self.is_status_unknown, self.has_warnings) =
            (end.status, false, end.warnings > 0);
        if end.insert_id != 0 {
            self.residue = Some("an insert id");
        }
    }

    fn handle_result(
        &mut self,
        packet: &MysqlPacket<'_>,
    ) -> Result<Option<MysqlExpectedReply>, UnexpectedPacket> {
        match packet.head.first() {
            Some(0) => {
                self.apply_end(parse_ok(packet).ok_or(UnexpectedPacket)?);
                Ok((self.status & SERVER_MORE_RESULTS != 0).then_some(MysqlExpectedReply::Results))
            }
            Some(0xfb) => Ok(Some(MysqlExpectedReply::LocalFile)),
            _ => {
                let left = PayloadReader(packet.head)
                    .read_length()
                    .filter(|count| *count > 0)
                    .ok_or(UnexpectedPacket)?;
                Ok(Some(MysqlExpectedReply::Columns {
                    left,
                    then: AfterColumns::Rows,
                }))
            }
        }
    }

    fn handle_prepared(
        &self,
        packet: &MysqlPacket<'_>,
    ) -> Result<Option<MysqlExpectedReply>, UnexpectedPacket> {
        let mut reader = PayloadReader(packet.head);
        reader.read_bytes(5).ok_or(UnexpectedPacket)?;
        let columns = reader.read_number(2).ok_or(UnexpectedPacket)?;
        match reader.read_number(2).ok_or(UnexpectedPacket)? {
            0 => Ok(self.expect_columns(columns)),
            left => Ok(Some(MysqlExpectedReply::Columns {
                left,
                then: AfterColumns::Columns(columns),
            })),
        }
    }

    fn expect_columns(&self, left: u64) -> Option<MysqlExpectedReply> {
        (left > 0).then_some(MysqlExpectedReply::Columns {
            left,
            then: AfterColumns::Columns(0),
        })
    }

    /// A column has come.
    fn handle_column(&self, left: u64, then: AfterColumns) -> Option<MysqlExpectedReply> {
        match then {
            _ if left > 0 => Some(MysqlExpectedReply::Columns { left, then }),
            _ if !self.no_eof => Some(MysqlExpectedReply::ColumnsEnd(then)),
            AfterColumns::Rows => Some(MysqlExpectedReply::Rows),
            AfterColumns::Columns(more) => self.expect_columns(more),
        }
    }

    fn handle_columns_end(
        &mut self,
        packet: &MysqlPacket<'_>,
        then: AfterColumns,
    ) -> Result<Option<MysqlExpectedReply>, UnexpectedPacket> {
        let end = parse_eof(packet).ok_or(UnexpectedPacket)?;
        match then {
            AfterColumns::Rows if end.status & SERVER_CURSOR_EXISTS != 0 => {
                self.apply_end(end);
                Ok(None)
            }
            AfterColumns::Rows => Ok(Some(MysqlExpectedReply::Rows)),
            AfterColumns::Columns(more) => Ok(self.expect_columns(more)),
        }
    }

    /// Whether a packet that begins with 0xfe ends rows: else it is a row that begins with a very long text.
    fn ends_rows(&self, packet: &MysqlPacket<'_>) -> bool {
        packet.length < if self.no_eof { 0xff_ffff } else { 9 }
    }

    fn handle_rows_end(&mut self, packet: &MysqlPacket<'_>) -> Option<MysqlExpectedReply> {
        if let Some(end) = if self.no_eof {
            parse_ok(packet)
        } else {
            parse_eof(packet)
        } {
            self.apply_end(end);
        }
        (self.status & SERVER_MORE_RESULTS != 0).then_some(MysqlExpectedReply::Results)
    }
}

/// What the end of a result tells.
struct ResultEnd {
    status: u16,
    warnings: u64,
    insert_id: u64,
}

/// What an OK packet tells.
fn parse_ok(packet: &MysqlPacket<'_>) -> Option<ResultEnd> {
    let mut reader = PayloadReader(packet.head);
    if !matches!(reader.read_byte()?, 0 | 0xfe) {
        return None;
    }
    reader.read_length()?;
    let insert_id = reader.read_length()?;
    let status = u16::try_from(reader.read_number(2)?).ok()?;
    Some(ResultEnd {
        status,
        warnings: reader.read_number(2)?,
        insert_id,
    })
}

/// What an EOF packet tells.
fn parse_eof(packet: &MysqlPacket<'_>) -> Option<ResultEnd> {
    let mut reader = PayloadReader(packet.head);
    if reader.read_byte()? != 0xfe || packet.length >= 9 {
        return None;
    }
    let warnings = reader.read_number(2)?;
    let status = u16::try_from(reader.read_number(2)?).ok()?;
    Some(ResultEnd {
        status,
        warnings,
        insert_id: 0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];
    const OK_MORE: &[u8] = &[0, 0, 0, 10, 0, 0, 0];
    const EOF: &[u8] = &[0xfe, 0, 0, 2, 0];
    const EOF_MORE: &[u8] = &[0xfe, 0, 0, 10, 0];
    const OK_EOF: &[u8] = &[0xfe, 0, 0, 3, 0, 0, 0];
    const ERR: &[u8] = &[0xff, 1, 4];
    const COLUMN: &[u8] = &[3, b'd', b'e', b'f'];
    const ROW: &[u8] = &[1, b'x'];

    /// Whether `replies` are exactly those to `command`.
    fn matches_replies(can: u32, command: u8, replies: &[&[u8]]) -> bool {
        let mut session = MysqlSession::new(can);
        session.record_command(command);
        for (at, head) in replies.iter().enumerate() {
            if session.is_quiet() && at > 0 {
                return false;
            }
            if session
                .handle_reply(&MysqlPacket {
                    head,
                    length: head.len() as u64,
                    sequence_id: 0,
                })
                .is_err()
            {
                return false;
            }
        }
        session.is_quiet()
    }

    #[test]
    fn replies_end_as_documented() {
        let classic: &[(u8, &[&[u8]])] = &[
            (0x0e, &[OK]),
            (0x03, &[OK]),
            (0x03, &[ERR]),
            (0x03, &[OK_MORE, OK]),
            (0x03, &[&[2], COLUMN, COLUMN, EOF, ROW, ROW, EOF]),
            (0x03, &[&[1], COLUMN, EOF, ROW, ERR]),
            (
                0x03,
                &[&[1], COLUMN, EOF, EOF_MORE, &[1], COLUMN, EOF, EOF_MORE, OK],
            ),
            (0x17, &[&[1], COLUMN, &[0xfe, 0, 0, 66, 0]]),
            (0x1c, &[ROW, ROW, EOF]),
            (0x04, &[COLUMN, COLUMN, EOF]),
            (
                0x16,
                &[
                    &[0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0],
                    COLUMN,
                    EOF,
                    COLUMN,
                    COLUMN,
                    EOF,
                ],
            ),
            (0x16, &[&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]),
            (0x16, &[&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], COLUMN, EOF]),
            (0x16, &[ERR]),
        ];
        for (command, replies) in classic {
            assert!(
                matches_replies(0, *command, replies),
                "{command:x} {replies:?}"
            );
            assert!(
                replies.len() == 1 || !matches_replies(0, *command, &replies[..replies.len() - 1]),
                "{command:x} {replies:?}"
            );
        }
        let new: &[(u8, &[&[u8]])] = &[
            (0x03, &[&[1], COLUMN, ROW, OK_EOF]),
            (0x03, &[&[1], COLUMN, OK_EOF]),
            (
                0x16,
                &[&[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0], COLUMN, COLUMN],
            ),
        ];
        for (command, replies) in new {
            assert!(
                matches_replies(capability::DEPRECATE_EOF, *command, replies),
                "{command:x} {replies:?}"
            );
        }
    }

    #[test]
    fn a_local_file_is_requested_and_answered() {
        let mut session = MysqlSession::new(0);
        session.record_command(0x03);
        let say = |session: &mut MysqlSession, head: &[u8]| {
            session.handle_reply(&MysqlPacket {
                head,
                length: head.len() as u64,
                sequence_id: 0,
            })
        };
        say(&mut session, b"\xfbname").unwrap();
        assert!(session.expects_file());
        assert_eq!(say(&mut session, OK), Err(UnexpectedPacket));
        session.finish_file();
        say(&mut session, OK).unwrap();
        assert!(session.is_quiet());
        assert_eq!(say(&mut session, OK), Err(UnexpectedPacket));
    }

    #[test]
    fn the_status_reports_transactions_and_unknown_commands_are_opaque() {
        let mut session = MysqlSession::new(0);
        session.record_command(0x03);
        session
            .handle_reply(&MysqlPacket {
                head: &[0, 0, 0, 3, 0, 0, 0],
                length: 7,
                sequence_id: 1,
            })
            .unwrap();
        assert!(!session.is_free() && session.is_quiet());
        let mut fresh = MysqlSession::new(0);
        for (reply, free) in [
            (OK, true),
            (ERR, false),
            (&[0, 0, 0, 2, 0, 1, 0], false),
            (OK, true),
        ] {
            fresh.record_command(0x03);
            fresh
                .handle_reply(&MysqlPacket {
                    head: reply,
                    length: reply.len() as u64,
                    sequence_id: 1,
                })
                .unwrap();
            assert_eq!(fresh.is_free(), free, "{reply:?}");
        }
        fresh.record_command(0x03);
        fresh
            .handle_reply(&MysqlPacket {
                head: &[0, 1, 7, 2, 0, 0, 0],
                length: 7,
                sequence_id: 1,
            })
            .unwrap();
        assert_eq!(fresh.residue(), Some("an insert id"));
        session.record_command(0x12);
        assert!(!session.is_quiet());
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_fail(can in any::<bool>(), commands in proptest::collection::vec(0_u8..0x20, 1..4), packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..40)) {
            let mut session = MysqlSession::new(if can { capability::DEPRECATE_EOF } else { 0 });
            commands.into_iter().for_each(|command| session.record_command(command));
            for head in packets {
                let _ = session.handle_reply(&MysqlPacket { head: &head, length: head.len() as u64, sequence_id: 0 });
            }
        }
    }
}
