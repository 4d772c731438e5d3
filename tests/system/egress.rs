//! Functions with egress: to declared destinations, and to no others. The machine is a network
//! namespace of the test's own.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use http::Method;
use nearpath_testkit::{eventually, need_root, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::external_server::{
    ExternalServer, MACHINE_NAME, MACHINE_V4, TestRedis, on_own_machine, start_web,
};
use crate::test_server::{TestServer, http_function, need_forwarding};

/// Handler that runs the Python code in its body; the variable `said` is its response.
const RUN_BODY: &str = r#"import socket, errno, threading, select, subprocess, signal
said = {}
try:
    exec(body.decode(), {"socket": socket, "select": select, "os": os, "time": time, "subprocess": subprocess, "sys": sys, "signal": signal}, said)
    self.answer(200, str(said.get("said")).encode())
except OSError as error:
    self.answer(200, errno.errorcode.get(error.errno, str(error)).encode())
except Exception as error:
    self.answer(200, repr(error).encode())"#;

/// A function that runs the code in its body, with the egress declaration `egress`.
pub(crate) fn runner_function(folder: &Path, name: &str, egress: &str) -> Value {
    let mut spec = http_function(folder, name, RUN_BODY);
    spec["annotations"] = json!({ "nearpath.io/egress": egress });
    spec
}

/// Runs Python code in a function.
pub(crate) async fn run_code(server: &TestServer, function: &str, code: &str) -> String {
    let answer = server
        .send_request(
            Method::POST,
            &format!("/function/{function}"),
            code.to_owned(),
        )
        .await;
    String::from_utf8_lossy(answer.body()).into_owned()
}

/// Python code that sends a line to an address and returns the response.
pub(crate) fn hello_code(to: impl std::fmt::Display, port: u16) -> String {
    format!(
        "s = socket.create_connection(('{to}', {port}), 20)\ns.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.close()"
    )
}

/// Returns true for the error of a reset connection, at any step.
pub(crate) fn is_reset_error(reply: &str) -> bool {
    ["ECONNRESET", "ECONNREFUSED", "EPIPE", "ENOTCONN"].contains(&reply)
}

#[tokio::test]
async fn what_is_declared_is_reached_and_nothing_else() {
    need_root!();
    on_own_machine();
    reaches_what_it_declared(&[]).await;
}

#[tokio::test]
async fn a_forwarder_lets_it_through_too() {
    need_forwarding!();
    on_own_machine();
    reaches_what_it_declared(&["--forward", "tc"]).await;
}

async fn reaches_what_it_declared(options: &[&str]) {
    let (own, at_machine, secret) = (
        ExternalServer::bind_at(Ipv4Addr::LOCALHOST),
        ExternalServer::bind_at(MACHINE_V4),
        ExternalServer::bind_at(MACHINE_V4),
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), options).await;
    let egress = format!(
        "{MACHINE_NAME}:{} warm=0, {MACHINE_V4}:{} warm=0",
        own.port, at_machine.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    server
        .deploy_ready(&runner_function(folder.path(), "stays", ""))
        .await;
    for _ in 0..2 {
        assert_eq!(
            run_code(&server, "goes", &hello_code(MACHINE_NAME, own.port)).await,
            "heard hello",
            "{}",
            server.log()
        );
        assert_eq!(
            run_code(&server, "goes", &hello_code(MACHINE_V4, at_machine.port)).await,
            "heard hello"
        );
    }
    let refused: BTreeSet<_> = ["ENETUNREACH", "ECONNREFUSED"].map(str::to_owned).into();
    let denied = async |function: &str, to: &str, port| {
        let reply = run_code(&server, function, &hello_code(to, port)).await;
        assert!(
            refused.contains(&reply) || is_reset_error(&reply),
            "{function} to {to}:{port}: {reply}"
        );
    };
    denied("goes", &MACHINE_V4.to_string(), secret.port).await; // another port
    // a port that another destination declares
    denied("goes", &MACHINE_V4.to_string(), own.port).await;
    denied("goes", "203.0.113.8", at_machine.port).await; // another machine
    denied("goes", "10.62.0.1", at_machine.port).await; // the gateway's address
    denied("goes", "127.0.0.1", own.port).await; // its own loopback
    denied("goes", &MACHINE_V4.to_string(), server.addr.port()).await; // the API
    denied("stays", &MACHINE_V4.to_string(), at_machine.port).await; // declared by another function
    denied("stays", "10.61.0.2", own.port).await; // stand-in of another function's name
    let unnamed = run_code(&server, "stays", &hello_code(MACHINE_NAME, own.port)).await;
    assert!(
        unnamed.contains("name"),
        "the resolver of the instance does not know it: {unnamed}"
    );
    assert_eq!(
        (
            secret.counts().opened,
            at_machine.counts().opened,
            own.counts().opened
        ),
        (0, 2, 2)
    );
}

#[tokio::test]
async fn ordinary_sockets_stay_ordinary() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(Ipv4Addr::LOCALHOST);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_NAME}:{}", outside.port),
        ))
        .await;
    let here = format!("at = ('{MACHINE_NAME}', {})\n", outside.port);
    for (what, code) in SOCKETS_CODE {
        for _ in 0..2 {
            let reply = run_code(&server, "goes", &format!("{here}{code}")).await;
            assert_eq!(reply, "heard hello", "{what}: {}", server.log());
        }
    }
    eventually("every connection ends", async || {
        outside.counts().ended >= 2 * SOCKETS_CODE.len() as u32
    })
    .await;
    assert_eq!(outside.counts().broken, 0, "and in good order");
}

