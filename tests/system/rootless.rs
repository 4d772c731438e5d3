//! Running without root: in a user namespace, and without a sandbox.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::egress::{hello_code, is_reset_error, run_code, runner_function};
use crate::external_server::{
    ExternalServer, MACHINE_V4, NEIGHBOUR_V4, NEIGHBOUR_V6, NeighbourMachine, on_own_machine,
};
use crate::names::on_a_machine_with;
use crate::test_server::{TestServer, echo_function, http_function, script_function};

/// Uid of an ordinary user, the overflow uid of Linux.
const TEST_USER: u32 = 65_534;

/// Calls another function at `gateway_url` and forwards the response.
const RELAY_BODY: &str = r#"try:
    with urllib.request.urlopen(os.environ["gateway_url"] + body.decode(), data=b"from inside") as reply:
        self.answer(reply.status, reply.read())
except urllib.error.HTTPError as error:
    self.answer(error.code, error.read())
except OSError as error:
    self.answer(599, str(error).encode())"#;

macro_rules! need_user_namespaces {
    () => {
        if !may_make_namespaces() {
            nearpath_testkit::skip!("needs user namespaces for ordinary users")
        }
    };
}

/// A folder with the programs and a state folder for an ordinary user.
struct UserFolder(tempfile::TempDir);

