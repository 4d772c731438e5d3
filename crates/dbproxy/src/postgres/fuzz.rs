//! Entry points for fuzz targets: a conversation of any bytes with any bytes.

use bytes::BytesMut;
use nearpath_types::egress::PoolingMode;

use super::backend_state::{BackendState, STATUS_IDLE, SessionParameters, StatementNames};
use super::frame::PostgresFramer;
use super::session::{PostgresSession, SessionOutputs};
use super::startup::parse_first_packet;

/// Lets a client and a server send these bytes, by turns and in chunks of `part` bytes. Returns
/// what each of them gets. Ends where one of them violates the protocol.
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
    let (mut session, names, mut backend_state) = (
        PostgresSession::new(mode, values),
        StatementNames::default(),
        BackendState::default(),
    );
    backend_state.status = STATUS_IDLE;
    let (mut incoming, mut to_backend, mut to_client) = (
        [PostgresFramer::default(), PostgresFramer::default()],
        BytesMut::new(),
        BytesMut::new(),
    );
    let (mut client, mut server) = (client.chunks(part.max(1)), server.chunks(part.max(1)));
    loop {
        let sent = (client.next(), server.next());
        if sent == (None, None) {
            break;
        }
        incoming[0]
            .buffer()
            .extend_from_slice(sent.0.unwrap_or_default());
        incoming[1]
            .buffer()
            .extend_from_slice(sent.1.unwrap_or_default());
        while let Ok(Some(piece)) = incoming[0].next_piece() {
            let outputs = &mut SessionOutputs {
                to_backend: &mut to_backend,
                to_client: &mut to_client,
                names: &names,
            };
            if session
                .handle_client(piece, &mut backend_state, outputs)
                .is_err()
            {
                return (to_backend.to_vec(), to_client.to_vec());
            }
        }
        if session
            .handle_backend(&mut incoming[1], &mut backend_state, &mut to_client)
            .is_err()
        {
            break;
        }
        // The invariant under test: a backend is never free while a reply is outstanding.
        assert!(!session.is_free(&backend_state) || session.is_quiet());
    }
    (to_backend.to_vec(), to_client.to_vec())
}

/// Returns whether a first packet can be parsed.
pub fn is_first_packet(packet: &[u8]) -> bool {
    parse_first_packet(packet).is_some()
}

/// Returns why a text pins its client, if it does.
pub fn pin_reason(text: &[u8]) -> Option<&'static str> {
    super::session_effect::classify_text(text, |_| true).pin
}