/// Uses of sockets in programs. Each leaves the received line in `said`.
const SOCKETS_CODE: &[(&str, &str)] = &[
    (
        "epoll before connect, without blocking",
        "s = socket.socket()\ns.setblocking(False)\nready = select.epoll()\nready.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)\n\
         began = s.connect_ex((socket.gethostbyname(at[0]), at[1]))\nsent = 0\nsaid = ''\n\
         while not said:\n    for _, what in ready.poll(20):\n        if what & select.EPOLLOUT and not sent: sent = s.send(b'hello\\n')\n        if what & select.EPOLLIN: said = s.recv(99).decode().strip()\n\
         s.close()",
    ),
    (
        "fork after connect",
        "s = socket.create_connection(at, 20)\npid = os.fork()\n\
         if not pid:\n    s.sendall(b'hello\\n')\n    os._exit(0)\nos.waitpid(pid, 0)\nsaid = s.recv(99).decode().strip()\ns.close()",
    ),
    (
        "a duplicate made before connect",
        "s = socket.socket()\nd = os.dup(s.fileno())\ns.connect(at)\nos.write(d, b'hello\\n')\nsaid = os.read(d, 99).decode().strip()\ns.close()\nos.close(d)",
    ),
    (
        "dup2 over another descriptor, and exec",
        "s = socket.create_connection(at, 20)\ns.setblocking(True)\n\
         done = subprocess.run(['sh', '-c', 'echo hello; read line; echo $line >&2'], stdin=s, stdout=s, stderr=subprocess.PIPE)\n\
         said = done.stderr.decode().strip()\ns.close()",
    ),
    (
        "half-close",
        "s = socket.create_connection(at, 20)\ns.sendall(b'hello\\n')\ns.shutdown(socket.SHUT_WR)\nall = b''\n\
         while (more := s.recv(99)): all += more\ns.close()\nsaid = all.decode().strip().removesuffix('\\nbye 1')",
    ),
    (
        "megabytes both ways",
        "s = socket.create_connection(at, 20)\nline = b'x' * 65535 + b'\\n'\ngot = [0]\n\
         writer = os.fork()\nif not writer:\n    for _ in range(64): s.sendall(line)\n    os._exit(0)\n\
         size = 64 * (len(line) + 6)\nleft = size\nwhile left: left -= len(s.recv(min(left, 1 << 16)))\nos.waitpid(writer, 0)\n\
         s.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.close()",
    ),
    (
        "an IPv6 socket with a mapped address",
        "s = socket.socket(socket.AF_INET6)\ns.connect(('::ffff:' + socket.gethostbyname(at[0]), at[1]))\ns.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.close()",
    ),
];

