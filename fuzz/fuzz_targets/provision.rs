//! Messages between a node and a watchdog: no content may end the reader.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_types::frames::{self, NodeFrame, WatchdogFrame};
use nearpath_wire::zero_rtt::Provision;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(provision) = Provision::decode(bytes) {
        assert_eq!(
            Provision::decode(&provision.encode()[4..]).expect("what was written is read"),
            provision
        );
    }
    match NodeFrame::read(bytes) {
        Ok(NodeFrame::Callees(all)) => {
            let again = frames::callees_frame(&all);
            assert_eq!(NodeFrame::read(&again[4..]), Ok(NodeFrame::Callees(all)));
        }
        Ok(NodeFrame::Handshake(half)) => assert_eq!(frames::handshake_frame(&half)[4..], *bytes),
        Ok(NodeFrame::Provision(_) | NodeFrame::Socket) | Err(_) => {}
    }
    match WatchdogFrame::read(bytes) {
        Ok(WatchdogFrame::Handshake(half)) => {
            assert_eq!(frames::handshake_frame(&half)[4..], *bytes)
        }
        Ok(WatchdogFrame::Tallies(all)) => {
            let again = frames::tallies_frame(&all);
            assert_eq!(
                WatchdogFrame::read(&again[4..]),
                Ok(WatchdogFrame::Tallies(all))
            );
        }
        Err(_) => {}
    }
});
