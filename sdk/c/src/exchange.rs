//! `np_exchange`: a call whose body goes, and whose answer comes, piece by piece.

use std::ffi::{c_char, c_int, c_void};

use bytes::Bytes;
use nearpath::blocking::{Exchange, Step};

use crate::ask::AskOfC;
use crate::border;
use crate::call::{tell, wish};
use crate::code::{Code, MISUSE, OK, UNWANTED};
use crate::party::PartyOfC;
use crate::reply::ReplyOfC;

/// `np_exchange`.
#[derive(Debug)]
pub struct ExchangeOfC {
    exchange: Exchange,
    reply: Option<ReplyOfC>,
    part: Bytes,
}

/// `np_step`.
pub type StepOfC = c_int;

const ROOM: StepOfC = 0;
const BEGUN: StepOfC = 1;
const PART: StepOfC = 2;
const END: StepOfC = 3;

impl ExchangeOfC {
    fn keep(&mut self, step: Step) -> StepOfC {
        self.part = Bytes::new();
        match step {
            Step::Room => ROOM,
            Step::End => END,
            Step::Begun(response) => {
                self.reply = Some(ReplyOfC(response));
                BEGUN
            }
            Step::Part(part) => {
                self.part = part;
                PART
            }
        }
    }
}

/// # Safety
/// Both are NULL or from this library and not given back.
unsafe fn both<'a>(party: *mut PartyOfC, exchange: *mut ExchangeOfC) -> Option<(&'a PartyOfC, &'a mut ExchangeOfC)> {
    // SAFETY: as the caller says; an exchange stays on its party's thread, so nothing else uses it meanwhile.
    unsafe { party.as_ref().zip(exchange.as_mut()) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_open(
    party: *mut PartyOfC,
    name: *const c_char,
    ask: *const AskOfC,
    exchange: *mut *mut ExchangeOfC,
) -> Code {
    // SAFETY: as the header says.
    let opened = unsafe { wish(party, name, ask) };
    let opened = opened.and_then(|wish| wish.party.with(|party| party.open(wish.name, &wish.ask)));
    let made = opened.map(|exchange| ExchangeOfC { exchange, reply: None, part: Bytes::new() });
    // SAFETY: as the header says.
    unsafe { tell(made, exchange) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_write(
    party: *mut PartyOfC,
    exchange: *mut ExchangeOfC,
    piece: *const c_void,
    bytes: usize,
) -> Code {
    // SAFETY: as the header says.
    let (both, piece) = unsafe { (both(party, exchange), border::bytes(piece, bytes)) };
    let (Some((party, of_c)), Some(piece)) = (both, piece) else { return MISUSE };
    let piece = Bytes::copy_from_slice(piece);
    let written = party.with(|party| Ok(party.write(&mut of_c.exchange, piece)));
    if matches!(written, Ok(Ok(()))) { OK } else { UNWANTED }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_finish(party: *mut PartyOfC, exchange: *mut ExchangeOfC) -> Code {
    // SAFETY: as the header says.
    let Some((party, of_c)) = (unsafe { both(party, exchange) }) else { return MISUSE };
    let finished = party.with(|party| {
        party.finish(&mut of_c.exchange);
        Ok(())
    });
    finished.map_or_else(|code| code, |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_next(
    party: *mut PartyOfC,
    exchange: *mut ExchangeOfC,
    writes: bool,
    step: *mut StepOfC,
) -> Code {
    // SAFETY: as the header says.
    let Some((party, of_c)) = (unsafe { both(party, exchange) }) else { return MISUSE };
    if step.is_null() {
        return party.misused("the step is NULL");
    }
    match party.with(|party| party.step(&mut of_c.exchange, writes)) {
        Ok(came) => {
            // SAFETY: not NULL, and the header says that it can be written.
            unsafe { step.write(of_c.keep(came)) };
            OK
        }
        Err(code) => code,
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_exchange_reply(exchange: *const ExchangeOfC) -> *const ReplyOfC {
    // SAFETY: NULL, or from `np_open` and not closed.
    let reply = unsafe { exchange.as_ref() }.and_then(|of_c| of_c.reply.as_ref());
    reply.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_exchange_part(exchange: *const ExchangeOfC, bytes: *mut usize) -> *const c_void {
    // SAFETY: NULL, or from `np_open` and not closed; `bytes` can be written.
    unsafe { border::tell(exchange.as_ref().map(|of_c| of_c.part.as_ref()), bytes) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_part(
    party: *mut PartyOfC,
    exchange: *mut ExchangeOfC,
    part: *mut *const c_void,
    bytes: *mut usize,
) -> Code {
    if part.is_null() {
        return MISUSE;
    }
    let mut step = BEGUN;
    while step == BEGUN {
        // SAFETY: as the header says.
        let code = unsafe { np_next(party, exchange, false, &mut step) };
        if code != OK {
            // SAFETY: not NULL, and the header says that both can be written.
            unsafe { part.write(border::tell(None, bytes)) };
            return code;
        }
    }
    // SAFETY: not NULL, and the header says that both can be written; the exchange is there, `np_next` has used it.
    unsafe { part.write(border::tell((step == PART).then(|| (*exchange).part.as_ref()), bytes)) };
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_close(party: *mut PartyOfC, exchange: *mut ExchangeOfC) {
    if exchange.is_null() {
        return;
    }
    // SAFETY: from `np_open`, and not closed before.
    let of_c = unsafe { Box::from_raw(exchange) };
    // SAFETY: NULL or from `np_join`.
    if let Some(party) = unsafe { party.as_ref() } {
        let _ = party.with(|party| {
            party.close(of_c.exchange);
            Ok(())
        });
    }
}
