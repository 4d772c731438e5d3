//! A deployment as JSON, all the small texts inside it (names, durations, quantities, edges), and
//! those around it: a secret's name, credentials, `EgressHost`, the file that ids are reserved in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_controller::api;
use nearpath_controller::model::{SecretId, SecretName};
use nearpath_node::allocators;
use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionSpec, duration, quantity, status::rfc3339,
};

/// A secret's name is the name of a file in one folder, and nothing else.
fn names_a_file(name: &SecretName) {
    let mut parts = std::path::Path::new(name.as_str()).components();
    assert!(
        matches!(
            (parts.next(), parts.next()),
            (Some(std::path::Component::Normal(_)), None)
        ),
        "{name}"
    );
}

/// Only these names lead a browser to this machine.
fn names_this_machine(host: &str) {
    let host = host.to_ascii_lowercase();
    assert!(
        ["localhost", "127.", "[:", "[0"]
            .iter()
            .any(|own| host.starts_with(own))
            && !host.contains('@'),
        "{host}"
    );
}

fuzz_target!(|data: &[u8]| {
    if let Ok(spec) = serde_json::from_slice::<FunctionSpec>(data) {
        let _ = FunctionPolicy::from_spec(&spec);
        let again = serde_json::to_vec(&spec).expect("a spec that was read can be written");
        assert_eq!(
            serde_json::from_slice::<FunctionSpec>(&again).expect("and read again"),
            spec
        );
    }
    let _ = api::decode_basic(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(id) = text.parse::<FunctionId>() {
        assert_eq!(
            id.to_string()
                .parse::<FunctionId>()
                .expect("an id survives a round trip"),
            id
        );
    }
    if let Ok(length) = duration::parse_duration(text) {
        assert_eq!(
            duration::parse_duration(&duration::format_duration(length))
                .expect("a duration survives a round trip"),
            length
        );
    }
    if let Ok(name) = text.parse::<SecretName>() {
        names_a_file(&name);
    }
    if let Ok(id) = text.parse::<SecretId>() {
        assert_eq!(
            id.to_string()
                .parse::<SecretId>()
                .expect("an id survives a round trip"),
            id
        );
    }
    if api::is_loopback(data) {
        names_this_machine(text);
    }
    if let Some(next) = allocators::parse_reserved(text) {
        assert!(next > 0 && next < u64::MAX / 2 + 1, "{next}");
    }
    let _ = (
        quantity::parse_memory(text),
        quantity::parse_cpu(text),
        rfc3339::parse_time(text),
    );
});
