//! Help, wrong usage, missing gateways, completion, doctor, and the documents.

use std::path::Path;

use serde_json::{Value, json};

use crate::fake_gateway::{CliRun, FakeGateway};

const COMMANDS: &[&str] = &[
    "up",
    "node",
    "deploy",
    "ls",
    "nodes",
    "describe",
    "invoke",
    "rendezvous",
    "logs",
    "scale",
    "rm",
    "ca",
    "doctor",
    "version",
    "completion",
];

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `-x, --long` options in a help text, without those that every command has.
fn options(help: &str) -> Vec<String> {
    let tokens = help
        .split_whitespace()
        .map(|word| word.trim_end_matches(',').to_owned());
    let mut out: Vec<_> = tokens
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .collect();
    out.retain(|word| {
        word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            && word != "--help"
            && word != "--version"
    });
    out
}

#[tokio::test]
async fn help_names_every_command_and_exit_code() {
    let help = CliRun::new(&["--help"]).output().await.expect(0).out;
    for command in COMMANDS {
        assert!(
            help.contains(&format!("\n  {command}")),
            "{command}\n{help}"
        );
    }
    for (exit, text) in nearpath_cli::exit::ExitStatus::TABLE {
        assert!(help.contains(&format!("{}  {text}", *exit as u8)), "{help}");
    }
    assert!(
        !help.contains("instance-init"),
        "it is no command for people"
    );
}

#[tokio::test]
async fn the_reference_page_names_every_command_option_and_exit_code() {
    let page = document("cli.md");
    for command in COMMANDS {
        assert!(
            page.contains(&format!("## `nearpath {command}")),
            "{command}"
        );
        let help = CliRun::new(&[command, "--help"])
            .output()
            .await
            .expect(0)
            .out;
        for option in options(&help) {
            assert!(page.contains(&format!("`{option}")), "{command} {option}");
        }
    }
    for (exit, text) in nearpath_cli::exit::ExitStatus::TABLE {
        assert!(
            page.contains(&format!("| {} | {text} |", *exit as u8)),
            "{text}"
        );
    }
}

#[tokio::test]
async fn wrong_usage_exits_with_2() {
    for args in [
        &["frobnicate"] as &[&str],
        &["describe"],
        &["describe", "Echo_1"],
        &["scale", "echo", "many"],
        &["deploy", "echo"],
        &["deploy", "--image", "x"],
        &["rm"],
        &["ls", "-g", "ftp://x"],
        &["ls", "-g", "http://me:secret@127.0.0.1"],
        &["invoke", "echo", "-H", "no"],
        &["invoke", "echo", "-X", "G ET"],
        &["invoke", "echo", "--async"],
        &["logs", "echo", "--since", "soon"],
        &["completion", "cmd"],
    ] {
        let ended = CliRun::new(args).output().await;
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.err);
        assert!(!ended.err.is_empty() && ended.out.is_empty(), "{args:?}");
    }
}

