//! A client and a server of PostgreSQL that say anything. What the server hears is whole messages as far as the client's were, and a text that
//! listens is seen whatever stands before it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_dbproxy::postgres::fuzz::{converse, first_packet, pin};
use nearpath_types::egress::Mode;

fuzz_target!(|input: (bool, u8, &[u8], &[u8])| {
    let (whole, part, client, server) = input;
    let mode = if whole { Mode::Session } else { Mode::Transaction };
    let (to_backend, _) = converse(mode, client, server, usize::from(part));
    if whole {
        assert!(client.starts_with(&to_backend), "in session mode the client's words are the server's");
    }
    first_packet(client);
    if pin(client).is_none() {
        let more = [client, b"\n;LISTEN x"].concat();
        assert!(pin(&more).is_some(), "a statement was hidden");
    }
});
