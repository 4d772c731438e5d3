//! Messages that the node itself sends, in the server's format.

use bytes::{BufMut, Bytes, BytesMut};

use nearpath_connpool::pool::NoConnection;

/// Error classes of PostgreSQL (its manual, appendix A).
pub(super) mod sqlstate {
    pub(in super::super) const PROTOCOL_VIOLATION: &str = "08P01";
    pub(in super::super) const CONNECTION_FAILURE: &str = "08006";
    pub(in super::super) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(in super::super) const INVALID_AUTHORIZATION_CLASS: &str = "28";
    pub(in super::super) const INVALID_PASSWORD: &str = "28P01";
    pub(in super::super) const CANNOT_CONNECT_NOW: &str = "57P03";
}

/// AuthenticationOk: the password is right, or not asked for.
pub(super) const AUTHENTICATION_OK: &[u8] = b"R\0\0\0\x08\0\0\0\0";
pub(super) const CLEARTEXT_REQUEST: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
pub(super) const CLOSE_COMPLETE: &[u8] = b"3\0\0\0\x04";

/// Writes a message: `body` writes the content, and the length is filled in.
pub(super) fn write_message(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let at = out.len();
    // The length is only known after the body is written.
    out.put_u32(0);
    body(out);
    let length = u32::try_from(out.len() - at)
        .expect("written messages are shorter than the limit of 1 GiB");
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a text and its terminating zero.
pub(super) fn write_text(out: &mut BytesMut, text: &[u8]) {
    out.extend_from_slice(text);
    out.put_u8(0);
}

pub(super) fn write_ready(out: &mut BytesMut, status: u8) {
    write_message(out, b'Z', |out| out.put_u8(status));
}

pub(super) fn write_command_tag(out: &mut BytesMut, command: &str) {
    write_message(out, b'C', |out| write_text(out, command.as_bytes()));
}

pub(super) fn write_parameter(out: &mut BytesMut, name: &str, value: &str) {
    write_message(out, b'S', |out| {
        write_text(out, name.as_bytes());
        write_text(out, value.as_bytes());
    });
}

pub(super) fn write_key(out: &mut BytesMut, (pid, secret): (i32, i32)) {
    write_message(out, b'K', |out| {
        out.put_i32(pid);
        out.put_i32(secret);
    });
}

pub(super) fn md5_request(salt: [u8; 4]) -> Bytes {
    let mut out = BytesMut::new();
    write_message(&mut out, b'R', |out| {
        out.put_u32(5);
        out.extend_from_slice(&salt);
    });
    out.freeze()
}

/// Returns an error after which the connection ends.
pub(super) fn fatal_error(state: &str, what: &str, hint: &str) -> Bytes {
    let mut out = BytesMut::new();
    write_message(&mut out, b'E', |out| {
        // Severity appears twice: 'S' may be translated, 'V' is the form that drivers compare
        // (since 9.6).
        for (field, value) in [
            (b'S', "FATAL"),
            (b'V', "FATAL"),
            (b'C', state),
            (b'M', what),
            (b'H', hint),
        ] {
            if !value.is_empty() {
                out.put_u8(field);
                write_text(out, value.as_bytes());
            }
        }
        out.put_u8(0);
    });
    out.freeze()
}

/// Returns the error for a client that gets no connection.
pub(super) fn no_connection_error(error: &NoConnection) -> Bytes {
    match error {
        NoConnection::Exhausted { .. } => fatal_error(
            sqlstate::TOO_MANY_CONNECTIONS,
            &format!("nearpath: {error}"),
            "Raise `max` of this destination in the function's egress (below the server's max_connections), or `wait`.",
        ),
        NoConnection::Refused { .. } => fatal_error(
            sqlstate::CONNECTION_FAILURE,
            &format!("nearpath: {error}"),
            "",
        ),
    }
}

/// Parses the body of a ParameterStatus.
pub(super) fn parse_parameter(body: &[u8]) -> Option<(String, String)> {
    let (name, rest) = super::frame::split_text(body)?;
    let (value, _) = super::frame::split_text(rest)?;
    let owned = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    Some((owned(name), owned(value)))
}

/// Returns a field of an ErrorResponse or a NoticeResponse.
pub(super) fn find_field(mut body: &[u8], wanted: u8) -> Option<&[u8]> {
    while let Some((&field, rest)) = body.split_first().filter(|(field, _)| **field != 0) {
        let (value, rest) = super::frame::split_text(rest)?;
        if field == wanted {
            return Some(value);
        }
        body = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_fields_that_drivers_read() {
        let error = fatal_error(sqlstate::TOO_MANY_CONNECTIONS, "full", "more");
        assert_eq!(usize::from(error[4]), error.len() - 1);
        let fields = [b'S', b'C', b'M', b'H', b'D'].map(|wanted| find_field(&error[5..], wanted));
        assert_eq!(
            fields,
            [
                Some(&b"FATAL"[..]),
                Some(b"53300"),
                Some(b"full"),
                Some(b"more"),
                None
            ]
        );
    }
}
