use std::collections::BTreeSet;

use nearpath_types::policy::CallTransport;

use super::*;

const SAME_CHAIN: EdgeFacts = EdgeFacts::NEAREST;
const NO_CHAIN: EdgeFacts = EdgeFacts {
    callee_in_domain: false,
    ..SAME_CHAIN
};
const OTHER_NODE: EdgeFacts = EdgeFacts {
    same_node: false,
    ..SAME_CHAIN
};
const PLAIN: CallNeeds = CallNeeds::PLAIN;
const UPGRADE: CallNeeds = CallNeeds {
    upgrade: true,
    ..PLAIN
};
/// Every means there is.
const ALL_CAPABILITIES: TransportFacts = TransportFacts {
    wanted: CallTransport::Auto,
    tls: true,
    ..TransportFacts::INTRODUCED
};

fn choose(edge: EdgeFacts, transport: TransportFacts, needs: CallNeeds) -> PathChoice {
    select_paths(&CallFacts {
        edge,
        transport,
        needs,
    })
    .first_choice()
}

fn choice_with(path: Path, obstacle: Obstacle) -> PathChoice {
    PathChoice {
        path,
        obstacle: Some(obstacle),
    }
}

fn all_plans() -> impl Iterator<Item = PathPlan> {
    let (links, connections) = (
        LinkFacts::all_combinations().map(|facts| select_paths(&facts)),
        EgressFacts::all_combinations(),
    );
    CallFacts::all_combinations()
        .map(|facts| select_paths(&facts))
        .chain(links)
        .chain(connections.map(|facts| select_paths(&facts)))
}

#[test]
fn without_obstacles_shared_memory_is_chosen() {
    for wanted in facts::TRANSPORTS {
        let choice = choose(
            SAME_CHAIN,
            TransportFacts {
                wanted,
                ..ALL_CAPABILITIES
            },
            PLAIN,
        );
        assert_eq!(
            choice,
            PathChoice {
                path: Path::Shm,
                obstacle: None
            }
        );
    }
}

