//! A connection to Redis: logged in, set up, cleaned.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use nearpath_types::egress::Login;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::{Frames, Malformed};
use super::settings::{Identity, authenticate, command};
use nearpath_connpool::destination::Destination;
use nearpath_connpool::idle::Reused;
use nearpath_connpool::socket::Socket;

/// Longest wait for a backend to be cleaned; one that takes longer is closed.
pub const CLEANING: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Backend {
    /// Its connection.
    pub socket: Socket,
}

/// Why a connection could not be set up or cleaned.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// What the server said to one of the commands, a line of the protocol.
    #[error("{}", String::from_utf8_lossy(.0))]
    Refused(Vec<u8>),
    /// The connection broke, or is not Redis's.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl Reused for Backend {
    fn is_quiet(&self) -> bool {
        self.socket.is_quiet()
    }

    fn is_at_home(&self) -> bool {
        self.socket.is_at_home()
    }

    fn close(self) {
        tokio::task::spawn_local(self.socket.leave(b""));
    }
}

impl Backend {
    /// Logs a new connection in and makes it `identity`.
    ///
    /// # Errors
    /// When the server refuses, or the connection breaks.
    pub async fn set_up(&mut self, to: &Destination, identity: &Identity) -> Result<(), Unfit> {
        let mut commands = login(to);
        commands.extend(identity.commands(None));
        self.done(&commands).await
    }

    /// Removes all that a client left in it, and proves it by the replies: whatever else was under way would come before them.
    ///
    /// # Errors
    /// As [`set_up`](Self::set_up); servers before 6.2 know no reset.
    pub async fn clean(&mut self, to: &Destination, identity: &Identity) -> Result<(), Unfit> {
        let mut commands = vec![command(&[b"RESET"])];
        commands.extend(login(to));
        commands.extend(identity.commands(Some(identity)));
        self.done(&commands).await
    }

    /// Reads one value; `None`: it is none, or too long to be held.
    ///
    /// # Errors
    /// When the connection breaks, or more comes than the value: then it serves nobody any more.
    pub async fn get(&mut self, key: &[u8], longest: usize) -> Result<Vec<u8>, Unfit> {
        self.socket.write_all(&command(&[b"GET", key])).await?;
        self.socket.flush().await?;
        let (mut frames, mut input, mut seen) = (Frames::default(), BytesMut::new(), 0);
        while input.len() <= longest {
            if self.socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let (used, value) = frames.step(&input[seen..]).map_err(no_redis)?;
            seen += used;
            match value {
                Some(value) if value.is_error() => return Err(Unfit::Refused(value.line.to_vec())),
                Some(value) if value.is_push() || seen < input.len() => break,
                Some(_) => return Ok(input.to_vec()),
                None => {}
            }
        }
        Err(io::Error::from(io::ErrorKind::InvalidData).into())
    }

    /// Has commands done; none may be refused.
    async fn done(&mut self, commands: &[Vec<u8>]) -> Result<(), Unfit> {
        if commands.is_empty() {
            return Ok(());
        }
        self.socket.write_all(&commands.concat()).await?;
        self.socket.flush().await?;
        let (mut frames, mut input, mut left) = (Frames::default(), BytesMut::new(), commands.len());
        while left > 0 {
            if self.socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            left = replies(&mut frames, &mut input, left)?;
        }
        if input.is_empty() { Ok(()) } else { Err(no_redis(Malformed).into()) }
    }
}

/// Counts the replies in `input`; how many are left.
fn replies(frames: &mut Frames, input: &mut BytesMut, mut left: usize) -> Result<usize, Unfit> {
    while left > 0 && !input.is_empty() {
        let (used, value) = frames.step(input).map_err(no_redis)?;
        match value {
            Some(value) if value.is_error() => return Err(Unfit::Refused(value.line.to_vec())),
            Some(value) if !value.is_push() => left -= 1,
            _ => {}
        }
        bytes::Buf::advance(input, used);
    }
    Ok(left)
}

/// What the other end says is not RESP.
pub fn no_redis(_: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what it says is not RESP: is it Redis? `protocol=tcp` carries anything")
}

/// What logs the node in, where it does.
fn login(to: &Destination) -> Vec<Vec<u8>> {
    let Some(Login { user, password: Some(secret), .. }) = &to.egress.login else { return Vec::new() };
    let password = to.secrets.get(secret).map_or(&b""[..], |secret| secret.trim_ascii_end());
    vec![authenticate(Some(user.as_bytes()), password)]
}
