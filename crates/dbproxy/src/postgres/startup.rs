//! The first packet of a client, which has no tag: a startup message or one of three other
//! requests.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, BytesMut};

use super::frame::split_text;
use super::message;

/// The longest startup packet that PostgreSQL accepts (`MAX_STARTUP_PACKET_LENGTH`).
pub(super) const MAX_PACKET_BYTES: usize = 10_000;
// The request codes are protocol versions that cannot exist: 1234 in the upper 16 bits
// (`pqcomm.h`).
const CANCEL_REQUEST_CODE: u32 = 80_877_102;
const SSL_REQUEST_CODE: u32 = 80_877_103;
const GSSENC_REQUEST_CODE: u32 = 80_877_104;

/// The first packet of a connection, without its length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FirstPacket {
    /// A request for TLS.
    Tls,
    /// A request for GSSAPI encryption.
    GssEncryption,
    /// A request to cancel the statement of this key's backend.
    Cancel((i32, i32)),
    /// A startup message.
    Start(PostgresStartup),
    /// A protocol version other than 3.
    Unknown(u32),
}

/// A StartupMessage.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct PostgresStartup {
    pub(super) user: String,
    pub(super) database: String,
    /// All other parameters, which set the session's parameters at its start.
    pub(super) options: BTreeMap<String, String>,
    /// Options of newer protocol versions that are unsupported here; the client is told so.
    unsupported_options: Vec<String>,
    is_newer_protocol: bool,
}

/// Parses the packet.
pub(super) fn parse_first_packet(mut packet: &[u8]) -> Option<FirstPacket> {
    let code = packet.try_get_u32().ok()?;
    Some(match code {
        SSL_REQUEST_CODE => FirstPacket::Tls,
        GSSENC_REQUEST_CODE => FirstPacket::GssEncryption,
        CANCEL_REQUEST_CODE => {
            FirstPacket::Cancel((packet.try_get_i32().ok()?, packet.try_get_i32().ok()?))
        }
        _ if code >> 16 == 3 => FirstPacket::Start(parse_startup(code & 0xffff, packet)?),
        _ => FirstPacket::Unknown(code),
    })
}

fn parse_startup(minor: u32, mut packet: &[u8]) -> Option<PostgresStartup> {
    let mut startup = PostgresStartup {
        is_newer_protocol: minor > 0,
        ..PostgresStartup::default()
    };
    let (mut user, mut database) = (None, None);
    loop {
        let (name, rest) = split_text(packet)?;
        if name.is_empty() {
            break;
        }
        let (value, rest) = split_text(rest)?;
        let (name, value) = (
            std::str::from_utf8(name).ok()?,
            std::str::from_utf8(value).ok()?.to_owned(),
        );
        packet = rest;
        match name {
            "user" => user = Some(value),
            "database" => database = Some(value),
            // Names with this prefix are reserved for protocol extensions since 3.0.
            _ if name.starts_with("_pq_.") => startup.unsupported_options.push(name.to_owned()),
            _ => drop(startup.options.insert(name.to_owned(), value)),
        }
    }
    startup.user = user?;
    // The server's own default for a missing database.
    startup.database = database
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| startup.user.clone());
    Some(startup)
}

impl PostgresStartup {
    /// Returns whether the client asks for replication, which is no session of SQL.
    pub(super) fn is_replication(&self) -> bool {
        // The server's own reading of a boolean; `database` and other texts mean yes.
        let off = ["false", "off", "no", "0"];
        self.options
            .get("replication")
            .is_some_and(|value| !off.contains(&value.to_ascii_lowercase().as_str()))
    }

    /// Writes a NegotiateProtocolVersion if the client asked for more than protocol 3.0.
    pub(super) fn write_negotiation(&self, out: &mut BytesMut) {
        if !self.is_newer_protocol && self.unsupported_options.is_empty() {
            return;
        }
        message::write_message(out, b'v', |out| {
            out.put_u32(0);
            out.put_u32(
                u32::try_from(self.unsupported_options.len()).expect("they fit in one packet"),
            );
            self.unsupported_options
                .iter()
                .for_each(|name| message::write_text(out, name.as_bytes()));
        });
    }

    /// Encodes the packet for a server, including its length.
    pub(super) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::new();
        let named = [("user", &self.user), ("database", &self.database)];
        let all = named.into_iter().chain(
            self.options
                .iter()
                .map(|(name, value)| (name.as_str(), value)),
        );
        out.put_u32(0);
        out.put_u32(3 << 16);
        all.for_each(|(name, value)| {
            message::write_text(&mut out, name.as_bytes());
            message::write_text(&mut out, value.as_bytes());
        });
        out.put_u8(0);
        let length =
            u32::try_from(out.len()).expect("a startup packet is at most 10,000 bytes long");
        out[..4].copy_from_slice(&length.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_other_requests_are_distinguished() {
        assert_eq!(
            parse_first_packet(&SSL_REQUEST_CODE.to_be_bytes()),
            Some(FirstPacket::Tls)
        );
        assert_eq!(
            parse_first_packet(&GSSENC_REQUEST_CODE.to_be_bytes()),
            Some(FirstPacket::GssEncryption)
        );
        let cancel = [
            &CANCEL_REQUEST_CODE.to_be_bytes()[..],
            &7_u32.to_be_bytes(),
            &[0xff; 4],
        ]
        .concat();
        assert_eq!(
            parse_first_packet(&cancel),
            Some(FirstPacket::Cancel((7, -1)))
        );
        assert_eq!(
            parse_first_packet(&[0, 2, 0, 0]),
            Some(FirstPacket::Unknown(2 << 16))
        );
        assert_eq!(parse_first_packet(b"\0\x03\0\0user\0"), None);
        assert_eq!(parse_first_packet(b"\0\x03\0\0a\0b\0\0"), None, "no user");
    }

    #[test]
    fn newer_protocols_get_a_version_negotiation() {
        let Some(FirstPacket::Start(startup)) =
            parse_first_packet(b"\0\x03\0\x02user\0a\0_pq_.x\x001\0\0")
        else {
            panic!()
        };
        let mut answer = BytesMut::new();
        startup.write_negotiation(&mut answer);
        assert_eq!(&answer[..], b"v\0\0\0\x13\0\0\0\0\0\0\0\x01_pq_.x\0");
    }

    proptest! {
        #[test]
        fn a_startup_round_trips(
            user in "[a-z]{1,8}", database in "[a-z]{1,8}", options in prop::collection::btree_map("[a-c_]{1,5}", "[^\0]{0,9}", 0..4),
        ) {
            let startup = PostgresStartup { user, database, options, ..PostgresStartup::default() };
            prop_assert_eq!(parse_first_packet(&startup.encode()[4..]), Some(FirstPacket::Start(startup)));
        }

        #[test]
        fn any_packet_is_parsed_without_panic(packet: Vec<u8>) {
            parse_first_packet(&packet);
        }
    }
}