#[test]
fn obstacles_to_shared_memory_lead_to_http_on_the_same_machine() {
    let table = [
        (
            EdgeFacts {
                callee_in_domain: false,
                ..SAME_CHAIN
            },
            PLAIN,
            Obstacle::NoDomain,
        ),
        (
            EdgeFacts {
                same_domain: false,
                ..SAME_CHAIN
            },
            PLAIN,
            Obstacle::OtherDomain,
        ),
        (
            EdgeFacts {
                caller_attached: false,
                ..SAME_CHAIN
            },
            PLAIN,
            Obstacle::CallerNoEndpoint,
        ),
        (
            EdgeFacts {
                callee_attached: false,
                ..SAME_CHAIN
            },
            PLAIN,
            Obstacle::NoEndpoint,
        ),
        (SAME_CHAIN, UPGRADE, Obstacle::Upgrade),
        (
            SAME_CHAIN,
            CallNeeds {
                grpc: true,
                ..PLAIN
            },
            Obstacle::Grpc,
        ),
        (
            SAME_CHAIN,
            CallNeeds {
                trailers: true,
                ..PLAIN
            },
            Obstacle::Trailers,
        ),
    ];
    for (edge, needs, obstacle) in table {
        assert_eq!(
            choose(edge, ALL_CAPABILITIES, needs),
            choice_with(Path::Http, obstacle)
        );
        assert_eq!(
            choose(edge, TransportFacts::PLAIN, needs),
            choice_with(Path::Http, obstacle)
        );
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn each_transport_has_its_fallbacks_and_they_name_the_obstacle() {
    let (quic, tls13, tls12, tcp) = (
        CallTransport::Quic,
        CallTransport::Tls13,
        CallTransport::Tls12,
        CallTransport::Tcp,
    );
    let of = |wanted| TransportFacts {
        wanted,
        ..ALL_CAPABILITIES
    };
    let no_udp = |of: TransportFacts| TransportFacts {
        udp_blocked: true,
        ..of
    };
    let without_callee_certificate = |of: TransportFacts| TransportFacts {
        callee_has_certificate: false,
        ..of
    };
    let no_tls = |of: TransportFacts| TransportFacts { tls: false, ..of };
    let without_caller_certificate = |of: TransportFacts| TransportFacts {
        caller_has_certificate: false,
        ..of
    };
    use Obstacle::{CallerNoIdentity, NoDomain, NoIdentity, OtherNode, UdpBlocked, Upgrade};
    let table = [
        (NO_CHAIN, of(quic), PLAIN, choice_with(Path::Quic, NoDomain)),
        (
            NO_CHAIN,
            of(quic),
            CallNeeds {
                grpc: true,
                ..PLAIN
            },
            choice_with(Path::Quic, NoDomain),
        ),
        (NO_CHAIN, of(quic), UPGRADE, choice_with(Path::Tls, Upgrade)),
        (
            NO_CHAIN,
            no_udp(of(quic)),
            PLAIN,
            choice_with(Path::Tls, UdpBlocked),
        ),
        (
            NO_CHAIN,
            no_tls(no_udp(of(quic))),
            PLAIN,
            choice_with(Path::Tls, UdpBlocked),
        ),
        (
            NO_CHAIN,
            without_callee_certificate(of(quic)),
            PLAIN,
            choice_with(Path::Tls, NoIdentity),
        ),
        (
            NO_CHAIN,
            without_caller_certificate(of(quic)),
            PLAIN,
            choice_with(Path::Http, CallerNoIdentity),
        ),
        (NO_CHAIN, of(tls13), PLAIN, choice_with(Path::Tls, NoDomain)),
        (
            NO_CHAIN,
            of(tls12),
            UPGRADE,
            choice_with(Path::Tls, NoDomain),
        ),
        (
            NO_CHAIN,
            without_caller_certificate(of(tls13)),
            PLAIN,
            choice_with(Path::Http, CallerNoIdentity),
        ),
        (
            NO_CHAIN,
            without_callee_certificate(of(tls13)),
            PLAIN,
            choice_with(Path::Tls, NoDomain),
        ),
        (NO_CHAIN, of(tcp), PLAIN, choice_with(Path::Http, NoDomain)),
        (
            OTHER_NODE,
            of(CallTransport::Auto),
            PLAIN,
            choice_with(Path::Quic, OtherNode),
        ),
        (
            OTHER_NODE,
            no_udp(of(CallTransport::Auto)),
            PLAIN,
            choice_with(Path::Tls, UdpBlocked),
        ),
        (
            OTHER_NODE,
            without_callee_certificate(no_tls(of(quic))),
            PLAIN,
            choice_with(Path::Tls, NoIdentity),
        ),
        (
            OTHER_NODE,
            no_tls(of(tls13)),
            PLAIN,
            choice_with(Path::Tls, OtherNode),
        ),
        (
            OTHER_NODE,
            of(tcp),
            PLAIN,
            choice_with(Path::Http, OtherNode),
        ),
    ];
    for (edge, transport, needs, wanted) in table {
        assert_eq!(
            choose(edge, transport, needs),
            wanted,
            "{edge:?} {transport:?} {needs:?}"
        );
    }
}

/// The two tests below rest on these marks of the contract.
#[test]
fn http_is_in_clear_and_its_alternatives_are_not() {
    assert!(Path::Http.is_clear());
    assert!(
        ![Path::Shm, Path::Quic, Path::Tls]
            .into_iter()
            .any(Path::is_clear)
    );
}

/// Plain TCP leaves the machine only when the function asks for it.
#[test]
fn nothing_leaves_the_machine_unencrypted_by_default() {
    for facts in CallFacts::all_combinations()
        .filter(|facts| !facts.edge.same_node && facts.transport.wanted != CallTransport::Tcp)
    {
        let plan = select_paths(&facts);
        assert!(
            !plan.first_choice().path.is_clear() && !plan.usable_paths().any(Path::is_clear),
            "{facts:?}"
        );
    }
}

/// A caller with a certificate never speaks in clear to a function that asks for encryption: it
/// waits for an instance without one.
#[test]
fn encryption_that_a_function_asks_for_is_used_by_every_caller_with_a_certificate() {
    let is_encrypted = |wanted| {
        matches!(
            wanted,
            CallTransport::Quic | CallTransport::Tls13 | CallTransport::Tls12
        )
    };
    for facts in CallFacts::all_combinations().filter(|facts| {
        facts.transport.caller_has_certificate && is_encrypted(facts.transport.wanted)
    }) {
        let plan = select_paths(&facts);
        assert!(
            !plan.first_choice().path.is_clear() && !plan.usable_paths().any(Path::is_clear),
            "{facts:?}"
        );
    }
}

#[test]
fn the_most_lasting_obstacle_is_reported() {
    let edge = EdgeFacts {
        callee_in_domain: false,
        callee_attached: false,
        ..SAME_CHAIN
    };
    assert_eq!(
        choose(edge, ALL_CAPABILITIES, UPGRADE).obstacle,
        Some(Obstacle::NoDomain)
    );
}

#[test]
fn a_failed_path_leaves_the_next_one_and_its_obstacle() {
    let transport = TransportFacts {
        wanted: CallTransport::Quic,
        ..ALL_CAPABILITIES
    };
    let plan = select_paths(&CallFacts {
        edge: SAME_CHAIN,
        transport,
        needs: PLAIN,
    });
    assert_eq!(
        plan.usable_paths().collect::<Vec<_>>(),
        [Path::Shm, Path::Quic, Path::Tls]
    );
    assert!(
        plan.obstacles()
            .any(|known| known == (Path::Http, Obstacle::Excluded))
    );
    let plan = plan.without_path(Path::Shm, Obstacle::NoRoom);
    assert_eq!(
        plan.first_choice(),
        choice_with(Path::Quic, Obstacle::NoRoom)
    );
    let plan = plan.without_path(Path::Quic, Obstacle::UdpBlocked);
    assert_eq!(
        plan.first_choice(),
        choice_with(Path::Tls, Obstacle::UdpBlocked)
    );
    assert_eq!(
        plan.obstacles().count() + plan.usable_paths().count(),
        CallFacts::CANDIDATES.len()
    );
}

/// A plan is made for each call, so it stays in registers.
#[test]
fn a_plan_is_small() {
    assert!(size_of::<PathPlan>() <= 16, "{}", size_of::<PathPlan>());
}

/// `planned` in the contract: a path is selected when there is code that carries it out, and not
/// before.
#[test]
fn every_path_is_selected_for_some_facts_unless_it_is_planned() {
    let selected: BTreeSet<_> = all_plans().map(|plan| plan.first_choice().path).collect();
    let built: BTreeSet<_> = Path::ALL
        .iter()
        .copied()
        .filter(|path| !path.is_planned())
        .collect();
    assert_eq!(selected, built);
}

/// `against` in the contract: each obstacle occurs, against the paths that it names and no others.
#[test]
fn obstacles_stand_against_the_paths_that_the_contract_names() {
    let occur: BTreeSet<_> = all_plans()
        .flat_map(|plan| plan.obstacles().collect::<Vec<_>>())
        .map(|(path, o)| (path, o.name()))
        .collect();
    let named = |obstacle: &Obstacle| {
        obstacle
            .against()
            .iter()
            .map(|path| (*path, obstacle.name()))
            .collect::<Vec<_>>()
    };
    let mut named: BTreeSet<_> = Obstacle::ALL.iter().flat_map(named).collect();
    assert!(
        named.remove(&(Path::Shm, Obstacle::NoRoom.name())),
        "only a path that was tried can lack room"
    );
    assert_eq!(occur, named);
}

#[test]
fn names_are_words_and_texts_are_sentences() {
    for obstacle in Obstacle::ALL {
        assert!(
            obstacle
                .name()
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_'),
            "{obstacle}"
        );
        assert!(obstacle.to_string().len() > 10, "{obstacle}");
    }
    // Released names stay, in their order; a later row comes between them.
    let released = [
        "shm", "direct", "quic", "tls", "http", "punch", "relay", "pool",
    ];
    let names: Vec<_> = Path::ALL
        .iter()
        .map(|path| path.name())
        .filter(|name| released.contains(name))
        .collect();
    assert_eq!(names, released);
}

#[test]
fn a_name_of_a_later_release_is_no_path() {
    assert!(
        Path::ALL
            .iter()
            .all(|path| Path::from_name(path.name()) == Some(*path))
    );
    assert_eq!(
        (
            Path::from_name("pigeon"),
            Path::from_name("SHM"),
            Path::from_name("")
        ),
        (None, None, None)
    );
}
