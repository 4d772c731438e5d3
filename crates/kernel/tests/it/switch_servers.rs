//! Edges that balance connections: HTTP by name goes straight to the callee's own server, over real
//! instances. The callers have no gateway, so HTTP by name is refused everywhere else.

use std::io;

use nearpath_kernel::bpf::AddressEdge;
use nearpath_testkit::need_support;

use crate::flow_cuts::CutLab;
use crate::virtual_switch::{CALLER, DECLARED, virtual_address};

const EDGE: AddressEdge = AddressEdge {
    caller: CALLER,
    callee: DECLARED,
};
const PORT: u16 = 5000;
/// Uses each form of the callee's address at each port of HTTP. Lists the peer or the error.
const CALL: &str = "
def call(address, port):
    s = connect(address, port=port)
    exchange(s)
    return ' '.join(map(str, s.getpeername()[:2]))
calls = [state(lambda _: call(address, port), None) for address in (CALLEE, ULA, '::ffff:' + CALLEE) for port in (80, 8080)]
result = ' '.join(calls)
";

/// Starts a server of the callee at one of its addresses.
fn listen_at(lab: &CutLab, address: &str) {
    let family = match address.contains(':') {
        true => "AF_INET6, dualstack_ipv6=True",
        false => "AF_INET",
    };
    let program = format!(
        "server = socket.create_server(('{address}', {PORT}), family=socket.{family}, reuse_port=True)
threading.Thread(target=accept_all, args=(server,), daemon=True).start()"
    );
    assert_eq!(lab.run(DECLARED, &program), "");
}

fn open_server(lab: &CutLab, port: u16) {
    let eip = lab.instances[&DECLARED].1;
    let netns = lab.open_netns(DECLARED);
    lab.lab.switch.open_server(eip, netns, port).unwrap();
}

fn expected_peers() -> String {
    let ula = virtual_address(DECLARED).v6;
    let forms = [
        DECLARED.to_string(),
        ula.to_string(),
        format!("::ffff:{DECLARED}"),
    ];
    let peers = forms.map(|form| format!("{form} 80 {form} 8080"));
    peers.join(" ")
}

fn refused_calls() -> String {
    ["ECONNREFUSED"; 6].join(" ")
}

/// Returns the outcomes of calls to a server at an address, with everything that they need.
fn call_without(left_out: &[&str], address: &str) -> io::Result<String> {
    let lab = CutLab::create_without(left_out)?;
    listen_at(&lab, address);
    open_server(&lab, PORT);
    // The caller has no gateway inside, so only the straight way can answer.
    lab.lab.switch.balance_connections(EDGE, true)?;
    let calls = lab.run(CALLER, CALL);
    lab.kill_all();
    Ok(calls)
}

#[test]
fn connections_reach_servers_at_any_of_their_addresses() {
    for address in ["127.0.0.1", "127.0.0.77", "", "::"] {
        let calls = need_support!(call_without(&[], address));
        assert_eq!(calls, expected_peers(), "server at {address:?}");
    }
}

#[test]
fn without_one_of_its_programs_connections_take_the_gateway() {
    for (hook, address) in [
        ("bind4", "127.0.0.1"),
        ("bind6", "::"),
        ("follow_connection", "127.0.0.1"),
    ] {
        let calls = need_support!(call_without(&[hook], address));
        assert_eq!(calls, refused_calls(), "without {hook}");
    }
}

#[test]
fn only_edges_that_ask_for_it_are_balanced_per_connection() {
    let lab = need_support!(CutLab::create_without(&[]));
    let switch = &lab.lab.switch;
    listen_at(&lab, "127.0.0.1");
    let call = || lab.run(CALLER, CALL);
    switch.balance_connections(EDGE, true).unwrap();
    assert_eq!(call(), refused_calls(), "its server is not known");
    open_server(&lab, 5001);
    assert_eq!(call(), refused_calls(), "no server listens there");
    open_server(&lab, PORT);
    assert_eq!(call(), expected_peers());
    switch.balance_connections(EDGE, false).unwrap();
    assert_eq!(call(), refused_calls());
    switch.balance_connections(EDGE, true).unwrap();
    assert_eq!(call(), expected_peers());
    // The setting ends with its edge.
    switch.remove_edge(EDGE);
    switch.add_edge(EDGE).unwrap();
    assert_eq!(call(), refused_calls(), "of an edge that was removed");
    switch.balance_connections(EDGE, true).unwrap();
    assert_eq!(lab.run(DECLARED, "os.close(server.detach())"), "");
    lab.kill_all();
}

