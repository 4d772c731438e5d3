//! What MQTT and CoAP clients send: the adapters' own cutting, reading and deciding around the codecs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_gateway::fuzz::{coap, mqtt};

fuzz_target!(|data: &[u8]| {
    let [kind, rest @ ..] = data else { return };
    match kind % 4 {
        0 => coap(rest),
        1 => drop(mqtt(rest, Some(4))),
        2 => drop(mqtt(rest, Some(5))),
        _ => drop(mqtt(rest, None)),
    }
});
