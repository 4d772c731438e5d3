//! TLS over a socket of an event loop, for handlers, which must not wait. Tasks drive the same session with
//! tokio-rustls.

use std::io::{self, BufRead, IoSlice, Write};

use bytes::BytesMut;
use rustix::net::Shutdown;
use rustls::{ConnectionCommon, SideData};

use super::socket::{PolledSocket, READ_BYTES};

/// Maximum reads without data. Sessions and key updates are far shorter; a peer that sends nothing else must
/// not hold the thread.
const MAX_READS: u32 = 4;

/// Reads what has arrived, decrypted, behind the bytes in `buffer`. 0: the peer has ended its direction.
///
/// # Errors
/// `WouldBlock` if no whole record with data has arrived; another error after many records without data; of
/// the connection, which is shut down if a record is invalid.
pub(crate) fn try_read_decrypted<S: SideData>(
    session: &mut ConnectionCommon<S>,
    socket: &PolledSocket,
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    let before = buffer.len();
    let mut is_open = take_decrypted(session, buffer)?;
    let mut reads = 0;
    while is_open && buffer.len() == before {
        reads += 1;
        if reads > MAX_READS {
            return Err(io::Error::other("too many TLS records without data"));
        }
        let mut decrypted = Ok(true);
        let read = socket.try_read_up_to(READ_BYTES, |bytes| {
            decrypted = decrypt(session, bytes, buffer);
        })?;
        // Without close_notify this is an end, too: lengths and chunks show a truncated message (RFC 9112
        // section 9.8).
        is_open = read > 0 && decrypted.inspect_err(|_| abort(session, socket))?;
    }
    Ok(buffer.len() - before)
}

/// Writes bytes in parts, once. What the socket does not take stays in the session, which
/// [`rustls::CommonState::wants_write`] tells.
///
/// # Errors
/// `WouldBlock` if the session still has older bytes; of the connection.
pub(crate) fn try_write_encrypted<S: SideData>(
    session: &mut ConnectionCommon<S>,
    socket: &PolledSocket,
    parts: &[IoSlice<'_>],
) -> io::Result<usize> {
    write_session(session, socket)?;
    let taken = session.writer().write_vectored(parts)?;
    match write_session(session, socket) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(taken),
    }
}

/// Decrypts bytes of the peer. False: the peer sends no more.
fn decrypt<S: SideData>(
    session: &mut ConnectionCommon<S>,
    mut bytes: &[u8],
    buffer: &mut BytesMut,
) -> io::Result<bool> {
    let mut is_open = true;
    while is_open && !bytes.is_empty() {
        session.read_tls(&mut bytes)?;
        let processed = session.process_new_packets();
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        is_open = take_decrypted(session, buffer)?;
    }
    Ok(is_open)
}

/// Takes decrypted bytes out of the session. False: the peer sends no more.
fn take_decrypted<S: SideData>(
    session: &mut ConnectionCommon<S>,
    buffer: &mut BytesMut,
) -> io::Result<bool> {
    loop {
        let mut reader = session.reader();
        let length = match reader.fill_buf() {
            Ok(chunk) => {
                buffer.extend_from_slice(chunk);
                chunk.len()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        if length == 0 {
            return Ok(false);
        }
        reader.consume(length);
    }
}

/// Sends the alert that the session has prepared, and ends the connection.
fn abort<S: SideData>(session: &mut ConnectionCommon<S>, socket: &PolledSocket) {
    let _ = write_session(session, socket); // the connection fails in any case
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Writes all that the session has for the socket.
fn write_session<S: SideData>(
    session: &mut ConnectionCommon<S>,
    socket: &PolledSocket,
) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(&mut SocketWriter(socket))?;
    }
    Ok(())
}

/// Socket as rustls writes to it.
struct SocketWriter<'a>(&'a PolledSocket);

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match parts {
            [part] => self.0.try_write(part), // one buffer costs the kernel less than a vector
            parts => self.0.try_write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the kernel has what was written
    }
}

#[cfg(test)]
mod tests;
