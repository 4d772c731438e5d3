//! Messages between endpoints and the node on the dispatch socket, and MQTT topics and filters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_domain::protocol::{EndpointMessage, NodeMessage};
use nearpath_types::topic;

fuzz_target!(|data: &[u8]| {
    let _ = NodeMessage::parse_packet(data);
    let _ = EndpointMessage::parse_packet(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (filter, name) = text.split_once('\n').unwrap_or((text, text));
    let matched = topic::filter_matches(filter, name);
    if topic::check_filter(filter).is_ok() && topic::is_topic(filter) && filter == name {
        assert!(matched, "a filter without wildcards matches itself");
    }
});
