//! A client and a server of PostgreSQL that say anything. What the server hears is whole messages
//! as far as the client's were, and a text that listens is seen whatever stands before it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_dbproxy::postgres::fuzz::{is_first_packet, pin_reason, run_conversation};
use nearpath_types::egress::PoolingMode;

fuzz_target!(|input: (bool, u8, &[u8], &[u8])| {
    let (whole, part, client, server) = input;
    let mode = if whole {
        PoolingMode::Session
    } else {
        PoolingMode::Transaction
    };
    let (to_backend, _) = run_conversation(mode, client, server, usize::from(part));
    if whole {
        assert!(
            client.starts_with(&to_backend),
            "in session mode the client's words are the server's"
        );
    }
    is_first_packet(client);
    if pin_reason(client).is_none() {
        let more = [client, b"\n;LISTEN x"].concat();
        assert!(pin_reason(&more).is_some(), "a statement was hidden");
    }
});
