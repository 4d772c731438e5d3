//! Destinations as an annotation lists them: what is understood is written so that it is read back,
//! and keeps the promises on which the pool builds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_types::egress::{EgressHost, EgressSpec, MAX_DESTINATIONS, parse_list};

/// Checks the invariants that the pool relies on.
fn sound(egress: &EgressSpec) {
    assert!(
        egress.port != 0 && egress.max > 0 && egress.warm <= egress.max,
        "{egress:?}"
    );
    assert!(
        !egress.idle.is_zero() && !egress.age.is_zero(),
        "{egress:?}"
    );
    if let EgressHost::Name(name) | EgressHost::Below(name) = &egress.host {
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()),
            "a line of /etc/hosts: {name}"
        );
    }
    assert!(
        egress
            .secret_names()
            .all(|name| !name.is_empty() && !name.contains('/')),
        "{egress:?}"
    );
}

fuzz_target!(|text: &str| {
    let Ok(read) = parse_list(text) else { return };
    assert!(read.len() <= MAX_DESTINATIONS);
    read.iter().for_each(sound);
    let again: Vec<_> = read.iter().map(EgressSpec::to_string).collect();
    assert_eq!(
        parse_list(&again.join(",")).expect("what is written can be read"),
        read
    );
});