/// A connection that uses a warm socket shows the destination's address as its peer, not the
/// stand-in's. Twice in a row each way, by an IPv4 socket and by an IPv6 one; any other socket goes
/// through the egress proxy.
#[tokio::test]
async fn a_warm_socket_takes_the_place_of_its_own() {
    need_root!();
    if let Err(why) = nearpath_kernel::probe::check_interception_support() {
        skip!("no shortcut here: {why}");
    }
    on_own_machine();
    warm_sockets_take_the_place(&[]).await;
}

#[tokio::test]
async fn a_warm_socket_takes_the_place_of_its_own_beside_a_forwarder_too() {
    need_forwarding!();
    if let Err(why) = nearpath_kernel::probe::check_interception_support() {
        skip!("no shortcut here: {why}");
    }
    on_own_machine();
    warm_sockets_take_the_place(&["--forward", "tc"]).await;
}

async fn warm_sockets_take_the_place(options: &[&str]) {
    let (outside, secret) = (
        ExternalServer::bind_at(Ipv4Addr::LOCALHOST),
        ExternalServer::bind_at(Ipv4Addr::LOCALHOST),
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), options).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_NAME}:{}", outside.port),
        ))
        .await;
    let at = format!(
        "at = (socket.gethostbyname('{MACHINE_NAME}'), {})\n",
        outside.port
    );
    let talk = "s.sendall(b'hello\\n')\nheard = s.recv(99).decode().strip()\nsaid = (s.getpeername()[0], heard)\ns.close()";
    let own = format!("{at}s = socket.socket()\ns.connect(at)\n{talk}");
    let mapped = format!(
        "{at}s = socket.socket(socket.AF_INET6)\ns.connect(('::ffff:' + at[0], at[1]))\n{talk}"
    );
    let bound = format!("{at}s = socket.socket()\ns.bind(('0.0.0.0', 0))\ns.connect(at)\n{talk}");
    for _ in 0..2 {
        let provided = "a warm socket is given";
        eventually(provided, async || {
            run_code(&server, "goes", &own).await == "('127.0.0.1', 'heard hello')"
        })
        .await;
        eventually(provided, async || {
            run_code(&server, "goes", &mapped).await == "('::ffff:127.0.0.1', 'heard hello')"
        })
        .await;
        let carried = run_code(&server, "goes", &bound).await;
        assert!(
            carried.starts_with("('10.61.") && carried.ends_with("'heard hello')"),
            "{carried}"
        );
    }
    let disconnected = format!(
        "{at}import struct, ctypes\nlibc = ctypes.CDLL(None)\ns = socket.socket()\ns.connect(at)\nfirst = s.getpeername()[0]\n\
         libc.connect(s.fileno(), struct.pack('H', 0), 2)\ns.settimeout(1)\n\
         try: s.connect(('127.0.0.1', {})); said = 'reached'\nexcept OSError as error: said = (first, str(error))",
        secret.port
    );
    let reaches = "the machine's socket reaches nothing else when it is disconnected";
    eventually(reaches, async || {
        run_code(&server, "goes", &disconnected).await
            == "('127.0.0.1', '[Errno 1] Operation not permitted')"
    })
    .await;
    assert_eq!(secret.counts().opened, 0);
}

