//! Permission of flows, to begin and to go on. Pure.

use std::net::Ipv4Addr;

use nearpath_types::FunctionId;

use super::drop_reason::DropReason;
use super::flow_table::{FlowKey, FlowParties};
use crate::virtual_switch::address_index::{AddressIndex, AddressRefusal};

/// Returns the functions of a new flow, which must be declared, to one that runs here.
///
/// # Errors
/// Returns the reason when its datagrams are dropped, and what is known of its functions.
pub(super) fn admit(
    index: &AddressIndex,
    key: &FlowKey,
) -> Result<FlowParties, (DropReason, Option<FunctionId>)> {
    let caller = index.function_of_instance(*key.source.ip());
    let caller = caller.ok_or((DropReason::UnknownCaller, None))?;
    let callee = index
        .admit_caller(caller, key.destination)
        .map_err(|refusal| match refusal {
            AddressRefusal::NotDeployed(_) => (DropReason::NotDeployed, None),
            AddressRefusal::NotDeclared(callee) => (DropReason::NotDeclared, Some(callee)),
            AddressRefusal::PlatformPort(callee) => (DropReason::PlatformPort, Some(callee)),
        })?;
    if !callee.runs_here {
        return Err((DropReason::OtherNodes, Some(callee.id.clone())));
    }
    Ok(FlowParties {
        caller: caller.clone(),
        callee: callee.id.clone(),
    })
}

/// Returns whether a flow may go on: its caller's instance lives, its edge is declared, and the
/// instance that it is forwarded to answers.
pub(super) fn is_current(
    index: &AddressIndex,
    key: &FlowKey,
    parties: &FlowParties,
    instance: Option<Ipv4Addr>,
) -> bool {
    // The functions, too: an address may belong to another one by now.
    let callee = index.admit_caller(&parties.caller, key.destination);
    index.function_of_instance(*key.source.ip()) == Some(&parties.caller)
        && callee.is_ok_and(|callee| callee.id == parties.callee)
        && instance.is_none_or(|eip| index.answers(eip, &parties.callee))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_switch::address_index::sample::{FROZEN, snapshot};
    use std::net::SocketAddrV4;

    fn key(instance: u8, function: u8, port: u16) -> FlowKey {
        FlowKey {
            source: SocketAddrV4::new([10, 62, 0, instance].into(), 5000),
            destination: SocketAddrV4::new([10, 60, 0, function].into(), port),
        }
    }

    #[test]
    fn declared_callees_that_run_here_are_admitted() {
        let index = AddressIndex::new(snapshot(&[5, 6, 8], &["store", "away"]));
        for (key, expected) in [
            (key(2, 3, 7000), Ok("store")),
            // An instance that starts may call.
            (key(3, 3, 7000), Ok("store")),
            (key(9, 3, 7000), Err(DropReason::UnknownCaller)),
            (key(2, 9, 7000), Err(DropReason::NotDeployed)),
            (key(5, 2, 7000), Err(DropReason::NotDeclared)),
            (key(2, 3, 8080), Err(DropReason::PlatformPort)),
            (key(2, 4, 7000), Err(DropReason::OtherNodes)),
        ] {
            let admitted = admit(&index, &key);
            let admitted = admitted.map(|parties| parties.callee);
            let expected = expected.map(|name| name.parse().unwrap());
            assert_eq!(admitted.map_err(|(reason, _)| reason), expected, "{key:?}");
        }
        let ready = index.ready_instances(&"store".parse().unwrap());
        assert_eq!(ready, [[10, 62, 0, 6], [10, 62, 0, 8]].map(Ipv4Addr::from));
    }

    #[test]
    fn a_flow_ends_with_each_of_its_parts() {
        let calls = ["store"];
        let (flow, instance) = (key(2, 3, 7000), Some([10, 62, 0, 6].into()));
        let indexed = |store: &[u8], calls: &[&str]| AddressIndex::new(snapshot(store, calls));
        let before = indexed(&[6], &calls);
        let parties = admit(&before, &flow).unwrap();
        let is_current = |index: &AddressIndex, flow: &FlowKey, instance| {
            is_current(index, flow, &parties, instance)
        };
        assert!(is_current(&before, &flow, instance));
        let scaled = indexed(&[8], &calls);
        assert!(
            !is_current(&scaled, &flow, instance),
            "its instance has ended"
        );
        assert!(is_current(&scaled, &flow, None), "it waits");
        assert!(!is_current(&indexed(&[6], &[]), &flow, instance), "no edge");
        assert!(
            !is_current(&before, &key(9, 3, 7000), instance),
            "no caller"
        );
        assert!(
            !is_current(&before, &key(2, 9, 7000), instance),
            "no callee"
        );
        let frozen = indexed(&[FROZEN], &calls);
        let instance = Some([10, 62, 0, FROZEN].into());
        assert!(!is_current(&frozen, &flow, instance), "it is frozen");
        // Another function has the instance's address.
        assert!(!is_current(&before, &flow, Some([10, 62, 0, 2].into())));
    }
}
