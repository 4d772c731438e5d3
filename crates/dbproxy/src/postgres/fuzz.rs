//! For fuzz targets: a conversation of any bytes with any bytes.

use bytes::BytesMut;
use nearpath_types::egress::Mode;

use super::backend_state::{Facts, IDLE, Names, Values};
use super::frame::Inbox;
use super::session::{Talk, Ways};
use super::startup::opening;

/// Has a client and a server say this, by turns and in parts of so many bytes. What each hears is given back; it ends where one does not keep to the
/// protocol.
pub fn converse(mode: Mode, client: &[u8], server: &[u8], part: usize) -> (Vec<u8>, Vec<u8>) {
    let values = Values::from([("TimeZone".into(), "UTC".into()), ("client_encoding".into(), "UTF8".into())]);
    let (mut talk, names, mut facts) = (Talk::new(mode, values), Names::default(), Facts::default());
    facts.status = IDLE;
    let (mut heard_by, mut to_backend, mut to_client) =
        ([Inbox::default(), Inbox::default()], BytesMut::new(), BytesMut::new());
    let (mut client, mut server) = (client.chunks(part.max(1)), server.chunks(part.max(1)));
    loop {
        let said = (client.next(), server.next());
        if said == (None, None) {
            break;
        }
        heard_by[0].room().extend_from_slice(said.0.unwrap_or_default());
        heard_by[1].room().extend_from_slice(said.1.unwrap_or_default());
        while let Ok(Some(piece)) = heard_by[0].next() {
            let ways = &mut Ways { to_backend: &mut to_backend, to_client: &mut to_client, names: &names };
            if talk.hear(piece, &mut facts, ways).is_err() {
                return (to_backend.to_vec(), to_client.to_vec());
            }
        }
        if talk.relay(&mut heard_by[1], &mut facts, &mut to_client).is_err() {
            break;
        }
        assert!(!talk.is_at_rest(&facts) || talk.is_quiet());
    }
    (to_backend.to_vec(), to_client.to_vec())
}

/// Reads a first packet; whether it can be read.
pub fn first_packet(packet: &[u8]) -> bool {
    opening(packet).is_some()
}

/// Why a text pins, if it does.
pub fn pin(text: &[u8]) -> Option<&'static str> {
    super::session_effect::judge(text, |_| true).pin
}