impl UserFolder {
    fn create() -> Self {
        let home_dir = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        std::fs::set_permissions(home_dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["nearpath", "nearpath-watchdog"] {
            let copy = home_dir.path().join(name);
            nearpath_testkit::copy_program(program(name), &copy);
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        for folder in [home_dir.path().join("state"), home_dir.path().join("code")] {
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, Some(TEST_USER), Some(TEST_USER)).unwrap();
        }
        Self(home_dir)
    }

    fn state_folder(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// Folder for functions, which everybody may read.
    fn code_folder(&self) -> PathBuf {
        self.0.path().join("code")
    }

    /// The program as the ordinary user starts it.
    fn program_command(&self) -> Command {
        let mut command = as_user();
        command
            .arg("env")
            .arg(format!("HOME={}", self.state_folder().display()))
            .arg(self.0.path().join("nearpath"));
        command
    }

    async fn start(&self, options: &[&str]) -> TestServer {
        let mut server =
            TestServer::spawn_with(self.program_command(), &self.state_folder(), options);
        server.wait_ready().await;
        server
    }
}

/// Command prefix that runs a program as the ordinary user.
fn as_user() -> Command {
    let mut command = Command::new("setpriv");
    let user = TEST_USER.to_string();
    command.args([
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "--inh-caps=-all",
    ]);
    command
}

fn may_make_namespaces() -> bool {
    as_user()
        .args(["unshare", "--user", "--net", "true"])
        .output()
        .is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_user_namespace_carries_functions_edges_and_scale() {
    nearpath_testkit::need_root!(); // to change the user
    need_user_namespaces!();
    let home_dir = UserFolder::create();
    let server = home_dir.start(&[]).await;
    deploy_chain(&server, &home_dir.code_folder()).await;
    assert_eq!(
        call_text(&server, "callee", "hello").await,
        (StatusCode::OK, "hello".into()),
        "{}",
        server.log()
    );
    assert_eq!(
        call_text(&server, "caller", "/function/callee").await,
        (StatusCode::OK, "from inside".into())
    );
    let (status, reply) = call_text(&server, "caller", "/function/stranger").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{reply}");
    assert!(
        reply.contains("caller") && reply.contains("stranger"),
        "{reply}"
    );
    server.scale("callee", 2).await;
    server.wait_available("callee", 2).await;
    server.scale("callee", 0).await;
    server.wait_available("callee", 0).await;
    assert_eq!(
        call_text(&server, "callee", "woken").await,
        (StatusCode::OK, "woken".into()),
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn a_users_function_reaches_what_it_declared_and_nothing_else() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    on_own_machine();
    let (home_dir, outside) = (UserFolder::create(), ExternalServer::bind_at(MACHINE_V4));
    let server = home_dir.start(&[]).await;
    server
        .deploy_ready(&runner_function(
            &home_dir.code_folder(),
            "goes",
            &format!("{MACHINE_V4}:{} warm=0", outside.port),
        ))
        .await;
    for _ in 0..2 {
        assert_eq!(
            run_code(&server, "goes", &hello_code(MACHINE_V4, outside.port)).await,
            "heard hello",
            "{}",
            server.log()
        );
    }
    assert_eq!(
        run_code(&server, "goes", &hello_code("203.0.113.8", outside.port)).await,
        "ENETUNREACH"
    );
    assert!(is_reset_error(
        &run_code(&server, "goes", &hello_code(MACHINE_V4, server.addr.port())).await
    ));
}

#[tokio::test]
async fn a_users_function_reaches_ipv6_and_names_below_a_name() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    on_a_machine_with(&[("a.example.com", &[NEIGHBOUR_V4.into()])]);
    let (home_dir, neighbour) = (UserFolder::create(), NeighbourMachine::start());
    let outside = neighbour.bind_at(NEIGHBOUR_V4);
    let six = neighbour.bind_port_at(NEIGHBOUR_V6, outside.port);
    let server = home_dir.start(&[]).await;
    let egress = format!(
        "[{NEIGHBOUR_V6}]:{port}, {NEIGHBOUR_V4}:{port}, *.example.com:{port}",
        port = outside.port
    );
    server
        .deploy_ready(&runner_function(&home_dir.code_folder(), "goes", &egress))
        .await;
    for _ in 0..2 {
        assert_eq!(
            run_code(&server, "goes", &hello_code(NEIGHBOUR_V6, six.port)).await,
            "heard hello",
            "{}",
            server.log()
        );
        assert_eq!(
            run_code(&server, "goes", &hello_code(NEIGHBOUR_V4, outside.port)).await,
            "heard hello",
            "{}",
            server.log()
        );
        assert_eq!(
            run_code(&server, "goes", &hello_code("a.example.com", outside.port)).await,
            "heard hello",
            "{}",
            server.log()
        );
    }
}

#[tokio::test]
async fn without_a_sandbox_egress_is_not_enforced_and_this_is_reported() {
    on_a_machine_if_root();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &["--no-sandbox"]).await;
    let mut spec = runner_function(folder.path(), "free", "192.0.2.1:80");
    spec["envVars"] = json!({ "mode": "http" });
    server.deploy_ready(&spec).await;
    let log = server
        .send_request(Method::GET, "/system/logs?name=free&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(log.contains("egress is not enforced"), "{log}");
}

/// Moves to a machine of its own if possible: the test does not need it, but then nothing reaches
/// the real one.
fn on_a_machine_if_root() {
    if nearpath_testkit::is_root() {
        on_own_machine();
    }
}

#[tokio::test]
async fn an_instance_of_an_ordinary_user_sees_nothing_of_that_user() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home_dir = UserFolder::create();
    let server = home_dir.start(&[]).await;
    let look = format!(
        "ls -d /proc/[0-9]* | wc -l; ls {}; touch /home/app/function/x; unshare -n true && echo power; true\n",
        home_dir.state_folder().display()
    );
    server
        .deploy_ready(&script_function(
            &home_dir.code_folder(),
            "look",
            &format!("exec 2>&1\n{look}"),
        ))
        .await;
    let (_, reply) = call_text(&server, "look", "").await;
    assert!(reply.contains("No such file"), "{reply}");
    assert!(
        reply.contains("Read-only file system") || reply.contains("Permission denied"),
        "{reply}"
    );
    assert!(!reply.contains("power"), "{reply}");
}

#[tokio::test]
async fn kill_nine_of_a_users_server_leaves_no_process() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home_dir = UserFolder::create();
    assert_nothing_survives(home_dir.start(&[]).await, &home_dir.code_folder()).await;
}

#[tokio::test]
async fn without_a_sandbox_functions_answer_and_call_each_other() {
    nearpath_testkit::need_root!();
    let home_dir = UserFolder::create();
    let server = home_dir.start(&["--no-sandbox"]).await;
    deploy_chain(&server, &home_dir.code_folder()).await;
    assert_eq!(
        call_text(&server, "callee", "hello").await,
        (StatusCode::OK, "hello".into()),
        "{}",
        server.log()
    );
    assert_eq!(
        call_text(&server, "caller", "/function/callee").await,
        (StatusCode::OK, "from inside".into())
    );
    assert_eq!(
        call_text(&server, "caller", "/function/stranger").await.0,
        StatusCode::OK,
        "edges are not enforced"
    );
    assert!(
        server.log().contains("edges between them are not enforced"),
        "which is said: {}",
        server.log()
    );
    server.scale("caller", 2).await;
    server.wait_available("caller", 2).await;
    assert_eq!(
        call_text(&server, "caller", "/function/callee").await.0,
        StatusCode::OK
    );
}

#[tokio::test]
async fn root_may_go_without_a_sandbox_too() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &["--no-sandbox"]).await;
    deploy_chain(&server, folder.path()).await;
    assert_eq!(
        call_text(&server, "callee", "hello").await,
        (StatusCode::OK, "hello".into()),
        "{}",
        server.log()
    );
    assert_eq!(
        call_text(&server, "caller", "/function/callee").await,
        (StatusCode::OK, "from inside".into())
    );
}

