use std::collections::BTreeSet;

use nearpath_types::policy::Transport;

use super::*;

const NEAR: EdgeFacts = EdgeFacts::NEAREST;
const APART: EdgeFacts = EdgeFacts { callee_in_domain: false, ..NEAR };
const FAR: EdgeFacts = EdgeFacts { same_node: false, ..NEAR };
const PLAIN: CallNeeds = CallNeeds::PLAIN;
const UPGRADE: CallNeeds = CallNeeds { upgrade: true, ..PLAIN };
/// Every means there is.
const ABLE: TransportFacts = TransportFacts { wanted: Transport::Auto, tls: true, ..TransportFacts::INTRODUCED };

fn chosen(edge: EdgeFacts, transport: TransportFacts, needs: CallNeeds) -> PathChoice {
    select(&CallFacts { edge, transport, needs }).first()
}

fn choice(path: Path, obstacle: Obstacle) -> PathChoice {
    PathChoice { path, obstacle: Some(obstacle) }
}

fn every_plan() -> impl Iterator<Item = Plan> {
    let (links, connections) = (LinkFacts::every().map(|facts| select(&facts)), EgressFacts::every());
    CallFacts::every().map(|facts| select(&facts)).chain(links).chain(connections.map(|facts| select(&facts)))
}

#[test]
fn nothing_in_the_way_is_shared_memory() {
    for wanted in facts::TRANSPORTS {
        let choice = chosen(NEAR, TransportFacts { wanted, ..ABLE }, PLAIN);
        assert_eq!(choice, PathChoice { path: Path::Shm, obstacle: None });
    }
}

#[test]
fn what_stands_against_memory_leads_to_http_within_a_machine_and_is_told() {
    let table = [
        (EdgeFacts { callee_in_domain: false, ..NEAR }, PLAIN, Obstacle::NoDomain),
        (EdgeFacts { same_domain: false, ..NEAR }, PLAIN, Obstacle::OtherDomain),
        (EdgeFacts { caller_attached: false, ..NEAR }, PLAIN, Obstacle::CallerNoParty),
        (EdgeFacts { callee_attached: false, ..NEAR }, PLAIN, Obstacle::NoParty),
        (NEAR, UPGRADE, Obstacle::Upgrade),
        (NEAR, CallNeeds { grpc: true, ..PLAIN }, Obstacle::Grpc),
    ];
    for (edge, needs, obstacle) in table {
        assert_eq!(chosen(edge, ABLE, needs), choice(Path::Http, obstacle));
        assert_eq!(chosen(edge, TransportFacts::PLAIN, needs), choice(Path::Http, obstacle));
    }
}

#[test]
fn each_transport_has_its_stand_ins_and_what_they_stand_in_for_is_told() {
    let (quic, tls13, tls12, tcp) = (Transport::Quic, Transport::Tls13, Transport::Tls12, Transport::Tcp);
    let of = |wanted| TransportFacts { wanted, ..ABLE };
    let no_udp = |of: TransportFacts| TransportFacts { udp_blocked: true, ..of };
    let nameless = |of: TransportFacts| TransportFacts { callee_has_certificate: false, ..of };
    let no_tls = |of: TransportFacts| TransportFacts { tls: false, ..of };
    let mute = |of: TransportFacts| TransportFacts { caller_has_certificate: false, ..of };
    use Obstacle::{CallerNoIdentity, NoDomain, NoIdentity, OtherNode, UdpBlocked, Upgrade};
    let table = [
        (APART, of(quic), PLAIN, choice(Path::Quic, NoDomain)),
        (APART, of(quic), CallNeeds { grpc: true, ..PLAIN }, choice(Path::Quic, NoDomain)),
        (APART, of(quic), UPGRADE, choice(Path::Tls, Upgrade)),
        (APART, no_udp(of(quic)), PLAIN, choice(Path::Tls, UdpBlocked)),
        (APART, no_tls(no_udp(of(quic))), PLAIN, choice(Path::Tls, UdpBlocked)),
        (APART, nameless(of(quic)), PLAIN, choice(Path::Tls, NoIdentity)),
        (APART, mute(of(quic)), PLAIN, choice(Path::Http, CallerNoIdentity)),
        (APART, of(tls13), PLAIN, choice(Path::Tls, NoDomain)),
        (APART, of(tls12), UPGRADE, choice(Path::Tls, NoDomain)),
        (APART, mute(of(tls13)), PLAIN, choice(Path::Http, CallerNoIdentity)),
        (APART, nameless(of(tls13)), PLAIN, choice(Path::Tls, NoDomain)),
        (APART, of(tcp), PLAIN, choice(Path::Http, NoDomain)),
        (FAR, of(Transport::Auto), PLAIN, choice(Path::Quic, OtherNode)),
        (FAR, no_udp(of(Transport::Auto)), PLAIN, choice(Path::Tls, UdpBlocked)),
        (FAR, nameless(no_tls(of(quic))), PLAIN, choice(Path::Tls, NoIdentity)),
        (FAR, no_tls(of(tls13)), PLAIN, choice(Path::Tls, OtherNode)),
        (FAR, of(tcp), PLAIN, choice(Path::Http, OtherNode)),
    ];
    for (edge, transport, needs, wanted) in table {
        assert_eq!(chosen(edge, transport, needs), wanted, "{edge:?} {transport:?} {needs:?}");
    }
}

