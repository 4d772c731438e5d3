//! Bytes from MQTT and CoAP clients: framing, parsing and decisions around the codecs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_devices::fuzz::{decode_mqtt_packets, run_coap_endpoint};

fuzz_target!(|data: &[u8]| {
    let [kind, rest @ ..] = data else { return };
    match kind % 4 {
        0 => run_coap_endpoint(rest),
        1 => drop(decode_mqtt_packets(rest, Some(4))),
        2 => drop(decode_mqtt_packets(rest, Some(5))),
        _ => drop(decode_mqtt_packets(rest, None)),
    }
});
