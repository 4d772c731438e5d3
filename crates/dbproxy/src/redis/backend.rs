//! A connection to Redis: logged in, set up, cleaned.

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

/// Longest wait for a backend to be cleaned; one that takes longer is closed.
pub const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct RedisBackend {
    /// Its connection.
    pub socket: UpstreamSocket,
}

/// Why a connection could not be set up or cleaned.
#[derive(Debug, thiserror::Error)]
pub enum RedisBackendError {
    /// What the server said to one of the commands, a line of the protocol.
    #[error("{}", String::from_utf8_lossy(.0))]
    Refused(Vec<u8>),
    /// The connection broke, or is not Redis's.
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
        tokio::task::spawn_local(self.socket.close_with_message(b""));
    }
}

impl RedisBackend {
    /// Logs a new connection in and makes it `identity`.
    ///
    /// # Errors
    /// When the server refuses, or the connection breaks.
    pub async fn set_up(
        &mut self,
        to: &EgressDestination,
        identity: &RedisIdentity,
    ) -> Result<(), RedisBackendError> {
        let mut commands = login_commands(to);
        commands.extend(identity.setup_commands(None));
        self.run_commands(&commands).await
    }

    /// Removes all that a client left in it, and proves it by the replies: whatever else was under way would come before them.
    ///
    /// # Errors
    /// As [`set_up`](Self::set_up); servers before 6.2 know no reset.
    pub async fn clean(
        &mut self,
        to: &EgressDestination,
        identity: &RedisIdentity,
    ) -> Result<(), RedisBackendError> {
        let mut commands = vec![encode_command(&[b"RESET"])];
        commands.extend(login_commands(to));
        commands.extend(identity.setup_commands(Some(identity)));
        self.run_commands(&commands).await
    }

    /// Reads one value; `NoConnection`: it is none, or too long to be held.
    ///
    /// # Errors
    /// When the connection breaks, or more comes than the value: then it serves nobody any more.
    pub async fn get_value(
        &mut self,
        key: &[u8],
        longest: usize,
    ) -> Result<Vec<u8>, RedisBackendError> {
        self.socket
            .write_all(&encode_command(&[b"GET", key]))
            .await?;
        self.socket.flush().await?;
        let (mut frames, mut input, mut seen) = (RespFramer::default(), BytesMut::new(), 0);
        while input.len() <= longest {
            if self.socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let (used, value) = frames.step(&input[seen..]).map_err(not_redis_error)?;
            seen += used;
            match value {
                Some(value) if value.is_error() => {
                    return Err(RedisBackendError::Refused(value.line.to_vec()));
                }
                Some(value) if value.is_push() || seen < input.len() => break,
                Some(_) => return Ok(input.to_vec()),
                None => {}
            }
        }
        Err(io::Error::from(io::ErrorKind::InvalidData).into())
    }

    /// Has commands done; none may be refused.
    async fn run_commands(&mut self, commands: &[Vec<u8>]) -> Result<(), RedisBackendError> {
        if commands.is_empty() {
            return Ok(());
        }
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
        if input.is_empty() {
            Ok(())
        } else {
            Err(not_redis_error(MalformedResp).into())
        }
    }
}

/// Counts the replies in `input`; how many are left.
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
            Some(value) if !value.is_push() => left -= 1,
            _ => {}
        }
        bytes::Buf::advance(input, used);
    }
    Ok(left)
}

/// What the other end says is not RESP.
pub fn not_redis_error(_: MalformedResp) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "what it says is not RESP: is it Redis? `protocol=tcp` carries anything",
    )
}

/// What logs the node in, where it does.
fn login_commands(to: &EgressDestination) -> Vec<Vec<u8>> {
    let Some(EgressLogin {
        user,
        password: Some(secret),
        ..
    }) = &to.egress.login
    else {
        return Vec::new();
    };
    let password = to
        .secrets
        .get(secret)
        .map_or(&b""[..], |secret| secret.trim_ascii_end());
    vec![auth_command(Some(user.as_bytes()), password)]
}
