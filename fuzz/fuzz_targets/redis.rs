//! Bytes that claim to be RESP. Splitting changes nothing, and a client whose backend moves on has
//! every command answered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_dbproxy::redis::frame::RespFramer;
use nearpath_dbproxy::redis::session::{CommandAction, RedisSession};
use nearpath_dbproxy::redis::session_effect::CommandWords;

/// Ends of the values, up to the first byte that is no RESP.
fn ends(bytes: &[u8], size: usize) -> (Vec<usize>, bool) {
    let (mut frames, mut found, mut at) = (RespFramer::default(), Vec::new(), 0);
    for piece in bytes.chunks(size) {
        let mut used = 0;
        while used < piece.len() {
            let Ok((taken, value)) = frames.step(&piece[used..]) else {
                return (found, false);
            };
            used += taken;
            found.extend(value.map(|_| at + used));
        }
        at += piece.len();
    }
    (found, true)
}

/// A client that says the lines of `asked` to a server that says the values of `said`.
fn converse(asked: &[u8], said: &[u8]) {
    let (mut session, mut frames, mut said) =
        (RedisSession::default(), RespFramer::default(), said);
    let mut outstanding = 0_usize;
    for line in asked.split(|byte| *byte == b'\n') {
        let Some(words) = CommandWords::parse(line).filter(|words| !words.all().is_empty()) else {
            continue;
        };
        match session.handle_command(&words) {
            CommandAction::Forward => session.record_command(&words),
            CommandAction::Change(change) => session.record_change(change),
            _ => continue,
        }
        outstanding += 1;
        loop {
            let Ok((used, value)) = frames.step(said) else {
                return;
            };
            said = &said[used..];
            let Some(value) = value else { break };
            outstanding -= usize::from(!value.is_push() && outstanding > 0);
            if session.handle_reply(&value).is_none() {
                return;
            }
        }
        assert!(
            !session.is_free() || outstanding == 0,
            "given on with {outstanding} replies to come"
        );
    }
}

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (size, asked, said) = input;
    assert_eq!(
        ends(said, usize::from(size) + 1),
        ends(said, said.len().max(1))
    );
    converse(asked, said);
});
