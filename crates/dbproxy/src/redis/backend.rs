//! A connection to Redis: login, setup and cleaning.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use nearpath_types::egress::EgressLogin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::{MalformedResp, RespFramer};
use super::settings::{RedisIdentity, auth_command, encode_command};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::ReusableConnection;
use nearpath_connpool::socket::UpstreamSocket;

/// Time for cleaning a backend; one that takes longer is closed.
pub const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to Redis that is set up for one identity.
#[derive(Debug)]
pub struct RedisBackend {
    /// Its socket.
    pub socket: UpstreamSocket,
}

/// Reason for a failed setup, read or cleanup.
#[derive(Debug, thiserror::Error)]
pub enum RedisBackendError {
    /// Error reply of the server to one of the commands: one line, without its end.
    #[error("{}", String::from_utf8_lossy(.0))]
    Refused(Vec<u8>),
    /// The connection broke, or the server does not speak RESP.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl ReusableConnection for RedisBackend {
    fn is_quiet(&self) -> bool {
        self.socket.is_quiet()
    }

    fn is_binding_current(&self) -> bool {
        self.socket.is_binding_current()
    }

    fn close(self) {
        // Redis needs no closing message: it drops the connection's state with the socket.
        tokio::task::spawn_local(self.socket.close_with_message(b""));
    }
}

impl RedisBackend {
    /// Logs in on a new connection and gives it `identity`.
    ///
    /// # Errors
    /// Fails when the server refuses a command, or the connection breaks.
    pub async fn set_up(
        &mut self,
        to: &EgressDestination,
        identity: &RedisIdentity,
    ) -> Result<(), RedisBackendError> {
        let mut commands = login_commands(to);
        commands.extend(identity.setup_commands(None));
        self.run_commands(&commands).await
    }

    /// Removes all state of a client. The replies prove it: any other outstanding reply would come
    /// before them.
    ///
    /// # Errors
    /// As for [`set_up`](Self::set_up). Servers before 6.2 do not know `RESET`.
    pub async fn clean(
        &mut self,
        to: &EgressDestination,
        identity: &RedisIdentity,
    ) -> Result<(), RedisBackendError> {
        let mut commands = vec![encode_command(&[b"RESET"])];
        // `RESET` also logs out (redis.io/commands/reset), so the node's login and the identity are
        // sent again.
        commands.extend(login_commands(to));
        commands.extend(identity.setup_commands(Some(identity)));
        self.run_commands(&commands).await
    }

    /// Reads one value: its whole reply, of at most `max_bytes` bytes.
    ///
    /// # Errors
    /// Fails when the connection breaks, or when more than the value arrives. The connection must
    /// not be reused then.
    pub async fn get_value(
        &mut self,
        key: &[u8],
        max_bytes: usize,
    ) -> Result<Vec<u8>, RedisBackendError> {
        self.socket
            .write_all(&encode_command(&[b"GET", key]))
            .await?;
        self.socket.flush().await?;
        let (mut frames, mut input, mut seen) = (RespFramer::default(), BytesMut::new(), 0);
        while input.len() <= max_bytes {
            if self.socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let (used, value) = frames.step(&input[seen..]).map_err(not_redis_error)?;
            seen += used;
            match value {
                Some(value) if value.is_error() => {
                    return Err(RedisBackendError::Refused(value.line.to_vec()));
                }
                // A push or bytes beyond the reply answer no request of the node: the connection is
                // in no known state.
                Some(value) if value.is_push() || seen < input.len() => break,
                Some(_) => return Ok(input.to_vec()),
                None => {}
            }
        }
        Err(io::Error::from(io::ErrorKind::InvalidData).into())
    }

    /// Runs commands, none of which may be refused.
    async fn run_commands(&mut self, commands: &[Vec<u8>]) -> Result<(), RedisBackendError> {
        if commands.is_empty() {
            return Ok(());
        }
        // All commands go out in one write: a setup costs one round trip.
        self.socket.write_all(&commands.concat()).await?;
        self.socket.flush().await?;
        let (mut frames, mut input, mut left) =
            (RespFramer::default(), BytesMut::new(), commands.len());
        while left > 0 {
            if self.socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            left = count_replies(&mut frames, &mut input, left)?;
        }
        // Bytes beyond the last reply would be taken for the reply to the next client's first
        // command.
        if input.is_empty() {
            Ok(())
        } else {
            Err(not_redis_error(MalformedResp).into())
        }
    }
}

/// Counts the replies in `input`. Returns the number of those still to come.
fn count_replies(
    frames: &mut RespFramer,
    input: &mut BytesMut,
    mut left: usize,
) -> Result<usize, RedisBackendError> {
    while left > 0 && !input.is_empty() {
        let (used, value) = frames.step(input).map_err(not_redis_error)?;
        match value {
            Some(value) if value.is_error() => {
                return Err(RedisBackendError::Refused(value.line.to_vec()));
            }
            // Pushes of RESP 3 answer no command.
            Some(value) if !value.is_push() => left -= 1,
            _ => {}
        }
        bytes::Buf::advance(input, used);
    }
    Ok(left)
}

/// Returns the error for a server that does not speak RESP.
pub fn not_redis_error(_: MalformedResp) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the server does not speak RESP; use `protocol=tcp` for other protocols",
    )
}

/// Returns the commands of the node's own login, if the egress has one.
fn login_commands(to: &EgressDestination) -> Vec<Vec<u8>> {
    let Some(EgressLogin {
        user,
        password: Some(secret),
        ..
    }) = &to.egress.login
    else {
        return Vec::new();
    };
    // Secrets written with an editor end in a newline, which is no part of the password.
    let password = to
        .secrets
        .get(secret)
        .map_or(&b""[..], |secret| secret.trim_ascii_end());
    vec![auth_command(Some(user.as_bytes()), password)]
}