/// Socket options survive connect(), whether the socket is still the function's own or a warm one.
#[tokio::test]
async fn options_of_a_socket_are_what_the_function_has_set() {
    need_root!();
    if let Err(why) = nearpath_kernel::probe::check_interception_support() {
        skip!("no shortcut here: {why}");
    }
    on_own_machine();
    let outside = ExternalServer::bind_at(MACHINE_V4);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{}", outside.port),
        ))
        .await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "carried",
            &format!("{MACHINE_V4}:{} warm=0", outside.port),
        ))
        .await;
    let code = format!(
        "import struct\nS, T, I = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP\n\
         all = [(S, socket.SO_KEEPALIVE, 1), (T, socket.TCP_KEEPIDLE, 77), (T, socket.TCP_KEEPINTVL, 7), (T, socket.TCP_KEEPCNT, 4),\n\
                (T, socket.TCP_USER_TIMEOUT, 12345), (S, socket.SO_RCVBUF, 50000), (S, socket.SO_SNDBUF, 40000), (I, socket.IP_TOS, 0x48),\n\
                (T, socket.TCP_NODELAY, 1), (T, socket.TCP_SYNCNT, 3), (S, socket.SO_PRIORITY, 4), (S, socket.SO_RCVLOWAT, 1)]\n\
         s = socket.socket()\nfor level, name, value in all: s.setsockopt(level, name, value)\n\
         s.setsockopt(S, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
         seen = [[], []]\n\
         for turn in (0, 1):\n    for level, name, _ in all: seen[turn].append(s.getsockopt(level, name))\n    \
             seen[turn].append(s.getsockopt(S, socket.SO_LINGER, 8))\n    \
             if not turn: s.connect(('{MACHINE_V4}', {}))\n\
         s.sendall(b'hello\\n')\nheard = s.recv(99).decode().strip()\n\
         given = s.getsockname()[0] == '{MACHINE_V4}'\ns.close()\n\
         said = (given, heard) if seen[0] == seen[1] else seen",
        outside.port
    );
    eventually("a warm socket is given, and is like its own", async || {
        let reply = run_code(&server, "goes", &code).await;
        assert!(
            reply.ends_with("'heard hello')"),
            "before and after connect(): {reply}"
        );
        reply == "(True, 'heard hello')"
    })
    .await;
    assert_eq!(
        run_code(&server, "carried", &code).await,
        "(False, 'heard hello')",
        "{}",
        server.log()
    );
    eventually(
        "SO_LINGER means what it says: each ends with a reset",
        async || {
            let seen = outside.counts();
            seen.broken >= 2 && seen.ended == 0
        },
    )
    .await;
}

#[tokio::test]
async fn what_breaks_on_one_side_breaks_on_the_other() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(MACHINE_V4);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let silent = TcpListener::bind((MACHINE_V4, 0)).unwrap();
    let down = TcpListener::bind((MACHINE_V4, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port(); // the listener is closed
    let ports = [outside.port, silent.local_addr().unwrap().port(), down];
    let egress = ports
        .map(|port| format!("{MACHINE_V4}:{port} protocol=tcp warm=0"))
        .join(",");
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;

    let reset = format!(
        "s = socket.create_connection(('{MACHINE_V4}', {}), 20)\ns.sendall(b'hello\\n')\ns.recv(99)\n\
         s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\\1\\0\\0\\0\\0\\0\\0\\0')\ns.close()\nsaid = 'reset'",
        outside.port
    );
    assert_eq!(run_code(&server, "goes", &reset).await, "reset");
    eventually("the server sees the reset", async || {
        outside.counts().broken == 1
    })
    .await;

    let killed = format!(
        "child = os.fork()\nif not child:\n    s = socket.create_connection(('{MACHINE_V4}', {}), 20)\n    s.sendall(b'hello\\nhalf')\n    s.recv(99)\n    os.kill(os.getpid(), signal.SIGKILL)\n\
         said = os.waitpid(child, 0)[1]",
        outside.port
    );
    assert_eq!(run_code(&server, "goes", &killed).await, "9");
    eventually("nothing stays open", async || {
        outside.counts().ended + outside.counts().broken == 2
    })
    .await;

    let refused = run_code(&server, "goes", &hello_code(MACHINE_V4, down)).await;
    assert!(
        is_reset_error(&refused),
        "a destination that is down says so at once: {refused}"
    );
    let log = server
        .send_request(Method::GET, "/system/logs?name=goes&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(
        log.contains(&format!("{MACHINE_V4}:{down}")) && log.contains("refused"),
        "the tenant is told: {log}"
    );

    let kept = format!(
        "import builtins\nbuiltins.kept = socket.create_connection(('{MACHINE_V4}', {}), 20)\nsaid = 'kept'",
        ports[1]
    );
    assert_eq!(run_code(&server, "goes", &kept).await, "kept");
    let (mut client, _) = silent.accept().unwrap();
    let instance = server.instance_pids("goes").await[0];
    kill_process(Pid::from_raw(instance).unwrap(), Signal::KILL).unwrap();
    let ended = tokio::task::spawn_blocking(move || std::io::Read::read(&mut client, &mut [0; 9]))
        .await
        .unwrap();
    assert!(
        ended.is_err() || ended.is_ok_and(|read| read == 0),
        "what an instance had open ends with it"
    );
}

#[tokio::test]
async fn another_egress_takes_effect_with_its_deployment() {
    need_root!();
    on_own_machine();
    let (first, second) = (
        ExternalServer::bind_at(MACHINE_V4),
        ExternalServer::bind_at(MACHINE_V4),
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let declared = |outside: &ExternalServer| format!("{MACHINE_V4}:{}", outside.port);
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &declared(&first)))
        .await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "other",
            &format!("{},{}", declared(&first), declared(&second)),
        ))
        .await;
    let hears = async |function, outside: &ExternalServer| {
        run_code(&server, function, &hello_code(MACHINE_V4, outside.port)).await
    };
    assert_eq!(hears("goes", &first).await, "heard hello");
    assert!(
        is_reset_error(&hears("goes", &second).await),
        "its neighbour's listener is there, but not for it"
    );
    assert_eq!(hears("other", &second).await, "heard hello");
    let answer = server
        .send_request(
            Method::PUT,
            "/system/functions",
            runner_function(folder.path(), "goes", &declared(&second)).to_string(),
        )
        .await;
    assert!(answer.status().is_success());
    eventually("the new egress holds", async || {
        hears("goes", &second).await == "heard hello"
    })
    .await;
    eventually("the old one does not", async || {
        is_reset_error(&hears("goes", &first).await)
    })
    .await;
    assert_eq!(
        hears("other", &first).await,
        "heard hello",
        "a neighbour's stays"
    );
}

