//! The two ways without root: a user namespace, and no sandbox at all.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::egress::{hello, is_reset, run, runner};
use crate::house::{House, echo, http_function, script};
use crate::names::{MACHINE_V6, on_a_machine_with};
use crate::outside::{MACHINE, Outside, on_a_machine};

/// An ordinary user: nobody.
const USER: u32 = 65_534;

/// Calls another function at `gateway_url` and hands on what came back.
const RELAY: &str = r#"try:
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

/// A folder in which an ordinary user has the programs and a place for state.
struct Home(tempfile::TempDir);

impl Home {
    fn make() -> Self {
        let home = tempfile::Builder::new().prefix("nearpath-test-").tempdir().unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["nearpath", "nearpath-watchdog"] {
            let copy = home.path().join(name);
            nearpath_testkit::copy_program(program(name), &copy);
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        for folder in [home.path().join("state"), home.path().join("code")] {
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, Some(USER), Some(USER)).unwrap();
        }
        Self(home)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// For functions; what root puts there everybody may read.
    fn code(&self) -> PathBuf {
        self.0.path().join("code")
    }

    /// The program as the ordinary user starts it.
    fn program(&self) -> Command {
        let mut command = as_user();
        command.arg("env").arg(format!("HOME={}", self.state().display())).arg(self.0.path().join("nearpath"));
        command
    }

    async fn start(&self, options: &[&str]) -> House {
        let mut house = House::spawn(self.program(), &self.state(), options);
        house.until_ready().await;
        house
    }
}

/// What follows is run by the ordinary user.
fn as_user() -> Command {
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--inh-caps=-all"]);
    command
}

fn may_make_namespaces() -> bool {
    as_user().args(["unshare", "--user", "--net", "true"]).output().is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_user_namespace_carries_functions_edges_and_scale() {
    nearpath_testkit::need_root!(); // to become somebody else
    need_user_namespaces!();
    let home = Home::make();
    let house = home.start(&[]).await;
    chain(&house, &home.code()).await;
    assert_eq!(text(&house, "callee", "hello").await, (StatusCode::OK, "hello".into()), "{}", house.log());
    assert_eq!(text(&house, "caller", "/function/callee").await, (StatusCode::OK, "from inside".into()));
    let (status, said) = text(&house, "caller", "/function/stranger").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{said}");
    assert!(said.contains("caller") && said.contains("stranger"), "{said}");
    house.scale("callee", 2).await;
    house.until_available("callee", 2).await;
    house.scale("callee", 0).await;
    house.until_available("callee", 0).await;
    assert_eq!(text(&house, "callee", "woken").await, (StatusCode::OK, "woken".into()), "{}", house.log());
}

#[tokio::test]
async fn a_users_function_reaches_what_it_declared_and_nothing_else() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    on_a_machine();
    let (home, outside) = (Home::make(), Outside::at(MACHINE));
    let house = home.start(&[]).await;
    house.deploy_ready(&runner(&home.code(), "goes", &format!("{MACHINE}:{} warm=0", outside.port))).await;
    for _ in 0..2 {
        assert_eq!(run(&house, "goes", &hello(MACHINE, outside.port)).await, "heard hello", "{}", house.log());
    }
    assert_eq!(run(&house, "goes", &hello("203.0.113.8", outside.port)).await, "ENETUNREACH");
    assert!(is_reset(&run(&house, "goes", &hello(MACHINE, house.addr.port())).await));
}

#[tokio::test]
async fn a_users_function_reaches_ipv6_and_names_below_a_name() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    on_a_machine_with(&[("a.example.com", &[MACHINE.into()])]);
    let (home, outside) = (Home::make(), Outside::at(MACHINE));
    let six = Outside::on(std::net::TcpListener::bind((MACHINE_V6, outside.port)).unwrap());
    let house = home.start(&[]).await;
    let egress = format!("[{MACHINE_V6}]:{port}, {MACHINE}:{port}, *.example.com:{port}", port = outside.port);
    house.deploy_ready(&runner(&home.code(), "goes", &egress)).await;
    for _ in 0..2 {
        assert_eq!(run(&house, "goes", &hello(MACHINE_V6, six.port)).await, "heard hello", "{}", house.log());
        assert_eq!(run(&house, "goes", &hello(MACHINE, outside.port)).await, "heard hello", "{}", house.log());
        assert_eq!(run(&house, "goes", &hello("a.example.com", outside.port)).await, "heard hello", "{}", house.log());
    }
}

