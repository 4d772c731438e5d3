//! Sockets of functions with egress: ordinary uses, warm sockets, and options.

use std::net::Ipv4Addr;

use nearpath_testkit::{eventually, need_root, skip};

use super::{run_code, runner_function};
use crate::external_server::{ExternalServer, MACHINE_NAME, MACHINE_V4, on_own_machine};
use crate::test_server::{TestServer, need_forwarding};

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

/// A connection that uses a warm socket has an address of the machine as its own. Its peer is the
/// address that the function connected to. Twice in a row each way, by an IPv4 socket and by an IPv6
/// one; any other socket goes through the egress proxy.
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
    let talk = "s.sendall(b'hello\\n')\nheard = s.recv(99).decode().strip()\nsaid = (s.getsockname()[0], s.getpeername()[0].endswith(at[0]), heard)\ns.close()";
    let own = format!("{at}s = socket.socket()\ns.connect(at)\n{talk}");
    let mapped = format!(
        "{at}s = socket.socket(socket.AF_INET6)\ns.connect(('::ffff:' + at[0], at[1]))\n{talk}"
    );
    let bound = format!("{at}s = socket.socket()\ns.bind(('0.0.0.0', 0))\ns.connect(at)\n{talk}");
    for _ in 0..2 {
        let provided = "a warm socket is given";
        eventually(provided, async || {
            run_code(&server, "goes", &own).await == "('127.0.0.1', True, 'heard hello')"
        })
        .await;
        eventually(provided, async || {
            run_code(&server, "goes", &mapped).await == "('::ffff:127.0.0.1', True, 'heard hello')"
        })
        .await;
        let carried = run_code(&server, "goes", &bound).await;
        assert!(
            carried.starts_with("('10.62.") && carried.ends_with("True, 'heard hello')"),
            "{carried}"
        );
    }
    let disconnected = format!(
        "{at}import struct, ctypes\nlibc = ctypes.CDLL(None)\ns = socket.socket()\ns.connect(at)\nfirst = s.getsockname()[0]\n\
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