#[tokio::test]
async fn secrets_of_destinations_stay_with_the_node() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let mut spec = runner_function(
        folder.path(),
        "keeps",
        &format!("{MACHINE_NAME}:5432 user=shop password=secret:door"),
    );
    let refused = server
        .send_request(Method::POST, "/system/functions", spec.to_string())
        .await;
    assert!(
        refused.status().is_client_error()
            && String::from_utf8_lossy(refused.body()).contains("door"),
        "{refused:?}"
    );
    for (name, value) in [("door", "open sesame"), ("own", "mine")] {
        let secret = json!({ "name": name, "value": value }).to_string();
        assert!(
            server
                .send_request(Method::POST, "/system/secrets", secret)
                .await
                .status()
                .is_success()
        );
    }
    spec["secrets"] = json!(["own"]);
    server.deploy_ready(&spec).await;
    let seen = run_code(
        &server,
        "keeps",
        "said = sorted(os.listdir('/var/openfaas/secrets'))",
    )
    .await;
    assert_eq!(seen, "['own']");
    let used = server
        .send_request(
            Method::DELETE,
            "/system/secrets",
            json!({ "name": "door" }).to_string(),
        )
        .await;
    assert!(used.status().is_client_error(), "it is in use: {used:?}");
}

#[tokio::test]
async fn what_cannot_be_reached_is_reported_in_the_functions_log() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress =
        "127.0.0.1:5432, localhost:6379, 10.62.0.1:8080, 10.61.0.9:80, [::1]:443, [fe80::1]:443";
    server
        .deploy_ready(&runner_function(folder.path(), "lost", egress))
        .await;
    let log = server
        .send_request(Method::GET, "/system/logs?name=lost&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    for report in [
        "127.0.0.1:5432",
        "host.nearpath.internal:5432",
        "localhost:6379",
        "10.62.0.1:8080",
        "10.61.0.9:80",
        "[::1]:443",
        "host.nearpath.internal:443",
        "[fe80::1]:443",
    ] {
        assert!(log.contains(report), "{report}: {log}");
    }
}

