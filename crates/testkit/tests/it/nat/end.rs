//! Isolation of labs, and their end.

use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nearpath_testkit::lab::NetworkLab;
use nearpath_testkit::lab::nat::{IpFamily, NatKind};
use nearpath_testkit::need_nat;

use crate::nat::fixture::NatFixture;
use crate::nat::sockets::{receive, send, udp};

#[test]
fn labs_with_the_same_addresses_do_not_meet() {
    need_nat!();
    let fixtures = [1, 2].map(|octet| (octet, NatFixture::new(NatKind::Symmetric, IpFamily::V4)));
    let places = fixtures.each_ref().map(|(_, fixture)| {
        udp(
            fixture.rendezvous(),
            fixture.observer_addresses()[0].ip(),
            4001,
        )
    });
    for (octet, fixture) in fixtures.iter().rev() {
        send(
            &udp(fixture.machine_node(), fixture.inside(), 4001),
            *octet,
            fixture.observer_addresses()[0],
        );
    }
    assert_eq!(places.each_ref().map(|place| receive(place).0), [1, 2]);
}

#[test]
fn a_panic_ends_programs_and_namespaces() {
    need_nat!();
    // In a process of its own: namespace numbers are reused, and other tests create some all the
    // time.
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let out = alone
        .args(["--exact", "nat::end::helper_that_panics", "--ignored"])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
#[ignore = "a helper: run by a_panic_ends_programs_and_namespaces"]
fn helper_that_panics() {
    let (before, mut program) = (namespaces(), None);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let pair = NetworkLab::nat_pair(NatKind::Double, NatKind::None).unwrap();
        let mut sleep = Command::new("sleep");
        program = Some(
            pair.first
                .first_machine()
                .node
                .spawn(sleep.arg("1000").stdin(Stdio::null()))
                .unwrap(),
        );
        assert_eq!(
            namespaces().len(),
            before.len() + 7,
            "two machines, three routers, internet and rendezvous"
        );
        panic!("as a failing test would");
    }));
    let said = panicked.unwrap_err();
    assert_eq!(said.downcast_ref(), Some(&"as a failing test would"));
    assert!(
        !program.unwrap().wait().unwrap().success(),
        "killed, not ended"
    );
    assert_eq!(namespaces(), before);
}

/// Network namespaces that this process holds, by file or by thread.
fn namespaces() -> HashSet<PathBuf> {
    let entries = |folder: &str| {
        fs::read_dir(folder)
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
    };
    let threads = entries("/proc/self/task").map(|thread| thread.join("ns/net"));
    let links = entries("/proc/self/fd")
        .chain(threads)
        .filter_map(|path| fs::read_link(path).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("net:"))
        .collect()
}