#[tokio::test]
async fn kill_nine_without_a_sandbox_leaves_no_process() {
    nearpath_testkit::need_root!();
    let home_dir = UserFolder::create();
    assert_nothing_survives(
        home_dir.start(&["--no-sandbox"]).await,
        &home_dir.code_folder(),
    )
    .await;
}

#[tokio::test]
async fn without_a_sandbox_a_killed_watchdog_takes_its_handler_with_it() {
    nearpath_testkit::need_root!();
    let home_dir = UserFolder::create();
    let server = home_dir.start(&["--no-sandbox"]).await;
    server
        .deploy_ready(&pid_function(&home_dir.code_folder()))
        .await;
    let handler = call_text(&server, "pid", "").await.1;
    kill_process(
        Pid::from_raw(server.instance_pids("pid").await[0]).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    eventually("the handler ends", async || !is_alive(&handler)).await;
    eventually("another instance", async || {
        call_text(&server, "pid", "").await.0 == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_ignores_its_port_is_reported() {
    nearpath_testkit::need_root!();
    let home_dir = UserFolder::create();
    let server = home_dir.start(&["--no-sandbox"]).await;
    let mut deaf = http_function(&home_dir.code_folder(), "deaf", "pass");
    deaf["envProcess"] = json!("sleep 600");
    deaf["envVars"]["start_timeout"] = json!("1s");
    server.deploy(&deaf).await;
    let report = async || {
        server.describe("deaf").await["notReadyReason"]
            .to_string()
            .contains("the variable PORT")
    };
    eventually("the failure names PORT", report).await;
}

#[tokio::test]
async fn a_limit_that_is_not_enforced_is_logged() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home_dir = UserFolder::create();
    let server = home_dir.start(&[]).await;
    let mut spec = echo_function(&home_dir.code_folder(), "echo");
    spec["limits"] = json!({ "memory": "64Mi" });
    server.deploy_ready(&spec).await;
    let logs = server
        .send_request(Method::GET, "/system/logs?name=echo&follow=false", "")
        .await;
    let reply = String::from_utf8_lossy(logs.body()).into_owned();
    assert!(reply.contains("limits.memory is not enforced"), "{reply}");
}

#[tokio::test]
async fn root_without_power_gets_a_user_namespace() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-all,+setfcap", "--inh-caps=-all"])
        .arg(program("nearpath"));
    let mut server = TestServer::spawn_with(command, folder.path(), &[]);
    server.wait_ready().await;
    server
        .deploy_ready(&echo_function(folder.path(), "echo"))
        .await;
    assert_eq!(
        call_text(&server, "echo", "hello").await,
        (StatusCode::OK, "hello".into()),
        "{}",
        server.log()
    );
    assert!(server.log().contains("user namespaces"), "{}", server.log());
}

#[tokio::test]
async fn forwarding_by_the_kernel_is_for_root_alone() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home_dir = UserFolder::create();
    let state = home_dir.state_folder();
    let up = [
        "up",
        "--insecure",
        "--forward",
        "tc",
        "--data-dir",
        state.to_str().unwrap(),
    ];
    let Output { status, stderr, .. } = home_dir.program_command().args(up).output().unwrap();
    let reply = String::from_utf8_lossy(&stderr);
    assert!(
        !status.success() && reply.contains("--forward tc") && reply.contains("run as root"),
        "{reply}"
    );
}

#[tokio::test]
async fn doctor_shows_an_ordinary_user_what_is_missing() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home_dir = UserFolder::create();
    let Output {
        status,
        stdout,
        stderr,
    } = home_dir
        .program_command()
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let found: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(found["usable"], true);
    let check = |name: &str| {
        found["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == name)
            .unwrap()
    };
    assert_eq!(check("isolation")["status"], "warn");
    assert!(
        check("isolation")["effect"]
            .as_str()
            .unwrap()
            .contains("under your user"),
        "{found}"
    );
    assert!(
        check("memory limits")["effect"]
            .as_str()
            .unwrap()
            .contains("limits.memory"),
        "{found}"
    );
    assert!(
        check("egress")["found"]
            .as_str()
            .unwrap()
            .contains("egress proxy alone"),
        "{found}"
    );
    assert_eq!(
        check("initial congestion windows")["status"],
        "warn",
        "{found}"
    );
}

/// Two functions that everybody could call, and one that may call the first.
async fn deploy_chain(server: &TestServer, folder: &Path) {
    let mut caller = http_function(folder, "caller", RELAY_BODY);
    caller["annotations"] = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": "callee" });
    for spec in [
        echo_function(folder, "callee"),
        echo_function(folder, "stranger"),
        caller,
    ] {
        server.deploy_ready(&spec).await;
    }
}

async fn assert_nothing_survives(mut server: TestServer, folder: &Path) {
    server
        .deploy_ready(&http_function(folder, "keep", "self.answer(200, b'kept')"))
        .await;
    let processes = process_family(server.pid());
    assert!(
        processes.len() >= 3,
        "template, watchdog, handler: {processes:?}\n{}",
        server.log()
    );
    server.end_with(Signal::KILL);
    eventually("all end with their server", async || {
        !processes.iter().any(|pid| is_alive(pid))
    })
    .await;
}

/// A function that responds with the pid of its handler.
fn pid_function(folder: &Path) -> Value {
    http_function(folder, "pid", "self.answer(200, str(os.getpid()).encode())")
}

async fn call_text(
    server: &TestServer,
    function: &str,
    body: &'static str,
) -> (StatusCode, String) {
    let answer = server.call_function(function, body).await;
    (
        answer.status(),
        String::from_utf8_lossy(answer.body()).into_owned(),
    )
}

/// All descendants of a process.
fn process_family(parent: u32) -> Vec<String> {
    let children = |pid: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let lists =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists
            .flat_map(|list| {
                list.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let mut found = children(&parent.to_string());
    let mut at = 0;
    while at < found.len() {
        found.extend(children(&found[at]));
        at += 1;
    }
    found
}

/// Returns true if the process exists and is not a zombie: its new parent may reap it late.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
