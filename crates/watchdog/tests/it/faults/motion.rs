//! The caller's address changes while a request is under way.

use std::rc::Rc;
use std::time::Duration;

use nearpath_testkit::need_root;
use nearpath_wire::quic::config;

use crate::faults::caller::{check, socket};
use crate::faults::handler::HELD;
use crate::faults::nat::Nat;
use crate::faults::place::{Place, calm, run};

const MEGABYTE: usize = 1 << 20;

/// A call that waits at the worker while `change` happens, and one of a megabyte while it happens again, each way.
async fn in_the_middle(place: &Rc<Place>, change: impl Fn()) {
    let line = place.caller.dial().await;
    let (held, request) = place.caller.post(HELD, 1000);
    let calling = line.clone();
    let call = tokio::task::spawn_local(async move { check(&calling, held, request).await });
    place.handler.began().await;
    change();
    place.handler.go();
    call.await.unwrap().unwrap();

    let (large, request) = place.caller.post("/", 4 * MEGABYTE);
    let calling = line.clone();
    let sent = line.connection().stats().udp_tx.bytes;
    let call = tokio::task::spawn_local(async move { check(&calling, large, request).await });
    while line.connection().stats().udp_tx.bytes < sent + MEGABYTE as u64 {
        tokio::task::yield_now().await;
    }
    change();
    call.await.unwrap().unwrap();
    assert_eq!((place.handler.runs(held), place.handler.runs(large)), (1, 1));
    assert!(!line.is_closed(), "it is the same connection");
}

#[test]
fn the_caller_moves_to_another_socket() {
    need_root!();
    run(async {
        let place = Rc::new(Place::new(&calm(), 0).await);
        let ports = std::cell::RefCell::new(vec![place.caller.endpoint.local_addr().unwrap().port()]);
        let change = || {
            let socket = socket(&place.near);
            ports.borrow_mut().push(socket.local_addr().unwrap().port());
            place.caller.endpoint.rebind(socket).unwrap();
        };
        in_the_middle(&place, change).await;
        ports.borrow_mut().dedup();
        assert_eq!(ports.borrow().len(), 3, "it had three ports, one after the other");
    });
}

#[test]
fn a_nat_between_forgets_the_port() {
    need_root!();
    run(async {
        let mut place = Place::new(&calm(), 0).await;
        // A caller that waits in silence is found again by its next sign of life: here after a second.
        place.caller.config.transport_config(config::calling(Duration::from_secs(3)));
        let nat = Nat::new(&place.near, place.caller.worker);
        place.caller.worker = nat.addr();
        let first = nat.port();
        in_the_middle(&Rc::new(place), || nat.forget()).await;
        assert_ne!(nat.port(), first);
    });
}
