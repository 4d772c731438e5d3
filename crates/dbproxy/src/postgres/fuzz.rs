//! For fuzz targets: a conversation of any bytes with any bytes.

use bytes::BytesMut;
use nearpath_types::egress::PoolingMode;

use super::backend_state::{BackendState, STATUS_IDLE, SessionParameters, StatementNames};
use super::frame::PostgresFramer;
use super::session::{PostgresSession, SessionOutputs};
use super::startup::parse_first_packet;

/// Has a client and a server say this, by turns and in parts of so many bytes. What each hears is given back; it ends where one does not keep to the
/// protocol.
pub fn run_conversation(
    mode: PoolingMode,
    client: &[u8],
    server: &[u8],
    part: usize,
) -> (Vec<u8>, Vec<u8>) {
    let values = SessionParameters::from([
        ("TimeZone".into(), "UTC".into()),
        ("client_encoding".into(), "UTF8".into()),
    ]);
    let (mut talk, names, mut facts) = (
        PostgresSession::new(mode, values),
        StatementNames::default(),
        BackendState::default(),
    );
    facts.status = STATUS_IDLE;
    let (mut heard_by, mut to_backend, mut to_client) = (
        [PostgresFramer::default(), PostgresFramer::default()],
        BytesMut::new(),
        BytesMut::new(),
    );
    let (mut client, mut server) = (client.chunks(part.max(1)), server.chunks(part.max(1)));
    loop {
        let said = (client.next(), server.next());
        if said == (None, None) {
            break;
        }
        heard_by[0]
            .buffer()
            .extend_from_slice(said.0.unwrap_or_default());
        heard_by[1]
            .buffer()
            .extend_from_slice(said.1.unwrap_or_default());
        while let Ok(Some(piece)) = heard_by[0].next_piece() {
            let ways = &mut SessionOutputs {
                to_backend: &mut to_backend,
                to_client: &mut to_client,
                names: &names,
            };
            if talk.handle_client(piece, &mut facts, ways).is_err() {
                return (to_backend.to_vec(), to_client.to_vec());
            }
        }
        if talk
            .handle_backend(&mut heard_by[1], &mut facts, &mut to_client)
            .is_err()
        {
            break;
        }
        assert!(!talk.is_free(&facts) || talk.is_quiet());
    }
    (to_backend.to_vec(), to_client.to_vec())
}

/// Reads a first packet; whether it can be read.
pub fn is_first_packet(packet: &[u8]) -> bool {
    parse_first_packet(packet).is_some()
}

/// Why a text pins, if it does.
pub fn pin_reason(text: &[u8]) -> Option<&'static str> {
    super::session_effect::classify_text(text, |_| true).pin
}
