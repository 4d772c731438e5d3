//! Ends of connections: broken ones, and those of a server that stops or is killed.

use std::net::TcpListener;

use http::Method;
use nearpath_testkit::{eventually, need_root};
use rustix::process::{Pid, Signal, kill_process};

use super::{hello_code, is_reset_error, run_code, runner_function};
use crate::external_server::{ExternalServer, MACHINE_V4, on_own_machine};
use crate::test_server::TestServer;

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
