//! State machine of a client's connection: its commands, and the packets of their replies
//! (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_command_phase.html>). Pure.

use std::collections::VecDeque;

use super::frame::{MysqlPacket, PayloadReader};
use super::startup::capability;

/// Server status flag: more results follow.
const SERVER_MORE_RESULTS: u16 = 1 << 3;
/// Server status flag: the rows are fetched later.
const SERVER_CURSOR_EXISTS: u16 = 1 << 6;
/// Server status flag: a transaction is open.
const SERVER_IN_TRANSACTION: u16 = 1;

/// An outstanding reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MysqlExpectedReply {
    /// A single packet.
    Single,
    /// OK, an error, or result sets.
    Results,
    /// Rows or column definitions until their end.
    Rows,
    /// The reply to a prepared statement.
    Prepared,
    /// So many column definitions, and the part that follows them.
    Columns { left: u64, then: AfterColumns },
    /// The end of the column definitions.
    ColumnsEnd(AfterColumns),
    /// The content of a local file, which the client sends.
    LocalFile,
}

/// The part that follows column definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterColumns {
    Rows,
    /// Of a prepared statement: so many more columns.
    Columns(u64),
}

/// Session of one client.
#[derive(Debug, Default)]
pub struct MysqlSession {
    /// Rows end with OK instead of EOF.
    no_eof: bool,
    expected: VecDeque<MysqlExpectedReply>,
    status: u16,
    /// The last reply was an error, which carries no status.
    is_status_unknown: bool,
    /// The next statement may ask for warnings.
    has_warnings: bool,
    residue: Option<&'static str>,
    opaque_reason: Option<&'static str>,
}

/// A packet that no command asked for, or that is malformed.
#[derive(Debug, PartialEq, Eq)]
pub struct UnexpectedPacket;

impl MysqlSession {
    /// Creates the session of a client with these capabilities.
    pub fn new(capabilities: u32) -> Self {
        Self {
            no_eof: capabilities & capability::DEPRECATE_EOF != 0,
            ..Self::default()
        }
    }

    /// Returns whether no reply is outstanding and all traffic was readable.
    pub fn is_quiet(&self) -> bool {
        self.expected.is_empty() && self.opaque_reason.is_none()
    }

    /// Returns whether no transaction is open, as far as the server reports, and the last statement
    /// left nothing to ask for.
    pub fn is_free(&self) -> bool {
        self.is_quiet()
            && self.status & SERVER_IN_TRANSACTION == 0
            && !self.is_status_unknown
            && !self.has_warnings
    }

    /// Returns the state that replies have reported and that stays on the connection.
    pub fn residue(&self) -> Option<&'static str> {
        self.residue
    }

    /// Returns the reason why the traffic is no longer readable.
    pub fn opaque_reason(&self) -> Option<&'static str> {
        self.opaque_reason
    }

    /// Returns whether the client's next packet is part of a local file.
    pub fn expects_file(&self) -> bool {
        self.expected.front() == Some(&MysqlExpectedReply::LocalFile)
    }

    /// Handles the end of a local file.
    pub fn finish_file(&mut self) {
        if self.expects_file() {
            self.expected[0] = MysqlExpectedReply::Results;
        }
    }

    /// Records a command that goes to the backend. Its first byte identifies it.
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
            // The server may now challenge the client, which mixes packets of both directions.
            0x11 => self.opaque_reason = Some("COM_CHANGE_USER"),
            _ => self.opaque_reason = Some("an unusual command"),
        }
    }

    /// Handles a packet of the backend.
    ///
    /// # Errors
    /// Fails when the packet answers no outstanding command.
    pub fn handle_reply(&mut self, packet: &MysqlPacket<'_>) -> Result<(), UnexpectedPacket> {
        let expect = self.expected.front_mut().ok_or(UnexpectedPacket)?;
        let next = match (*expect, packet.head.first()) {
            (MysqlExpectedReply::LocalFile, _) => return Err(UnexpectedPacket),
            // Nothing follows an error, even where more results were announced.
            (_, Some(0xff)) => {
                self.is_status_unknown = true;
                None
            }
            // Not every single packet is OK: the reply to `COM_STATISTICS` is a text without
            // status.
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
        // `LAST_INSERT_ID()` of a later statement would return it to another client.
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
            // 0xfb asks for a local file.
            Some(0xfb) => Ok(Some(MysqlExpectedReply::LocalFile)),
            _ => {
                // The first packet of a result set is its number of columns.
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

    /// Handles a column definition.
    fn handle_column(&self, left: u64, then: AfterColumns) -> Option<MysqlExpectedReply> {
        match then {
            _ if left > 0 => Some(MysqlExpectedReply::Columns { left, then }),
            _ if !self.no_eof => Some(MysqlExpectedReply::ColumnsEnd(then)),
            // With `DEPRECATE_EOF` no packet ends the columns.
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
                // With a cursor the rows come with `COM_STMT_FETCH`, not now.
                self.apply_end(end);
                Ok(None)
            }
            AfterColumns::Rows => Ok(Some(MysqlExpectedReply::Rows)),
            AfterColumns::Columns(more) => Ok(self.expect_columns(more)),
        }
    }

    /// Returns whether a packet that begins with 0xfe ends the rows. Otherwise it is a row that
    /// begins with a very long text.
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

/// The content of a packet that ends a result.
struct ResultEnd {
    status: u16,
    warnings: u64,
    insert_id: u64,
}

/// Parses an OK packet.
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

/// Parses an EOF packet.
fn parse_eof(packet: &MysqlPacket<'_>) -> Option<ResultEnd> {
    let mut reader = PayloadReader(packet.head);
    // A row may begin with 0xfe, too, but is then longer than any EOF packet.
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

    /// Returns whether `replies` are exactly the replies to `command`.
    fn matches_replies(capabilities: u32, command: u8, replies: &[&[u8]]) -> bool {
        let mut session = MysqlSession::new(capabilities);
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
        let feed = |session: &mut MysqlSession, head: &[u8]| {
            session.handle_reply(&MysqlPacket {
                head,
                length: head.len() as u64,
                sequence_id: 0,
            })
        };
        feed(&mut session, b"\xfbname").unwrap();
        assert!(session.expects_file());
        assert_eq!(feed(&mut session, OK), Err(UnexpectedPacket));
        session.finish_file();
        feed(&mut session, OK).unwrap();
        assert!(session.is_quiet());
        assert_eq!(feed(&mut session, OK), Err(UnexpectedPacket));
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
        fn no_packet_causes_a_panic(capabilities in any::<bool>(), commands in proptest::collection::vec(0_u8..0x20, 1..4), packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..40)) {
            let mut session = MysqlSession::new(if capabilities { capability::DEPRECATE_EOF } else { 0 });
            commands.into_iter().for_each(|command| session.record_command(command));
            for head in packets {
                let _ = session.handle_reply(&MysqlPacket { head: &head, length: head.len() as u64, sequence_id: 0 });
            }
        }
    }
}
