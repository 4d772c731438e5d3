//! Heads of responses of functions' own servers and of other nodes, for their callers.

use std::time::Duration;

use http::StatusCode;
use nearpath_types::platform_field::is_platform_field;
use nearpath_wire::hop::headers::is_hop_field;
use nearpath_wire::not_run_header::NOT_RUN;

use super::fast_response::{is_valid_field, write_own_fields};
use super::response::{self, HEAD_RESERVE_BYTES, write_field, write_status_line};
use crate::deliver::path_report;
use crate::fast_path::{PlainCall, PlainRequest, missing_content_type};
use crate::listen::client_connection::ClientConnection;
use crate::request::DigitBuffer;
use crate::transport::ResponseHead;

/// Writes the response head as watchdog and pipeline do together.
pub(super) fn write_head(
    client: &ClientConnection,
    plain: &PlainRequest,
    call: &PlainCall,
    head: &ResponseHead,
    length: usize,
    took: Duration,
    close: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_RESERVE_BYTES);
    write_status_line(&mut out, head.status);
    let is_remote = call.is_remote();
    let (mut add_date, mut add_content_type, mut add_duration) = (true, true, true);
    let mut inner_path = None;
    for (name, value) in head.fields() {
        match name {
            name if is_hop_field(name) => continue,
            // Written below by the gateway, whose values win.
            "x-call-id" | "x-start-time" | "x-served-by" | "content-length" => continue,
            "x-duration-seconds" if !is_remote => continue,
            "x-nearpath-path" if is_remote => {
                inner_path = Some(value);
                continue;
            }
            // The platform's own response may come from another node.
            name if is_platform_field(name) && !(is_remote && name != NOT_RUN.as_str()) => continue,
            "x-duration-seconds" => add_duration = false,
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
    if add_duration {
        let took = DigitBuffer::from_seconds(took);
        write_field(&mut out, "x-duration-seconds", took.as_bytes());
    }
    if plain.wants_path() {
        let (choice, node) = (call.record.path_choice(), call.record.node());
        let path = path_report(choice, node, inner_path);
        write_field(&mut out, "x-nearpath-path", path.as_bytes());
    }
    if !matches!(
        head.status,
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    ) {
        let length = DigitBuffer::from_number(length as u64);
        write_field(&mut out, "content-length", length.as_bytes());
    }
    response::end_head(&mut out, add_date.then(|| client.worker.http_date()), close);
    out
}