#[tokio::test]
async fn without_a_sandbox_egress_is_not_enforced_and_says_so() {
    on_a_machine_if_root();
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--no-sandbox"]).await;
    let mut spec = runner(folder.path(), "free", "192.0.2.1:80");
    spec["envVars"] = json!({ "mode": "http" });
    house.deploy_ready(&spec).await;
    let log = house.ask(Method::GET, "/system/logs?name=free&follow=false", "").await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(log.contains("egress is not enforced"), "{log}");
}

/// What is tested does not need it; where it can be had, nothing reaches the machine.
fn on_a_machine_if_root() {
    if nearpath_testkit::is_root() {
        on_a_machine();
    }
}

#[tokio::test]
async fn an_instance_of_an_ordinary_user_sees_nothing_of_that_user() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home = Home::make();
    let house = home.start(&[]).await;
    let look = format!(
        "ls -d /proc/[0-9]* | wc -l; ls {}; touch /home/app/function/x; unshare -n true && echo power; true\n",
        home.state().display()
    );
    house.deploy_ready(&script(&home.code(), "look", &format!("exec 2>&1\n{look}"))).await;
    let (_, said) = text(&house, "look", "").await;
    assert!(said.contains("No such file"), "{said}");
    assert!(said.contains("Read-only file system") || said.contains("Permission denied"), "{said}");
    assert!(!said.contains("power"), "{said}");
}

#[tokio::test]
async fn kill_nine_of_a_users_house_leaves_no_process() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home = Home::make();
    nothing_survives(home.start(&[]).await, &home.code()).await;
}

#[tokio::test]
async fn without_a_sandbox_functions_answer_and_call_each_other() {
    nearpath_testkit::need_root!();
    let home = Home::make();
    let house = home.start(&["--no-sandbox"]).await;
    chain(&house, &home.code()).await;
    assert_eq!(text(&house, "callee", "hello").await, (StatusCode::OK, "hello".into()), "{}", house.log());
    assert_eq!(text(&house, "caller", "/function/callee").await, (StatusCode::OK, "from inside".into()));
    assert_eq!(text(&house, "caller", "/function/stranger").await.0, StatusCode::OK, "edges are not enforced");
    assert!(house.log().contains("edges between them are not enforced"), "which is said: {}", house.log());
    house.scale("caller", 2).await;
    house.until_available("caller", 2).await;
    assert_eq!(text(&house, "caller", "/function/callee").await.0, StatusCode::OK);
}

#[tokio::test]
async fn root_may_go_without_a_sandbox_too() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--no-sandbox"]).await;
    chain(&house, folder.path()).await;
    assert_eq!(text(&house, "callee", "hello").await, (StatusCode::OK, "hello".into()), "{}", house.log());
    assert_eq!(text(&house, "caller", "/function/callee").await, (StatusCode::OK, "from inside".into()));
}

#[tokio::test]
async fn kill_nine_without_a_sandbox_leaves_no_process() {
    nearpath_testkit::need_root!();
    let home = Home::make();
    nothing_survives(home.start(&["--no-sandbox"]).await, &home.code()).await;
}

#[tokio::test]
async fn without_a_sandbox_a_killed_watchdog_takes_its_handler_with_it() {
    nearpath_testkit::need_root!();
    let home = Home::make();
    let house = home.start(&["--no-sandbox"]).await;
    house.deploy_ready(&pid_function(&home.code())).await;
    let handler = text(&house, "pid", "").await.1;
    kill_process(Pid::from_raw(house.instance_pids("pid").await[0]).unwrap(), Signal::KILL).unwrap();
    eventually("the handler ends", async || !is_alive(&handler)).await;
    eventually("another instance", async || text(&house, "pid", "").await.0 == StatusCode::OK).await;
}

