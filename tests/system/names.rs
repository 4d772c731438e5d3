//! A name server on a test's machine, and functions that use names and addresses of both families.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::thread;

use nearpath_kernel::devices::NetworkDevices;
use nearpath_testkit::{eventually, need_root, skip};
use simple_dns::rdata::{A, AAAA, RData};
use simple_dns::{CLASS, Packet, QTYPE, RCODE, ResourceRecord, TYPE};

use crate::egress::{hello_code, is_reset_error, run_code, runner_function};
use crate::external_server::{
    ExternalServer, MACHINE_V4, NEIGHBOUR_V4, NEIGHBOUR_V6, NeighbourMachine, on_own_machine,
};
use crate::test_server::{TestServer, need_forwarding};

/// IPv6 address of the machine besides loopback, reserved for documentation (RFC 3849).
pub(crate) const MACHINE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// As [`on_own_machine`], with an IPv6 address, and a name server where the machine's resolver
/// looks for one.
pub(crate) fn on_a_machine_with(names: &[(&str, &[IpAddr])]) {
    on_own_machine();
    let mut devices = NetworkDevices::open().unwrap();
    let loopback = devices.device_index("lo").unwrap();
    devices
        .add_address(loopback, (MACHINE_V6.into(), 128))
        .unwrap();
    let settings = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let server = settings
        .lines()
        .find_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok());
    let server: IpAddr = server.unwrap_or([127, 0, 0, 1].into());
    if !server.is_loopback() {
        devices
            .add_address(loopback, (server, if server.is_ipv4() { 32 } else { 128 }))
            .unwrap();
    }
    let socket = UdpSocket::bind((server, 53)).unwrap();
    let names: BTreeMap<String, Vec<IpAddr>> = names
        .iter()
        .map(|(name, addresses)| ((*name).to_owned(), addresses.to_vec()))
        .collect();
    thread::spawn(move || {
        let mut packet = [0; 1_500];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            // the client may have ended
            let _ = socket.send_to(&dns_answer(&packet[..length], &names), from);
        }
    });
}

fn dns_answer(question: &[u8], names: &BTreeMap<String, Vec<IpAddr>>) -> Vec<u8> {
    let mut packet = Packet::parse(question).unwrap().into_reply();
    *packet.opt_mut() = None;
    packet.additional_records.clear();
    let question = packet.questions[0].clone();
    match names.get(&question.qname.to_string().to_ascii_lowercase()) {
        None => *packet.rcode_mut() = RCODE::NameError,
        Some(addresses) => packet
            .answers
            .extend(addresses.iter().filter_map(|address| {
                let data = match (address, question.qtype) {
                    (IpAddr::V4(v4), QTYPE::TYPE(TYPE::A)) => RData::A(A {
                        address: v4.to_bits(),
                    }),
                    (IpAddr::V6(v6), QTYPE::TYPE(TYPE::AAAA)) => RData::AAAA(AAAA {
                        address: v6.to_bits(),
                    }),
                    _ => return None,
                };
                Some(ResourceRecord::new(
                    question.qname.clone(),
                    CLASS::IN,
                    5,
                    data,
                ))
            })),
    }
    packet.build_bytes_vec().unwrap()
}

#[tokio::test]
async fn an_ipv6_address_is_reached_as_it_is_written() {
    need_root!();
    on_a_machine_with(&[]);
    reaches_ipv6(&[]).await;
}

#[tokio::test]
async fn an_ipv6_address_is_reached_beside_a_forwarder_too() {
    need_forwarding!();
    on_a_machine_with(&[]);
    reaches_ipv6(&["--forward", "tc"]).await;
}

async fn reaches_ipv6(options: &[&str]) {
    let (outside, secret) = (
        ExternalServer::bind_at(MACHINE_V6),
        ExternalServer::bind_at(MACHINE_V6),
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), options).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("[{MACHINE_V6}]:{}", outside.port),
        ))
        .await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "stays",
            &format!("{MACHINE_V4}:{}", outside.port),
        ))
        .await;
    let at = format!("at = ('{MACHINE_V6}', {})\n", outside.port);
    let talk = "s.sendall(b'hello\\n')\nsaid = (s.getpeername()[0], s.recv(99).decode().strip())\ns.close()";
    let plain = format!("{at}s = socket.create_connection(at, 20)\n{talk}");
    let bound =
        format!("{at}s = socket.socket(socket.AF_INET6)\ns.bind(('::', 0))\ns.connect(at)\n{talk}");
    for code in [&plain, &bound, &plain, &bound] {
        let reply = run_code(&server, "goes", code).await;
        assert_eq!(
            reply,
            format!("('{MACHINE_V6}', 'heard hello')"),
            "{}",
            server.log()
        );
    }
    for (function, to, port) in [
        ("goes", MACHINE_V6, secret.port),
        ("goes", Ipv6Addr::LOCALHOST, outside.port),
        ("goes", "2001:db8::8".parse().unwrap(), outside.port),
        ("stays", MACHINE_V6, outside.port),
    ] {
        let reply = run_code(&server, function, &hello_code(to, port)).await;
        let refused = ["ENETUNREACH", "EADDRNOTAVAIL", "ECONNREFUSED"].contains(&reply.as_str());
        assert!(refused, "{function} to {to}:{port}: {reply}");
    }
    assert_eq!((secret.counts().opened, outside.counts().broken), (0, 0));
}

