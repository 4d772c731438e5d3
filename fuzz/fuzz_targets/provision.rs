//! What a node tells a watchdog, and what a watchdog tells its node: it must not end who reads it, whatever it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_types::frames::{self, FromNode, FromWatchdog};
use nearpath_wire::early::Provision;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(provision) = Provision::read(bytes) {
        assert_eq!(Provision::read(&provision.write()[4..]).expect("what was written is read"), provision);
    }
    match FromNode::read(bytes) {
        Ok(FromNode::Callees(all)) => {
            let again = frames::callees(&all);
            assert_eq!(FromNode::read(&again[4..]), Ok(FromNode::Callees(all)));
        }
        Ok(FromNode::Handshake(half)) => assert_eq!(frames::handshake(&half)[4..], *bytes),
        Ok(FromNode::Provision(_)) | Err(_) => {}
    }
    match FromWatchdog::read(bytes) {
        Ok(FromWatchdog::Handshake(half)) => assert_eq!(frames::handshake(&half)[4..], *bytes),
        Ok(FromWatchdog::Tallies(all)) => {
            let again = frames::tallies(&all);
            assert_eq!(FromWatchdog::read(&again[4..]), Ok(FromWatchdog::Tallies(all)));
        }
        Err(_) => {}
    }
});
