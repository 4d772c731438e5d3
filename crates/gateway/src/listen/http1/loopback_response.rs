//! Responses of functions' own servers, see [`crate::fast_path`]. A short one goes to the caller
//! without a header map; others stream through the pipeline.

use std::io;

use bytes::BytesMut;
use http::StatusCode;
use nearpath_types::platform_field::is_platform_field;
use nearpath_wire::hop::headers::is_hop_field;
use tokio::io::{AsyncRead, AsyncWrite};

use super::buffered_connection::BufferedConnection;
use super::fast_response::{is_valid_field, write_own_fields, write_whole};
use super::response::{self, HEAD_RESERVE_BYTES, write_field, write_status_line};
use crate::fast_path::{LoopbackCall, PlainCall, PlainRequest, missing_content_type};
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ActiveRequest;
use crate::request::seconds_value;
use crate::transport::{ResponseHead, ServerBody, ServerResponse, exchange_plain};

/// Waits for the response and writes it. Returns whether another request may follow.
pub(super) async fn write_loopback_response<T>(
    client: &ClientConnection,
    connection: &mut BufferedConnection<T>,
    plain: &PlainRequest,
    sent: LoopbackCall,
    mut active: ActiveRequest,
) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let LoopbackCall {
        connection: server,
        head,
        call,
        limit,
    } = sent;
    let exchange = exchange_plain(
        server,
        head,
        plain.body(),
        limit.deadline_after(call.record.started_at()),
    );
    let Some(outcome) = connection.await_unless_gone(exchange).await else {
        return Ok(false);
    };
    let close = plain.closes_connection() || connection.state.is_draining();
    let (worker, peer) = (&client.worker, &client.peer);
    let mut response = match outcome {
        Ok(ServerResponse {
            head,
            body: ServerBody::Buffered(body),
        }) => {
            let out = write_head(client, plain, &call, &head, body.len(), close);
            // Recorded before the write: the function is done, and a slow caller must not occupy
            // it.
            call.complete_call(head.status.as_u16(), body.len() as u64);
            active.mark_untaken();
            drop(active);
            write_whole(connection, out, body).await?;
            return Ok(!close);
        }
        Ok(ServerResponse {
            head,
            body: ServerBody::Stream(body),
        }) => call.stream_via_pipeline(worker, peer, plain, &head, body),
        Err(error) => {
            call.refuse_lost_call(worker, peer, plain, limit, &error)
                .await
        }
    };
    client.add_alt_svc(response.headers_mut());
    response::write_response(connection, response, active, close, worker.http_date()).await
}

/// Writes the response head as watchdog and pipeline do together.
fn write_head(
    client: &ClientConnection,
    plain: &PlainRequest,
    call: &PlainCall,
    head: &ResponseHead,
    length: usize,
    close: bool,
) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEAD_RESERVE_BYTES);
    write_status_line(&mut out, head.status);
    let (mut add_date, mut add_content_type) = (true, true);
    for (name, value) in head.fields() {
        match name {
            name if is_hop_field(name) => continue,
            // Written below by the gateway, whose values win.
            "x-call-id" | "x-start-time" | "x-served-by" | "x-duration-seconds"
            | "content-length" => continue,
            name if is_platform_field(name) => continue,
            "alt-svc" if client.alt_svc.is_some() => continue,
            "date" => add_date = false,
            "content-type" => add_content_type = false,
            _ => {}
        }
        // A line break in a value would split the response.
        if is_valid_field(name, value) {
            write_field(&mut out, name, value);
        }
    }
    if add_content_type {
        write_field(&mut out, "content-type", missing_content_type(plain));
    }
    write_own_fields(&mut out, client, call);
    write_field(
        &mut out,
        "x-duration-seconds",
        seconds_value(call.elapsed()).as_bytes(),
    );
    if plain.wants_path() {
        let path = call.record.path_choice().to_string();
        write_field(&mut out, "x-nearpath-path", path.as_bytes());
    }
    if !matches!(
        head.status,
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    ) {
        write_field(&mut out, "content-length", length.to_string().as_bytes());
    }
    response::end_head(&mut out, add_date.then(|| client.worker.http_date()), close);
    out
}