/// The address of an instance leads to its server only with an edge that asks for it.
#[test]
fn the_address_of_an_instance_is_no_way_to_its_server() {
    let lab = need_support!(CutLab::create_without(&[]));
    listen_at(&lab, "127.0.0.1");
    open_server(&lab, PORT);
    for is_balanced in [false, true] {
        lab.lab
            .switch
            .balance_connections(EDGE, is_balanced)
            .unwrap();
        for port in [80, 8080] {
            let call =
                format!("result = state(lambda _: exchange(connect(EIP, port={port})), None)");
            assert_eq!(lab.run(CALLER, &call), "ECONNREFUSED", "port {port}");
        }
    }
    lab.kill_all();
}

/// A server may listen twice: the kernel gives connections to the listener that takes IPv4.
#[test]
fn a_listener_for_ipv6_alone_is_passed_over() {
    let lab = need_support!(CutLab::create_without(&[]));
    // The listener for IPv6 is noted first.
    let ipv6 = format!(
        "only_ipv6 = socket.socket(socket.AF_INET6)
only_ipv6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
only_ipv6.bind(('::', {PORT})); only_ipv6.listen()"
    );
    assert_eq!(lab.run(DECLARED, &ipv6), "");
    listen_at(&lab, "0.0.0.0");
    open_server(&lab, PORT);
    lab.lab.switch.balance_connections(EDGE, true).unwrap();
    assert_eq!(lab.run(CALLER, CALL), expected_peers());
    lab.kill_all();
}

/// Connections for a closed server get no other one of the instance.
#[test]
fn a_closed_server_is_not_replaced_by_another() {
    let lab = need_support!(CutLab::create_without(&[]));
    let other =
        "other = socket.create_server(('', 8080)); other_80 = socket.create_server(('', 80))
for one in other, other_80: threading.Thread(target=accept_all, args=(one,), daemon=True).start()";
    assert_eq!(lab.run(DECLARED, other), "");
    listen_at(&lab, "127.0.0.1");
    open_server(&lab, PORT);
    lab.lab.switch.balance_connections(EDGE, true).unwrap();
    assert_eq!(lab.run(CALLER, CALL), expected_peers());
    // Threads that wait in accept() hold a closed listener; shutdown() ends it.
    let close = "server.shutdown(socket.SHUT_RDWR); server.close()";
    assert_eq!(lab.run(DECLARED, close), "");
    assert_eq!(lab.run(CALLER, CALL), refused_calls());
    lab.kill_all();
}

#[test]
fn a_server_that_listens_again_is_found_however_often() {
    let lab = need_support!(CutLab::create_without(&[]));
    lab.lab.switch.balance_connections(EDGE, true).unwrap();
    open_server(&lab, PORT);
    // Others listen, too. Each closed listener gives its slot back.
    let listen_often = "
for _ in range(20):
    socket.create_server(('127.0.0.1', 0)).close()
others = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
";
    assert_eq!(lab.run(DECLARED, listen_often), "");
    let fill = "others += [socket.create_server(('127.0.0.1', 0)) for _ in range(20)]";
    assert_eq!(lab.run(DECLARED, fill), "");
    listen_at(&lab, "127.0.0.1");
    let call = || lab.run(CALLER, CALL);
    assert_eq!(call(), refused_calls(), "its slots are taken");
    assert_eq!(lab.run(DECLARED, "[one.close() for one in others]"), "");
    listen_at(&lab, "127.0.0.1");
    assert_eq!(call(), expected_peers());
    lab.kill_all();
}
