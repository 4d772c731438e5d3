//! A chain with a function in each language: Rust calls C, C calls Python, Python calls Go, Go
//! calls Node, all through memory.

use std::path::Path;

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, program};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::test_server::{TestServer, send_request};

/// Languages in the order of the chain.
const LANGUAGES: [&str; 5] = ["rust", "c", "python", "go", "node"];

/// Builds a function as its user would, or returns the missing tool.
async fn build_function(language: &str, folder: &Path) -> Result<(), String> {
    let programs = program("chain-rust");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/chain/build");
    let mut build = Command::new(script);
    build
        .arg(language)
        .arg(folder)
        .arg(programs.parent().unwrap())
        .kill_on_drop(true);
    let built = build.output().await.unwrap();
    match built.status.code() {
        Some(0) => Ok(()),
        Some(77) => Err(String::from_utf8_lossy(&built.stdout).trim().to_owned()),
        _ => panic!("{language}: {}", String::from_utf8_lossy(&built.stderr)),
    }
}

fn build_command(language: &str) -> &'static str {
    match language {
        "python" => "python3 chain.py",
        "node" => "node chain.js",
        _ => "./chain",
    }
}

fn sdk_function(name: &str, folder: &Path, next: Option<&str>) -> Value {
    let mut spec = json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": build_command(name),
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000", "PORT": "5000" },
        "annotations": { "nearpath.io/chain": "languages", "nearpath.io/calls": next.unwrap_or_default() },
    });
    if let Some(next) = next {
        spec["envVars"]["NEXT"] = json!(next);
    }
    spec
}

/// Response of the chain from `name` on, and the gateway's path.
async fn call_traced(server: &TestServer, name: &str) -> (String, String) {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/function/{name}"));
    let request = request
        .header("host", "localhost")
        .header("x-nearpath-path", "?");
    let answer = send_request(server.addr, request.body(Full::default()).unwrap())
        .await
        .unwrap();
    let path = answer
        .headers()
        .get("x-nearpath-path")
        .map_or("", |path| path.to_str().unwrap())
        .to_owned();
    (path, String::from_utf8_lossy(answer.body()).into_owned())
}

#[tokio::test]
async fn a_chain_of_five_languages_goes_through_memory_on_every_hop() {
    nearpath_testkit::need_root!();
    let home_dir = tempfile::tempdir().unwrap();
    let server = TestServer::start().await;
    let mut reply = String::new();
    for (at, language) in LANGUAGES.iter().enumerate().rev() {
        let folder = home_dir.path().join(language);
        if let Err(why) = build_function(language, &folder).await {
            nearpath_testkit::skip!("{why}");
        }
        let next = LANGUAGES.get(at + 1).copied();
        server
            .deploy_ready(&sdk_function(language, &folder, next))
            .await;
        reply = next.map_or((*language).to_owned(), |_| {
            format!("{language} -shm-> {reply}")
        });
        let wanted = ("shm".to_owned(), reply.clone());
        eventually(&format!("it says {reply}"), async || {
            call_traced(&server, language).await == wanted
        })
        .await;
    }
    assert_eq!(reply, "rust -shm-> c -shm-> python -shm-> go -shm-> node");
}