#[tokio::test]
async fn a_warm_socket_to_an_ipv6_address_takes_the_place_of_its_own() {
    need_root!();
    if let Err(why) = nearpath_kernel::probe::check_interception_support() {
        skip!("no shortcut here: {why}");
    }
    on_a_machine_with(&[]);
    let outside = ExternalServer::bind_at(MACHINE_V6);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("[{MACHINE_V6}]:{}", outside.port),
        ))
        .await;
    // A proxied connection comes from the instance's loopback, a warm one from the machine.
    let code = format!(
        "s = socket.create_connection(('{MACHINE_V6}', {}), 20)\ns.sendall(b'hello\\n')\nsaid = (s.getsockname()[0], s.recv(99).decode().strip())\ns.close()",
        outside.port
    );
    for _ in 0..2 {
        eventually("a warm socket is given", async || {
            run_code(&server, "goes", &code).await == format!("('{MACHINE_V6}', 'heard hello')")
        })
        .await;
    }
}

#[tokio::test]
async fn a_name_with_ipv6_addresses_alone_is_reached_by_ipv4_sockets() {
    need_root!();
    on_a_machine_with(&[("six.example.net", &[NEIGHBOUR_V6.into()])]);
    let outside = NeighbourMachine::start().bind_at(NEIGHBOUR_V6);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("six.example.net:{}", outside.port),
        ))
        .await;
    let name = format!(
        "at = (socket.gethostbyname('six.example.net'), {})\n",
        outside.port
    );
    let talk = "s.sendall(b'hello\\n')\nheard = s.recv(99).decode().strip()\nsaid = (len(s.getpeername()), heard)\ns.close()";
    let own = format!("{name}s = socket.create_connection(at, 20)\n{talk}");
    for _ in 0..6 {
        let reply = run_code(&server, "goes", &own).await;
        assert_eq!(
            reply,
            "(2, 'heard hello')",
            "an IPv4 socket stays one: {}",
            server.log()
        );
    }
    let mapped = format!(
        "{name}s = socket.socket(socket.AF_INET6)\ns.connect(('::ffff:' + at[0], at[1]))\n{talk}"
    );
    for _ in 0..3 {
        assert_eq!(
            run_code(&server, "goes", &mapped).await,
            "(4, 'heard hello')",
            "{}",
            server.log()
        );
    }
    let seen = outside.counts();
    assert!(
        seen.opened < 30,
        "no connection is opened to be thrown away: {seen:?}"
    );
}

#[tokio::test]
async fn names_below_a_name_are_reached_and_no_others() {
    need_root!();
    reaches_names_below(&[]).await;
}

#[tokio::test]
async fn names_below_a_name_are_reached_beside_a_forwarder_too() {
    need_forwarding!();
    reaches_names_below(&["--forward", "tc"]).await;
}

async fn reaches_names_below(options: &[&str]) {
    let neighbour: &[IpAddr] = &[NEIGHBOUR_V4.into()];
    on_a_machine_with(&[
        ("a.example.com", neighbour),
        ("b.c.example.com", neighbour),
        ("d.example.com", &[NEIGHBOUR_V6.into()]),
        ("inside.example.com", &[[127, 0, 0, 1].into()]),
        ("lan.example.com", &[MACHINE_V4.into()]),
        ("lan6.example.com", &[MACHINE_V6.into()]),
        ("example.com", neighbour),
        ("a.example.org", neighbour),
    ]);
    let neighbour = NeighbourMachine::start();
    let [outside, other, secret] = [(); 3].map(|()| neighbour.bind_at(NEIGHBOUR_V4));
    let six = neighbour.bind_port_at(NEIGHBOUR_V6, outside.port);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), options).await;
    let egress = format!(
        "*.example.com:{}, a.example.com:{} protocol=tcp",
        outside.port, other.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "stays",
            &format!("{NEIGHBOUR_V4}:{}", outside.port),
        ))
        .await;
    for _ in 0..2 {
        for name in [
            "a.example.com",
            "b.c.example.com",
            "d.example.com",
            "A.Example.Com.",
        ] {
            let reply = run_code(&server, "goes", &hello_code(name, outside.port)).await;
            assert_eq!(reply, "heard hello", "{name}: {}", server.log());
        }
        assert_eq!(
            run_code(&server, "goes", &hello_code("a.example.com", other.port)).await,
            "heard hello"
        );
    }
    only_declared_names_resolve(&server, outside.port, secret.port).await;
    assert_eq!((secret.counts().opened, six.counts().opened > 0), (0, true));
    let log = server
        .send_request(http::Method::GET, "/system/logs?name=goes&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(log.contains("was not found"), "the tenant is told: {log}");
}

/// Only names below the declared one, its declared ports and the function's own name resolve.
async fn only_declared_names_resolve(server: &TestServer, open: u16, closed: u16) {
    for name in [
        "example.com",
        "a.example.org",
        "nobody.example.com",
        "inside.example.com",
        "lan.example.com",
        "lan6.example.com",
    ] {
        let reply = run_code(server, "goes", &hello_code(name, open)).await;
        assert!(
            reply.contains("not known"),
            "{name} has no address: {reply}"
        );
    }
    let at = "at = socket.gethostbyname('b.c.example.com')\n";
    let port = format!("{at}{}", hello_code("x", closed).replace("'x'", "at"));
    let reply = run_code(server, "goes", &port).await;
    assert!(
        is_reset_error(&reply),
        "a port that is not declared: {reply}"
    );
    let stand = run_code(server, "goes", &format!("{at}said = at")).await;
    assert!(stand.starts_with("10.61.255."), "{stand}");
    let reply = run_code(server, "stays", &hello_code(&stand, open)).await;
    assert!(
        reply == "ENETUNREACH" || is_reset_error(&reply),
        "another function's: {reply}"
    );
    let resolver = run_code(server, "stays", "said = open('/etc/resolv.conf').read()").await;
    assert!(
        !resolver.contains("nameserver"),
        "no resolver for a function without such names: {resolver}"
    );
}
