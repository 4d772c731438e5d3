//! Requests for encryption, which precede the startup message of a client.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client_state::HandshakeError;
use super::connection::PostgresConnection;
use super::handshake::{HANDSHAKE_TIMEOUT, read_packet};
use super::startup::FirstPacket;
use crate::ClientContext;
use crate::client_stream::ClientStream;
use crate::tls_demand::TlsDemand;

/// Answers to a request for encryption (the manual, "SSL Session Encryption").
const WILLING: &[u8] = b"S";
const UNWILLING: &[u8] = b"N";

/// A client and its first packet after the requests for encryption.
type OpenedClient = (
    PostgresConnection<ClientStream>,
    Result<FirstPacket, HandshakeError>,
);

/// Reads a client's first packet, after answering its requests for encryption.
///
/// # Errors
/// Fails when the connection breaks or takes too long, and when its TLS handshake fails.
pub(super) async fn open_client(
    client: TcpStream,
    context: &ClientContext,
) -> io::Result<OpenedClient> {
    let client = PostgresConnection::new(ClientStream::Plain(client));
    timeout(HANDSHAKE_TIMEOUT, answer_requests(client, context)).await?
}

async fn answer_requests(
    mut client: PostgresConnection<ClientStream>,
    context: &ClientContext,
) -> io::Result<OpenedClient> {
    let mut was_refused = false;
    loop {
        let packet = read_packet(&mut client).await;
        match packet {
            Ok(FirstPacket::Tls) if needs_tls(context) => {
                client = start_tls(client, context).await?;
            }
            Ok(FirstPacket::Tls) => {
                client.stream.write_all(UNWILLING).await?;
                was_refused = true;
            }
            // Kerberos has no part in the connection of a function.
            Ok(FirstPacket::GssEncryption) => client.stream.write_all(UNWILLING).await?,
            Err(HandshakeError::Disconnected(error)) => {
                if was_refused {
                    change_demand(context, TlsDemand::after_refusal);
                }
                return Err(error);
            }
            other => {
                if let (Ok(FirstPacket::Start(_)), ClientStream::Plain(_)) =
                    (&other, &client.stream)
                {
                    change_demand(context, TlsDemand::after_plain_start);
                }
                return Ok((client, other));
            }
        }
    }
}

/// Answers a request for TLS with yes, and runs the handshake.
async fn start_tls(
    mut client: PostgresConnection<ClientStream>,
    context: &ClientContext,
) -> io::Result<PostgresConnection<ClientStream>> {
    // Bytes before the handshake would be taken for encrypted ones (CVE-2021-23214).
    if !client.incoming.buffer().is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the client sent plain text after its request for TLS",
        ));
    }
    let acceptor = (context.tls_acceptors)(&context.upstream.destination)?;
    client.stream.write_all(WILLING).await?;
    Ok(PostgresConnection::new(
        client.stream.accept_tls(&acceptor).await?,
    ))
}

/// Returns whether a client that asks for TLS gets it.
fn needs_tls(context: &ClientContext) -> bool {
    if context.caller.requires_tls {
        return true;
    }
    let (before, after) = change_demand(context, TlsDemand::after_request);
    if after == TlsDemand::Needed && before != after {
        let to = &context.upstream.destination.key.host_port;
        let text = format!(
            "a client left because nearpath had answered it without TLS; clients of {to} get TLS from now on, set `PGSSLMODE: require` in the function's environment for TLS from the first connection"
        );
        (context.logger)(&context.caller, to, &text);
    }
    after == TlsDemand::Needed
}

/// Changes what is known about the destination's clients. Returns the states before and after.
fn change_demand(
    context: &ClientContext,
    change: fn(TlsDemand) -> TlsDemand,
) -> (TlsDemand, TlsDemand) {
    let upstream = &context.upstream;
    // It outlives the function's instances: the next one has the same code.
    let demand: Rc<Cell<TlsDemand>> = upstream.adapters.usage_memory(&upstream.destination);
    let before = demand.get();
    demand.set(change(before));
    (before, demand.get())
}