/// The two tests below rest on these marks of the contract.
#[test]
fn http_is_in_clear_and_its_stand_ins_are_not() {
    assert!(Path::Http.is_clear());
    assert!(![Path::Shm, Path::Quic, Path::Tls].into_iter().any(Path::is_clear));
}

/// Plain TCP leaves the machine only when the function asks for it.
#[test]
fn nothing_leaves_the_machine_unencrypted_by_itself() {
    for facts in CallFacts::every().filter(|facts| !facts.edge.same_node && facts.transport.wanted != Transport::Tcp) {
        let plan = select(&facts);
        assert!(!plan.first().path.is_clear() && !plan.paths().any(Path::is_clear), "{facts:?}");
    }
}

/// A caller with a certificate never speaks in clear to a function that asks for encryption: it waits for an instance without one.
#[test]
fn who_asks_for_encryption_gets_it_from_every_caller_that_can() {
    let asks = |wanted| matches!(wanted, Transport::Quic | Transport::Tls13 | Transport::Tls12);
    for facts in
        CallFacts::every().filter(|facts| facts.transport.caller_has_certificate && asks(facts.transport.wanted))
    {
        let plan = select(&facts);
        assert!(!plan.first().path.is_clear() && !plan.paths().any(Path::is_clear), "{facts:?}");
    }
}

#[test]
fn the_most_lasting_obstacle_is_told() {
    let edge = EdgeFacts { callee_in_domain: false, callee_attached: false, ..NEAR };
    assert_eq!(chosen(edge, ABLE, UPGRADE).obstacle, Some(Obstacle::NoDomain));
}

#[test]
fn a_failed_path_leaves_the_next_one_and_its_obstacle() {
    let transport = TransportFacts { wanted: Transport::Quic, ..ABLE };
    let plan = select(&CallFacts { edge: NEAR, transport, needs: PLAIN });
    assert_eq!(plan.paths().collect::<Vec<_>>(), [Path::Shm, Path::Quic, Path::Tls]);
    assert!(plan.obstacles().any(|known| known == (Path::Http, Obstacle::Excluded)));
    let plan = plan.without(Path::Shm, Obstacle::NoRoom);
    assert_eq!(plan.first(), choice(Path::Quic, Obstacle::NoRoom));
    let plan = plan.without(Path::Quic, Obstacle::UdpBlocked);
    assert_eq!(plan.first(), choice(Path::Tls, Obstacle::UdpBlocked));
    assert_eq!(plan.obstacles().count() + plan.paths().count(), CallFacts::CANDIDATES.len());
}

/// A plan is made for each call, so it stays in registers.
#[test]
fn a_plan_is_small() {
    assert!(size_of::<Plan>() <= 16, "{}", size_of::<Plan>());
}

/// `planned` in the contract: a path is selected when there is code that carries it out, and not before.
#[test]
fn every_path_is_selected_for_some_facts_unless_it_is_planned() {
    let selected: BTreeSet<_> = every_plan().map(|plan| plan.first().path).collect();
    let built: BTreeSet<_> = Path::ALL.iter().copied().filter(|path| !path.is_planned()).collect();
    assert_eq!(selected, built);
}

/// `against` in the contract: each obstacle occurs, against the paths that it names and no others.
#[test]
fn obstacles_stand_against_the_paths_that_the_contract_names() {
    let occur: BTreeSet<_> =
        every_plan().flat_map(|plan| plan.obstacles().collect::<Vec<_>>()).map(|(path, o)| (path, o.name())).collect();
    let named =
        |obstacle: &Obstacle| obstacle.against().iter().map(|path| (*path, obstacle.name())).collect::<Vec<_>>();
    let mut named: BTreeSet<_> = Obstacle::ALL.iter().flat_map(named).collect();
    assert!(named.remove(&(Path::Shm, Obstacle::NoRoom.name())), "only a path that was tried can lack room");
    assert_eq!(occur, named);
}

#[test]
fn names_are_words_and_texts_are_sentences() {
    for obstacle in Obstacle::ALL {
        assert!(obstacle.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{obstacle}");
        assert!(obstacle.to_string().len() > 10, "{obstacle}");
    }
    // Released names stay, in their order; a later row comes between them.
    let released = ["shm", "direct", "quic", "tls", "http", "punch", "relay", "pool"];
    let names: Vec<_> = Path::ALL.iter().map(|path| path.name()).filter(|name| released.contains(name)).collect();
    assert_eq!(names, released);
}

#[test]
fn a_name_of_a_later_release_is_no_path() {
    assert!(Path::ALL.iter().all(|path| Path::from_name(path.name()) == Some(*path)));
    assert_eq!((Path::from_name("pigeon"), Path::from_name("SHM"), Path::from_name("")), (None, None, None));
}
