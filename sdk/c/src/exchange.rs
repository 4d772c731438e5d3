//! `np_exchange`: a streaming call.

use std::ffi::{c_char, c_int, c_void};

use bytes::Bytes;
use nearpath::blocking::{StreamEvent, StreamingCall};

use crate::call::{call_arguments, write_result};
use crate::code::{CCode, MISUSE, OK, UNWANTED};
use crate::conversion;
use crate::endpoint::CEndpoint;
use crate::options::CCallOptions;
use crate::reply::CReply;

/// `np_exchange`.
#[derive(Debug)]
pub struct CExchange {
    exchange: StreamingCall,
    reply: Option<CReply>,
    part: Bytes,
}

/// `np_step`.
pub type CStep = c_int;

const WRITABLE: CStep = 0;
const BEGUN: CStep = 1;
const PART: CStep = 2;
const END: CStep = 3;

impl CExchange {
    fn record_event(&mut self, step: StreamEvent) -> CStep {
        self.part = Bytes::new();
        match step {
            StreamEvent::Writable => WRITABLE,
            StreamEvent::End => END,
            StreamEvent::Begun(response) => {
                self.reply = Some(CReply(response));
                BEGUN
            }
            StreamEvent::Part(part) => {
                self.part = part;
                PART
            }
        }
    }
}

/// # Safety
/// Both are NULL, or from this library and not yet passed back.
unsafe fn endpoint_and_exchange<'a>(
    endpoint: *mut CEndpoint,
    exchange: *mut CExchange,
) -> Option<(&'a CEndpoint, &'a mut CExchange)> {
    // SAFETY: as the caller says; an exchange stays on its endpoint's thread, so nothing else uses it meanwhile.
    unsafe { endpoint.as_ref().zip(exchange.as_mut()) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_open(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    options: *const CCallOptions,
    exchange: *mut *mut CExchange,
) -> CCode {
    // SAFETY: as the header says.
    let opened = unsafe { call_arguments(endpoint, name, options) };
    let opened = opened.and_then(|arguments| {
        arguments
            .endpoint
            .with_current(|endpoint| endpoint.open_call(arguments.name, &arguments.options))
    });
    let made = opened.map(|exchange| CExchange {
        exchange,
        reply: None,
        part: Bytes::new(),
    });
    // SAFETY: as the header says.
    unsafe { write_result(made, exchange) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_write(
    endpoint: *mut CEndpoint,
    exchange: *mut CExchange,
    piece: *const c_void,
    bytes: usize,
) -> CCode {
    // SAFETY: as the header says.
    let (both, piece) = unsafe {
        (
            endpoint_and_exchange(endpoint, exchange),
            conversion::bytes_from_c(piece, bytes),
        )
    };
    let (Some((endpoint, of_c)), Some(piece)) = (both, piece) else {
        return MISUSE;
    };
    let piece = Bytes::copy_from_slice(piece);
    let written =
        endpoint.with_current(|endpoint| Ok(endpoint.write_chunk(&mut of_c.exchange, piece)));
    if matches!(written, Ok(Ok(()))) {
        OK
    } else {
        UNWANTED
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_finish(endpoint: *mut CEndpoint, exchange: *mut CExchange) -> CCode {
    // SAFETY: as the header says.
    let Some((endpoint, of_c)) = (unsafe { endpoint_and_exchange(endpoint, exchange) }) else {
        return MISUSE;
    };
    let finished = endpoint.with_current(|endpoint| {
        endpoint.finish_body(&mut of_c.exchange);
        Ok(())
    });
    finished.map_or_else(|code| code, |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_next(
    endpoint: *mut CEndpoint,
    exchange: *mut CExchange,
    writes: bool,
    step: *mut CStep,
) -> CCode {
    // SAFETY: as the header says.
    let Some((endpoint, of_c)) = (unsafe { endpoint_and_exchange(endpoint, exchange) }) else {
        return MISUSE;
    };
    if step.is_null() {
        return endpoint.record_misuse("the step is NULL");
    }
    match endpoint.with_current(|endpoint| endpoint.next_event(&mut of_c.exchange, writes)) {
        Ok(came) => {
            // SAFETY: not NULL, and the header says that it can be written.
            unsafe { step.write(of_c.record_event(came)) };
            OK
        }
        Err(code) => code,
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_exchange_reply(exchange: *const CExchange) -> *const CReply {
    // SAFETY: NULL, or from `np_open` and not closed.
    let reply = unsafe { exchange.as_ref() }.and_then(|of_c| of_c.reply.as_ref());
    reply.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_exchange_part(
    exchange: *const CExchange,
    bytes: *mut usize,
) -> *const c_void {
    // SAFETY: NULL, or from `np_open` and not closed; `bytes` can be written.
    unsafe { conversion::write_length(exchange.as_ref().map(|of_c| of_c.part.as_ref()), bytes) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_part(
    endpoint: *mut CEndpoint,
    exchange: *mut CExchange,
    part: *mut *const c_void,
    bytes: *mut usize,
) -> CCode {
    if part.is_null() {
        return MISUSE;
    }
    let mut step = BEGUN;
    while step == BEGUN {
        // SAFETY: as the header says.
        let code = unsafe { np_next(endpoint, exchange, false, &mut step) };
        if code != OK {
            // SAFETY: not NULL, and the header says that both can be written.
            unsafe { part.write(conversion::write_length(None, bytes)) };
            return code;
        }
    }
    // SAFETY: not NULL, and the header says that both can be written; the exchange is there, `np_next` has used it.
    unsafe {
        part.write(conversion::write_length(
            (step == PART).then(|| (*exchange).part.as_ref()),
            bytes,
        ))
    };
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_close(endpoint: *mut CEndpoint, exchange: *mut CExchange) {
    if exchange.is_null() {
        return;
    }
    // SAFETY: from `np_open`, and not closed before.
    let of_c = unsafe { Box::from_raw(exchange) };
    // SAFETY: NULL or from `np_join`.
    if let Some(endpoint) = unsafe { endpoint.as_ref() } {
        let _ = endpoint.with_current(|endpoint| {
            endpoint.close_call(of_c.exchange);
            Ok(())
        });
    }
}
