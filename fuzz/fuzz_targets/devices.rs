//! Bytes from MQTT and CoAP clients: framing, parsing and decisions around the codecs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_devices::fuzz::{coap, mqtt};

fuzz_target!(|data: &[u8]| {
    let [kind, rest @ ..] = data else { return };
    match kind % 4 {
        0 => coap(rest),
        1 => drop(mqtt(rest, Some(4))),
        2 => drop(mqtt(rest, Some(5))),
        _ => drop(mqtt(rest, None)),
    }
});
