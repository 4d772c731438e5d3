//! A deployment as JSON, and all the small texts inside it: names, durations, quantities, edges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_types::{FunctionId, FunctionSpec, Policy, duration, quantity, status::rfc3339};

fuzz_target!(|data: &[u8]| {
    if let Ok(spec) = serde_json::from_slice::<FunctionSpec>(data) {
        let _ = Policy::of(&spec);
        let again = serde_json::to_vec(&spec).expect("a spec that was read can be written");
        assert_eq!(serde_json::from_slice::<FunctionSpec>(&again).expect("and read again"), spec);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<FunctionId>() {
        assert_eq!(id.to_string().parse::<FunctionId>().expect("an id survives a round trip"), id);
    }
    if let Ok(length) = duration::parse(text) {
        assert_eq!(duration::parse(&duration::format(length)).expect("a duration survives a round trip"), length);
    }
    let _ = (quantity::memory(text), quantity::cpu(text), rfc3339::parse(text));
});
