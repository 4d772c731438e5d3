//! The first thing a client says, which has no tag: who it is, or one of three other requests.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, BytesMut};

use super::frame::text;
use super::message;

/// What PostgreSQL takes at most.
pub(super) const LONGEST: usize = 10_000;
const CANCEL: u32 = 80_877_102;
const TLS: u32 = 80_877_103;
const GSS: u32 = 80_877_104;

/// The first packet of a connection, without its length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// It wants to speak TLS, or GSSAPI's encryption.
    Encrypt,
    /// Cancel what this key's backend does.
    Cancel((i32, i32)),
    /// Who it is and what it wishes.
    Start(Startup),
    /// A protocol that is not 3.
    Unknown(u32),
}

/// A StartupMessage.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Startup {
    pub(super) user: String,
    pub(super) database: String,
    /// All others, with what the server makes of them at the session's start.
    pub(super) options: BTreeMap<String, String>,
    /// What this side does not know of newer protocols; it is told so.
    newer: Vec<String>,
    is_newer: bool,
}

/// Reads the packet.
pub(super) fn opening(mut packet: &[u8]) -> Option<Opening> {
    let code = packet.try_get_u32().ok()?;
    Some(match code {
        TLS | GSS => Opening::Encrypt,
        CANCEL => Opening::Cancel((packet.try_get_i32().ok()?, packet.try_get_i32().ok()?)),
        _ if code >> 16 == 3 => Opening::Start(startup(code & 0xffff, packet)?),
        _ => Opening::Unknown(code),
    })
}

fn startup(minor: u32, mut packet: &[u8]) -> Option<Startup> {
    let mut startup = Startup { is_newer: minor > 0, ..Startup::default() };
    let (mut user, mut database) = (None, None);
    loop {
        let (name, rest) = text(packet)?;
        if name.is_empty() {
            break;
        }
        let (value, rest) = text(rest)?;
        let (name, value) = (std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?.to_owned());
        packet = rest;
        match name {
            "user" => user = Some(value),
            "database" => database = Some(value),
            _ if name.starts_with("_pq_.") => startup.newer.push(name.to_owned()),
            _ => drop(startup.options.insert(name.to_owned(), value)),
        }
    }
    startup.user = user?;
    startup.database = database.filter(|name| !name.is_empty()).unwrap_or_else(|| startup.user.clone());
    Some(startup)
}

impl Startup {
    /// Whether it asks for a stream of changes, which is no session of SQL.
    pub(super) fn replicates(&self) -> bool {
        let off = ["false", "off", "no", "0"];
        self.options.get("replication").is_some_and(|value| !off.contains(&value.to_ascii_lowercase().as_str()))
    }

    /// What protocol 3.0 says to what came after it.
    pub(super) fn answer_newer(&self, out: &mut BytesMut) {
        if !self.is_newer && self.newer.is_empty() {
            return;
        }
        message::message(out, b'v', |out| {
            out.put_u32(0);
            out.put_u32(u32::try_from(self.newer.len()).expect("they fit in one packet"));
            self.newer.iter().for_each(|name| message::text(out, name.as_bytes()));
        });
    }

    /// The packet, length and all, for a server.
    pub(super) fn packet(&self) -> BytesMut {
        let mut out = BytesMut::new();
        let named = [("user", &self.user), ("database", &self.database)];
        let all = named.into_iter().chain(self.options.iter().map(|(name, value)| (name.as_str(), value)));
        out.put_u32(0);
        out.put_u32(3 << 16);
        all.for_each(|(name, value)| {
            message::text(&mut out, name.as_bytes());
            message::text(&mut out, value.as_bytes());
        });
        out.put_u8(0);
        let length = u32::try_from(out.len()).expect("as short as what was read");
        out[..4].copy_from_slice(&length.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_other_requests_are_told_apart() {
        assert_eq!(opening(&TLS.to_be_bytes()), Some(Opening::Encrypt));
        assert_eq!(opening(&GSS.to_be_bytes()), Some(Opening::Encrypt));
        let cancel = [&CANCEL.to_be_bytes()[..], &7_u32.to_be_bytes(), &[0xff; 4]].concat();
        assert_eq!(opening(&cancel), Some(Opening::Cancel((7, -1))));
        assert_eq!(opening(&[0, 2, 0, 0]), Some(Opening::Unknown(2 << 16)));
        assert_eq!(opening(b"\0\x03\0\0user\0"), None);
        assert_eq!(opening(b"\0\x03\0\0a\0b\0\0"), None, "nobody");
    }

    #[test]
    fn newer_protocols_are_told_what_is_spoken_here() {
        let Some(Opening::Start(startup)) = opening(b"\0\x03\0\x02user\0a\0_pq_.x\x001\0\0") else { panic!() };
        let mut answer = BytesMut::new();
        startup.answer_newer(&mut answer);
        assert_eq!(&answer[..], b"v\0\0\0\x13\0\0\0\0\0\0\0\x01_pq_.x\0");
    }

    proptest! {
        #[test]
        fn a_startup_is_read_as_it_was_written(
            user in "[a-z]{1,8}", database in "[a-z]{1,8}", options in prop::collection::btree_map("[a-c_]{1,5}", "[^\0]{0,9}", 0..4),
        ) {
            let startup = Startup { user, database, options, ..Startup::default() };
            prop_assert_eq!(opening(&startup.packet()[4..]), Some(Opening::Start(startup)));
        }

        #[test]
        fn any_packet_is_read(packet: Vec<u8>) {
            opening(&packet);
        }
    }
}
