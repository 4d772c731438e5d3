//! One chain, a function per language: Rust calls C, C calls Python, Python calls Go, Go calls Node, all through memory.

use std::path::Path;

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, program};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::house::{House, send};

/// In the order of the chain.
const LANGUAGES: [&str; 5] = ["rust", "c", "python", "go", "node"];

/// Puts a function together as its user would, or says which tool is missing.
async fn build(language: &str, folder: &Path) -> Result<(), String> {
    let programs = program("chain-rust");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/chain/build");
    let mut build = Command::new(script);
    build.arg(language).arg(folder).arg(programs.parent().unwrap()).kill_on_drop(true);
    let built = build.output().await.unwrap();
    match built.status.code() {
        Some(0) => Ok(()),
        Some(77) => Err(String::from_utf8_lossy(&built.stdout).trim().to_owned()),
        _ => panic!("{language}: {}", String::from_utf8_lossy(&built.stderr)),
    }
}

fn command(language: &str) -> &'static str {
    match language {
        "python" => "python3 chain.py",
        "node" => "node chain.js",
        _ => "./chain",
    }
}

fn function(name: &str, folder: &Path, next: Option<&str>) -> Value {
    let mut spec = json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": command(name),
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000", "PORT": "5000" },
        "annotations": { "nearpath.io/chain": "languages", "nearpath.io/calls": next.unwrap_or_default() },
    });
    if let Some(next) = next {
        spec["envVars"]["NEXT"] = json!(next);
    }
    spec
}

/// What the chain says when it is entered at `name`, and which path the gateway took.
async fn ask(house: &House, name: &str) -> (String, String) {
    let request = Request::builder().method(Method::POST).uri(format!("/function/{name}"));
    let request = request.header("host", "localhost").header("x-nearpath-path", "?");
    let answer = send(house.addr, request.body(Full::default()).unwrap()).await.unwrap();
    let path = answer.headers().get("x-nearpath-path").map_or("", |path| path.to_str().unwrap()).to_owned();
    (path, String::from_utf8_lossy(answer.body()).into_owned())
}

#[tokio::test]
async fn a_chain_of_five_languages_goes_through_memory_on_every_hop() {
    nearpath_testkit::need_root!();
    let home = tempfile::tempdir().unwrap();
    let house = House::start().await;
    let mut said = String::new();
    for (at, language) in LANGUAGES.iter().enumerate().rev() {
        let folder = home.path().join(language);
        if let Err(why) = build(language, &folder).await {
            nearpath_testkit::skip!("{why}");
        }
        let next = LANGUAGES.get(at + 1).copied();
        house.deploy_ready(&function(language, &folder, next)).await;
        said = next.map_or((*language).to_owned(), |_| format!("{language} -shm-> {said}"));
        let wanted = ("shm".to_owned(), said.clone());
        eventually(&format!("it says {said}"), async || ask(&house, language).await == wanted).await;
    }
    assert_eq!(said, "rust -shm-> c -shm-> python -shm-> go -shm-> node");
}