#[tokio::test]
async fn a_killed_server_leaves_no_connection_and_no_route() {
    need_root!();
    on_own_machine();
    let silent = TcpListener::bind((MACHINE_V4, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{port} warm=0"),
        ))
        .await;
    let kept = format!(
        "import builtins\nbuiltins.kept = socket.create_connection(('{MACHINE_V4}', {port}), 20)\nsaid = 'kept'"
    );
    assert_eq!(run_code(&server, "goes", &kept).await, "kept");
    let (mut client, _) = silent.accept().unwrap();
    let before = std::fs::read_to_string("/proc/thread-self/net/fib_trie").unwrap();
    server.end_with(Signal::KILL);
    let ended = tokio::task::spawn_blocking(move || std::io::Read::read(&mut client, &mut [0; 9]))
        .await
        .unwrap();
    assert!(ended.is_err() || ended.is_ok_and(|read| read == 0));
    assert_eq!(
        std::fs::read_to_string("/proc/thread-self/net/fib_trie").unwrap(),
        before,
        "the machine's own routes are as they were"
    );
    let again = TestServer::start_in(folder.path(), &[]).await;
    again.wait_available("goes", 1).await;
    assert_eq!(
        run_code(&again, "goes", &kept).await,
        "kept",
        "and a restart brings the way out back"
    );
}

#[tokio::test]
async fn the_guides_example_runs() {
    need_root!();
    on_own_machine();
    let port = start_web("to be or not to be");
    let server = TestServer::start().await;
    let stack = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/outside/stack.yml");
    let mut command = tokio::process::Command::new(nearpath_testkit::program("nearpath"));
    command
        .args(["deploy", "-f", stack])
        .env("OPENFAAS_URL", format!("http://{}", server.addr));
    command
        .env("QUOTES", format!("{MACHINE_NAME}:{port}"))
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let deployed = nearpath_testkit::within(command.output()).await.unwrap();
    assert!(
        deployed.status.success(),
        "{}",
        String::from_utf8_lossy(&deployed.stderr)
    );
    for _ in 0..3 {
        let answer = server
            .send_request(Method::GET, "/function/quotes", "")
            .await;
        assert_eq!(
            (answer.status().as_u16(), answer.body().as_ref()),
            (200, b"to be or not to be".as_ref()),
            "{}",
            server.log()
        );
    }
    let denied = server.call_function("quotes", "192.0.2.1:80").await;
    assert_eq!(denied.status(), 502);
    assert!(
        String::from_utf8_lossy(denied.body()).contains("unreachable"),
        "{:?}",
        denied.body()
    );
}

#[tokio::test]
async fn a_server_that_is_stopped_finishes_what_is_under_way() {
    need_root!();
    on_own_machine();
    let slow = TcpListener::bind((MACHINE_V4, 0)).unwrap();
    let port = slow.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{port} warm=0"),
        ))
        .await;
    let code = hello_code(MACHINE_V4, port);
    let call = run_code(&server, "goes", &code);
    let order = async {
        let mut client = tokio::task::spawn_blocking(move || slow.accept().unwrap().0)
            .await
            .unwrap();
        kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::TERM).unwrap();
        eventually("it takes nothing new", async || {
            tokio::net::TcpStream::connect(server.addr).await.is_err()
        })
        .await;
        std::io::Write::write_all(&mut client, b"at last\n").unwrap();
    };
    let (reply, ()) = tokio::join!(call, order);
    assert_eq!(reply, "at last", "{}", server.log());
}

#[tokio::test]
async fn a_protocol_that_is_known_has_its_connections_used_again_and_the_password_stays_with_the_node()
 {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = TestRedis::start(folder.path(), "sesame").await else {
        skip!("needs redis-server")
    };
    let server = TestServer::start_in(folder.path(), &[]).await;
    let secret = json!({ "name": "door", "value": "sesame" }).to_string();
    assert!(
        server
            .send_request(Method::POST, "/system/secrets", secret)
            .await
            .status()
            .is_success()
    );
    let egress = format!(
        "{MACHINE_V4}:{} protocol=redis password=secret:door max=2",
        redis.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "counts", &egress))
        .await;
    let count = format!(
        "s = socket.create_connection(('{MACHINE_V4}', {}), 20)\ns.sendall(b'*2\\r\\n$4\\r\\nINCR\\r\\n$1\\r\\nn\\r\\n')\nsaid = s.recv(99).decode().strip()\ns.close()",
        redis.port
    );
    let before: u32 = redis
        .read_info("total_connections_received")
        .unwrap()
        .parse()
        .unwrap();
    for number in 1..=20 {
        assert_eq!(
            run_code(&server, "counts", &count).await,
            format!(":{number}"),
            "{}",
            server.log()
        );
    }
    let after: u32 = redis
        .read_info("total_connections_received")
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        after - before <= 4,
        "twenty clients, a few connections: {}",
        after - before
    );
}

