//! The caller's address changes while a request is under way.

use std::rc::Rc;
use std::time::Duration;

use nearpath_testkit::need_root;
use nearpath_wire::quic::config;

use crate::faults::caller::{bind_socket, check_echo};
use crate::faults::handler::HELD_PATH;
use crate::faults::nat::TestNat;
use crate::faults::two_machines::{TwoMachines, calm_link, run_on_one_thread};

const MEGABYTE: usize = 1 << 20;

/// A call that waits at the worker while `change` happens, and one of a megabyte while it happens
/// again, each way.
async fn change_during_calls(place: &Rc<TwoMachines>, change: impl Fn()) {
    let line = place.caller.dial().await;
    let (held, request) = place.caller.post(HELD_PATH, 1000);
    let calling = line.clone();
    let call = tokio::task::spawn_local(async move { check_echo(&calling, held, request).await });
    place.handler.wait_held().await;
    change();
    place.handler.release_one();
    call.await.unwrap().unwrap();

    let (large, request) = place.caller.post("/", 4 * MEGABYTE);
    let calling = line.clone();
    let sent = line.connection().stats().udp_tx.bytes;
    let call = tokio::task::spawn_local(async move { check_echo(&calling, large, request).await });
    while line.connection().stats().udp_tx.bytes < sent + MEGABYTE as u64 {
        tokio::task::yield_now().await;
    }
    change();
    call.await.unwrap().unwrap();
    assert_eq!(
        (
            place.handler.run_count(held),
            place.handler.run_count(large)
        ),
        (1, 1)
    );
    assert!(!line.is_closed(), "it is the same connection");
}

#[test]
fn the_caller_moves_to_another_socket() {
    need_root!();
    run_on_one_thread(async {
        let place = Rc::new(TwoMachines::new(&calm_link(), 0).await);
        let ports =
            std::cell::RefCell::new(vec![place.caller.endpoint.local_addr().unwrap().port()]);
        let change = || {
            let socket = bind_socket(&place.caller_node);
            ports.borrow_mut().push(socket.local_addr().unwrap().port());
            place.caller.endpoint.rebind(socket).unwrap();
        };
        change_during_calls(&place, change).await;
        ports.borrow_mut().dedup();
        assert_eq!(
            ports.borrow().len(),
            3,
            "it had three ports, one after the other"
        );
    });
}

#[test]
fn a_nat_between_forgets_the_port() {
    need_root!();
    run_on_one_thread(async {
        let mut place = TwoMachines::new(&calm_link(), 0).await;
        // A caller that waits in silence is found again by its next sign of life: here after a
        // second.
        place
            .caller
            .config
            .transport_config(config::caller_transport(Duration::from_secs(3)));
        let nat = TestNat::new(&place.caller_node, place.caller.worker);
        place.caller.worker = nat.addr();
        let first = nat.port();
        change_during_calls(&Rc::new(place), || nat.change_port()).await;
        assert_ne!(nat.port(), first);
    });
}
