//! Labs that do not meet, and their end.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

use nearpath_testkit::lab::Lab;
use nearpath_testkit::lab::nat::{Family, Kind, Pair};
use nearpath_testkit::need_nat;

use crate::scene::Scene;
use crate::sockets::{receive, send, udp};

#[test]
fn labs_with_the_same_addresses_do_not_meet() {
    need_nat!();
    let scenes = [1, 2].map(|octet| (octet, Scene::new(Kind::Symmetric, Family::V4)));
    let places = scenes.each_ref().map(|(_, scene)| udp(scene.rendezvous(), scene.places()[0].ip(), 4001));
    for (octet, scene) in scenes.iter().rev() {
        send(&udp(scene.machine(), scene.inside(), 4001), *octet, scene.places()[0]);
    }
    assert_eq!(places.each_ref().map(|place| receive(place).0), [1, 2]);
}

#[test]
fn a_panic_ends_programs_and_namespaces() {
    need_nat!();
    let (mut namespaces, mut program) = (HashSet::new(), None);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let pair = Lab::pair(Kind::Double, Kind::None).unwrap();
        namespaces = namespaces_of(&pair);
        let mut sleep = Command::new("sleep");
        program = Some(pair.first.machine().node.spawn(sleep.arg("1000").stdin(Stdio::null())).unwrap());
        assert!(!held().is_disjoint(&namespaces), "the control: they are there");
        panic!("as a failing test would");
    }));
    assert!(panicked.is_err());
    assert!(!program.unwrap().wait().unwrap().success(), "killed, not ended");
    assert_eq!(held().intersection(&namespaces).count(), 0);
}

fn namespaces_of(pair: &Pair) -> HashSet<String> {
    let sites = [&pair.first, &pair.second];
    let nodes = sites.into_iter().flat_map(|site| site.routers.iter().chain(site.machines.iter().map(|m| &m.node)));
    let name = |inode| format!("net:[{inode}]");
    nodes.map(|node| name(rustix::fs::fstat(node.as_fd()).unwrap().st_ino)).collect()
}

/// The network namespaces that this process holds, by file or by thread.
fn held() -> HashSet<String> {
    let folder = |path: &str| fs::read_dir(path).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let threads = folder("/proc/self/task").into_iter().map(|thread| thread.join("ns/net"));
    let links = folder("/proc/self/fd").into_iter().chain(threads).filter_map(|path| fs::read_link(path).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}
