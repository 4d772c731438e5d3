//! What a watchdog is provisioned with: it comes from the node, and must not end the watchdog, whatever it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_wire::early::Provision;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(provision) = Provision::read(bytes) {
        assert_eq!(Provision::read(&provision.write()[4..]).expect("what was written is read"), provision);
    }
});