#[tokio::test]
async fn a_server_that_ignores_its_port_is_told_of_it() {
    nearpath_testkit::need_root!();
    let home = Home::make();
    let house = home.start(&["--no-sandbox"]).await;
    let mut deaf = http_function(&home.code(), "deaf", "pass");
    deaf["envProcess"] = json!("sleep 600");
    deaf["envVars"]["start_timeout"] = json!("1s");
    house.deploy(&deaf).await;
    let told = async || house.describe("deaf").await["trouble"].to_string().contains("the variable PORT");
    eventually("the trouble names PORT", told).await;
}

#[tokio::test]
async fn a_limit_that_is_not_kept_is_said_in_the_log() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home = Home::make();
    let house = home.start(&[]).await;
    let mut spec = echo(&home.code(), "echo");
    spec["limits"] = json!({ "memory": "64Mi" });
    house.deploy_ready(&spec).await;
    let logs = house.ask(Method::GET, "/system/logs?name=echo&follow=false", "").await;
    let said = String::from_utf8_lossy(logs.body()).into_owned();
    assert!(said.contains("limits.memory is not enforced"), "{said}");
}

#[tokio::test]
async fn root_without_power_gets_a_user_namespace() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all,+setfcap", "--inh-caps=-all"]).arg(program("nearpath"));
    let mut house = House::spawn(command, folder.path(), &[]);
    house.until_ready().await;
    house.deploy_ready(&echo(folder.path(), "echo")).await;
    assert_eq!(text(&house, "echo", "hello").await, (StatusCode::OK, "hello".into()), "{}", house.log());
    assert!(house.log().contains("user namespaces"), "{}", house.log());
}

#[tokio::test]
async fn forwarding_by_the_kernel_is_for_root_alone() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home = Home::make();
    let state = home.state();
    let up = ["up", "--insecure", "--forward", "tc", "--data-dir", state.to_str().unwrap()];
    let Output { status, stderr, .. } = home.program().args(up).output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && said.contains("--forward tc") && said.contains("run as root"), "{said}");
}

#[tokio::test]
async fn doctor_tells_an_ordinary_user_what_is_lost() {
    nearpath_testkit::need_root!();
    need_user_namespaces!();
    let home = Home::make();
    let Output { status, stdout, stderr } = home.program().args(["doctor", "--json"]).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let found: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(found["usable"], true);
    let check = |name: &str| found["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(check("isolation")["verdict"], "warn");
    assert!(check("isolation")["lost"].as_str().unwrap().contains("under your user"), "{found}");
    assert!(check("memory limits")["lost"].as_str().unwrap().contains("limits.memory"), "{found}");
    assert!(check("egress")["found"].as_str().unwrap().contains("egress proxy alone"), "{found}");
    assert_eq!(check("opened congestion windows")["verdict"], "warn", "{found}");
}

/// Two functions that anybody could call, and one that may call the first.
async fn chain(house: &House, folder: &Path) {
    let mut caller = http_function(folder, "caller", RELAY);
    caller["annotations"] = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": "callee" });
    for spec in [echo(folder, "callee"), echo(folder, "stranger"), caller] {
        house.deploy_ready(&spec).await;
    }
}

async fn nothing_survives(mut house: House, folder: &Path) {
    house.deploy_ready(&http_function(folder, "keep", "self.answer(200, b'kept')")).await;
    let processes = family(house.pid());
    assert!(processes.len() >= 3, "template, watchdog, handler: {processes:?}\n{}", house.log());
    house.end(Signal::KILL);
    eventually("all end with their house", async || !processes.iter().any(|pid| is_alive(pid))).await;
}

/// A function that answers with the process id of its handler.
fn pid_function(folder: &Path) -> Value {
    http_function(folder, "pid", "self.answer(200, str(os.getpid()).encode())")
}

async fn text(house: &House, function: &str, body: &'static str) -> (StatusCode, String) {
    let answer = house.call(function, body).await;
    (answer.status(), String::from_utf8_lossy(answer.body()).into_owned())
}

/// Everything that descends from a process.
fn family(parent: u32) -> Vec<String> {
    let children = |pid: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let mut found = children(&parent.to_string());
    let mut at = 0;
    while at < found.len() {
        found.extend(children(&found[at]));
        at += 1;
    }
    found
}

/// Whether it exists and is more than a zombie: who adopted it may be slow to ask for its end.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