#[tokio::test]
async fn a_destination_at_the_gateways_port_does_not_replace_the_gateway() {
    need_root!();
    on_own_machine();
    let _outside = ExternalServer::serve_on(TcpListener::bind((MACHINE_V4, 8080)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&crate::test_server::echo_function(folder.path(), "echo"))
        .await;
    let mut spec = runner_function(folder.path(), "goes", &format!("{MACHINE_V4}:8080"));
    spec["annotations"]["nearpath.io/chain"] = json!("shop");
    spec["annotations"]["nearpath.io/calls"] = json!("echo");
    server.deploy_ready(&spec).await;
    assert_eq!(
        run_code(&server, "goes", &hello_code(MACHINE_V4, 8080)).await,
        "heard hello",
        "{}",
        server.log()
    );
    let call = "import urllib.request\nsaid = urllib.request.urlopen('http://10.62.0.1:8080/function/echo', data=b'inside').read().decode()";
    assert_eq!(run_code(&server, "goes", call).await, "inside");
}

/// All connections of a namespace to a destination count together. Each function stops at its own
/// `max`, and the log reports another function's limit.
#[tokio::test]
async fn functions_with_different_ceilings_stop_at_their_own() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(MACHINE_V4);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress = |max| format!("{MACHINE_V4}:{} max={max} warm=0 wait=1s", outside.port);
    server
        .deploy_ready(&runner_function(folder.path(), "wide", &egress(4)))
        .await;
    server
        .deploy_ready(&runner_function(folder.path(), "narrow", &egress(2)))
        .await;
    let keep = |count| {
        format!(
            "import builtins\nbuiltins.kept = [socket.create_connection(('{MACHINE_V4}', {}), 20) for _ in range({count})]\n\
             for s in builtins.kept: s.sendall(b'hello\\n')\nsaid = [s.recv(99).decode().strip() for s in builtins.kept]",
            outside.port
        )
    };
    assert_eq!(
        run_code(&server, "wide", &keep(2)).await,
        "['heard hello', 'heard hello']",
        "{}",
        server.log()
    );
    let one = hello_code(MACHINE_V4, outside.port);
    let reply = run_code(&server, "narrow", &one).await;
    assert!(
        is_reset_error(&reply),
        "two are open, whosever they are: {reply}"
    );
    assert_eq!(
        run_code(&server, "wide", &one).await,
        "heard hello",
        "which has room for two more"
    );
    let freed = "import builtins\nfor s in builtins.kept: s.close()\nsaid = 'closed'";
    assert_eq!(run_code(&server, "wide", freed).await, "closed");
    eventually("there is room for both", async || {
        run_code(&server, "narrow", &one).await == "heard hello"
    })
    .await;
    assert!(outside.counts().max_open <= 4, "{:?}", outside.counts());
    let log = server
        .send_request(Method::GET, "/system/logs?name=narrow&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(
        log.contains("max=2") && log.contains("max=4") && log.contains("wide.openfaas-fn"),
        "it is told: {log}"
    );
}

#[tokio::test]
async fn a_ceiling_holds_over_all_replicas_and_everybody_is_served() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(MACHINE_V4);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{} max=4 warm=2 wait=30s", outside.port),
        ))
        .await;
    server.scale("goes", 2).await;
    server.wait_available("goes", 2).await;
    // A bound socket is proxied by the node, which learns of the server's close before the next
    // connection.
    let code = format!(
        "s = socket.socket()\ns.bind(('', 0))\ns.connect(('{MACHINE_V4}', {}))\ns.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.shutdown(socket.SHUT_WR)\n\
         while s.recv(99): pass\ns.close()",
        outside.port
    );
    let calls =
        futures_util::future::join_all((0..60).map(|_| run_code(&server, "goes", &code))).await;
    assert!(
        calls.iter().all(|reply| reply == "heard hello"),
        "{calls:?}"
    );
    let seen = outside.counts();
    assert!(
        seen.opened >= 60 && seen.broken == 0 && seen.max_open <= 4,
        "{seen:?}"
    );
}