#[tokio::test]
async fn a_missing_gateway_is_reported_with_a_remedy() {
    let ended = CliRun::new(&["ls", "-g", "http://127.0.0.1:1"])
        .output()
        .await
        .expect(3);
    assert!(
        ended.err.contains("no gateway at http://127.0.0.1:1") && ended.err.contains("nearpath up"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn a_rejected_password_is_reported_with_its_origin() {
    let fake = FakeGateway::start(|_, _| (401, "invalid credentials".into())).await;
    let ended = fake.run(&["ls"]).await.expect(5);
    assert!(
        ended.err.contains("401: invalid credentials") && ended.err.contains("NEARPATH_PASSWORD"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn a_response_that_is_not_the_api_is_reported() {
    let fake = FakeGateway::start(|_, _| (200, "<html>".into())).await;
    assert!(
        fake.run(&["ls"])
            .await
            .expect(1)
            .err
            .contains("expected JSON of the gateway's API")
    );
    let strange =
        FakeGateway::start(|_, _| (507, "controller: storage_full: no space".into())).await;
    assert!(
        strange
            .run(&["scale", "f", "1"])
            .await
            .expect(1)
            .err
            .contains("507: controller: storage_full")
    );
}

#[tokio::test]
async fn completion_scripts_contain_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = CliRun::new(&["completion", shell])
            .output()
            .await
            .expect(0)
            .out;
        assert!(
            COMMANDS.iter().all(|command| script.contains(command)),
            "{shell}"
        );
    }
}

#[tokio::test]
async fn doctor_reports_effects_and_remedies() {
    let folder = tempfile::tempdir().unwrap();
    let watchdog = env!("CARGO_BIN_EXE_nearpath"); // any program that exists
    let data_dir = folder.path().join("new");
    let args = ["doctor", "--json", "--data-dir", data_dir.to_str().unwrap()];
    let whole = CliRun::new(&args)
        .env("NEARPATH_WATCHDOG", watchdog)
        .output()
        .await
        .expect(0)
        .json();
    assert_eq!(whole["usable"], true);
    assert_eq!(check(&whole, "watchdog")["status"], "ok");
    assert!(!data_dir.exists(), "doctor changes nothing");
    let allowed: u64 = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let buffer = check(&whole, "UDP receive buffer");
    assert_eq!(buffer["status"] == "ok", allowed >= 4 << 20, "{buffer}");
    assert_eq!(buffer["remedy"].is_string(), allowed < 4 << 20, "{buffer}");
    assert!(
        check(&whole, "UDP GSO")["found"].is_string()
            && check(&whole, "UDP GRO")["found"].is_string()
    );
    let possible = nearpath_kernel::probe::check_interception_support().is_ok();
    assert_eq!(
        check(&whole, "egress")["found"]
            .as_str()
            .unwrap()
            .contains("proxy alone"),
        !possible,
        "{whole}"
    );
    for name in [
        "seccomp listeners",
        "initial congestion windows",
        "congestion window after idle",
        "local ports",
    ] {
        let found = check(&whole, name);
        assert_eq!(
            found["status"] != "ok",
            found["remedy"].is_string() && found["effect"].is_string(),
            "{found}"
        );
    }
    let broken = CliRun::new(&args)
        .env("NEARPATH_WATCHDOG", "/nonexistent")
        .output()
        .await
        .expect(1)
        .json();
    assert_eq!(broken["usable"], false);
    let watchdog = check(&broken, "watchdog");
    assert_eq!(watchdog["status"], "fail");
    assert!(watchdog["remedy"].is_string() && watchdog["effect"].is_string());
    let page = CliRun::new(&["doctor"])
        .env("NEARPATH_WATCHDOG", "/nonexistent")
        .output()
        .await
        .expect(1)
        .out;
    assert!(
        page.contains("fail  watchdog") && page.contains("remedy: "),
        "{page}"
    );
}

#[tokio::test]
async fn doctor_searches_python_where_instances_do() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("python3");
    std::fs::write(&own, "").unwrap();
    let run =
        CliRun::new(&["doctor", "--json"]).env("NEARPATH_WATCHDOG", env!("CARGO_BIN_EXE_nearpath"));
    let whole = run
        .env("PATH", folder.path().to_str().unwrap())
        .output()
        .await
        .json();
    assert_ne!(
        check(&whole, "python3")["found"],
        own.to_str().unwrap(),
        "no instance sees this one"
    );
}

fn check(findings: &serde_json::Value, name: &str) -> serde_json::Value {
    findings["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == name)
        .unwrap()
        .clone()
}

/// The example of the reference page is read by the very code that it documents.
#[tokio::test]
async fn the_example_of_the_stack_page_is_valid() {
    let page = document("stack.md");
    let example = page
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("an example");
    let folder = tempfile::tempdir().unwrap();
    for name in ["frontend", "cart"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    std::fs::write(
        folder.path().join("common.yml"),
        "environment:\n  LOG: info\n",
    )
    .unwrap();
    std::fs::write(folder.path().join("stack.yml"), example).unwrap();
    let fake = FakeGateway::start(|_, _| (202, json!({}))).await;
    let url = format!("http://{}", fake.addr);
    let run = CliRun::new(&["deploy", "--no-wait"])
        .env("OPENFAAS_URL", &url)
        .current_dir(folder.path())
        .output()
        .await
        .expect(0);
    assert_eq!(run.err, "", "no warning in what is shown as an example");
    let sent: Vec<Value> = fake
        .requests()
        .iter()
        .map(|request| request.json())
        .collect();
    assert_eq!(
        sent.iter()
            .map(|spec| spec["service"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["frontend", "cart", "ads"]
    );
    assert_eq!(sent[0]["annotations"]["nearpath.io/calls"], "cart,ads");
}
