//! `COM_CHANGE_USER` of a client where the node logs in: the node logs its backend in anew
//! (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_change_user.html>).
//!
//! The command carries the function's own user and proof, which the node ignores at the login, too.
//! The server would compare them with the backend's salt, which no client knows.

use nearpath_connpool::idle::ReusableConnection;

use super::backend::{MysqlBackendError, PasswordSource};
use super::frame::{PayloadReader, encode_packet};
use super::handshake::{error_packet, node_password, use_node_account};
use super::relay::MysqlRelay;
use super::session::MysqlSession;
use super::startup::HandshakeResponse;

/// The longest command that is read here. A server's limit on names is far below.
const MAX_CHANGE_USER_BYTES: usize = 4096;

impl MysqlRelay {
    /// Handles the command once it has arrived whole and all earlier replies have been delivered.
    pub(super) async fn change_user(&mut self, length: usize) {
        if length > MAX_CHANGE_USER_BYTES {
            return self.refuse_change(&MysqlBackendError::AuthFailed(format!(
                "nearpath: COM_CHANGE_USER of {length} bytes; at most {MAX_CHANGE_USER_BYTES}"
            )));
        }
        if self.input.len() < 4 + length || !self.is_between_commands() {
            return;
        }
        let command = self.input.split_to(4 + length);
        let login = &mut self.client_state.login;
        login.apply_change(&command[4..]);
        if let Some(account) = &self.context.upstream.destination.egress.login {
            use_node_account(login, account);
        }
        self.client_state.settings.clear();
        if self.client_state.backend.is_none() && !self.ensure_attached().await {
            return;
        }
        match self.log_in_anew().await {
            Ok(ok_packet) => self.begin_session(&ok_packet),
            Err(error) => self.refuse_change(&error),
        }
    }

    async fn log_in_anew(&mut self) -> Result<Vec<u8>, MysqlBackendError> {
        let password = node_password(&self.context);
        let backend = self.client_state.backend.as_mut();
        let backend = backend.expect("the caller has attached a backend");
        backend
            .connection
            .change_user(
                &self.client_state.login,
                &mut PasswordSource::Node(&password),
            )
            .await
    }

    /// Begins a session without state: the server has dropped all that the client had left.
    fn begin_session(&mut self, ok_packet: &[u8]) {
        self.session = MysqlSession::new(self.client_state.login.capabilities);
        (self.pin, self.has_queried) = (None, false);
        self.to_client.extend(encode_packet(1, ok_packet));
    }

    /// Sends an error and ends the connection: its backend may be anybody's now.
    fn refuse_change(&mut self, error: &MysqlBackendError) {
        self.state.forget();
        self.is_closing = true;
        if let Some(backend) = self.client_state.backend.take() {
            backend.connection.close();
        }
        self.to_client
            .extend(encode_packet(1, &error_packet(error, Some("08S01"))));
    }
}

impl HandshakeResponse {
    /// Takes the database and the character set of a `COM_CHANGE_USER`. A malformed command changes
    /// nothing.
    fn apply_change(&mut self, command: &[u8]) {
        if let Some((db, charset)) = parse_change(command) {
            self.db = db.to_vec();
            self.charset = charset.unwrap_or(self.charset);
        }
    }
}

/// Parses the database, and the low byte of the character set if the command holds one.
fn parse_change(command: &[u8]) -> Option<(&[u8], Option<u8>)> {
    let mut reader = PayloadReader(command);
    // The command's number and the function's user.
    reader.read_byte()?;
    reader.read_text()?;
    let proof_length = usize::from(reader.read_byte()?);
    reader.read_bytes(proof_length)?;
    let db = reader.read_text()?;
    Some((db, reader.read_byte()))
}
