//! One chain, a function per language: Rust calls C, C calls Python, Python calls Go, Go calls Node, all through memory.

use std::path::{Path, PathBuf};

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, program};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::house::{House, send};

/// In the order of the chain.
const LANGUAGES: [&str; 5] = ["rust", "c", "python", "go", "node"];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn copy(from: PathBuf, to: PathBuf) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            copy(entry.path(), to.join(entry.file_name()));
        }
    }
}

/// Runs a compiler, or says why it cannot be run.
async fn compile(command: &mut Command) -> Result<(), String> {
    let name = command.as_std().get_program().display().to_string();
    let built = command.kill_on_drop(true).output().await.map_err(|error| format!("{name} cannot be run: {error}"))?;
    assert!(built.status.success(), "{name}: {}", String::from_utf8_lossy(&built.stderr));
    Ok(())
}

/// Puts a function together as its user would, and gives the command that runs it.
async fn build(language: &str, folder: &Path) -> Result<&'static str, String> {
    let chain = source("examples/chain").join(language);
    match language {
        "rust" => {
            copy(program("chain-rust"), folder.join("chain"));
            Ok("./chain")
        }
        "c" => {
            let mut gcc = Command::new("gcc");
            gcc.arg("-I").arg(source("sdk/c/include")).arg(chain.join("chain.c")).arg(program("libnearpath_c.a"));
            compile(gcc.args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(folder.join("chain"))).await?;
            Ok("./chain")
        }
        "python" => {
            compile(Command::new("python3").arg("--version")).await?;
            copy(chain.join("chain.py"), folder.join("chain.py"));
            copy_all(&source("sdk/python/nearpath"), &folder.join("nearpath"));
            copy(program("lib_nearpath.so"), folder.join("nearpath/_nearpath.abi3.so"));
            Ok("python3 chain.py")
        }
        "go" => {
            let mut go = Command::new("go");
            go.args(["build", "-o"]).arg(folder.join("chain")).arg(".").current_dir(chain).env("CGO_ENABLED", "0");
            compile(&mut go).await?;
            Ok("./chain")
        }
        _ => {
            compile(Command::new("node").arg("--version")).await?;
            copy(chain.join("chain.js"), folder.join("chain.js"));
            let package = folder.join("node_modules/nearpath");
            copy_all(&source("sdk/node"), &package);
            copy_all(&source("sdk/node/lib"), &package.join("lib"));
            copy(program("libnearpath_node_sdk.so"), package.join("nearpath.node"));
            Ok("node chain.js")
        }
    }
}

fn function(name: &str, folder: &Path, command: &str, next: Option<&str>) -> Value {
    let mut spec = json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": command,
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
        std::fs::create_dir(&folder).unwrap();
        let command = match build(language, &folder).await {
            Ok(command) => command,
            Err(why) => nearpath_testkit::skip!("{why}"),
        };
        let next = LANGUAGES.get(at + 1).copied();
        house.deploy_ready(&function(language, &folder, command, next)).await;
        said = next.map_or((*language).to_owned(), |_| format!("{language} -shm-> {said}"));
        let wanted = ("shm".to_owned(), said.clone());
        eventually(&format!("it says {said}"), async || ask(&house, language).await == wanted).await;
    }
    assert_eq!(said, "rust -shm-> c -shm-> python -shm-> go -shm-> node");
}
