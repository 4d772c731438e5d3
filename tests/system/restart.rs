//! Orders that were acknowledged are kept, and a second house does not move in.

use std::process::Command;

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, program};
use rustix::process::Signal;

use crate::house::{House, echo};

#[tokio::test]
async fn what_was_acknowledged_before_kill_nine_is_there_afterwards() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut house = House::start_in(folder.path(), &[]).await;
    for n in 0..10 {
        house.deploy(&echo(folder.path(), &format!("echo-{n}"))).await;
    }
    house.end(Signal::KILL);
    let again = House::start_in(folder.path(), &[]).await;
    let list = again.ask(Method::GET, "/system/functions", "").await;
    let list: Vec<serde_json::Value> = serde_json::from_slice(list.body()).unwrap();
    assert_eq!(list.len(), 10);
}

#[tokio::test]
async fn a_second_house_on_the_same_folder_is_refused() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    house.deploy_ready(&echo(&house.data_dir, "echo")).await;
    let mut second = House::spawn(Command::new(program("nearpath")), &house.data_dir, &[]);
    let status = nearpath_testkit::within(async { second.wait().await }).await;
    assert_eq!(status.code(), Some(1));
    let why = "it says who has the folder";
    eventually(why, async || [&house.pid().to_string(), "--data-dir"].iter().all(|word| second.log().contains(*word)))
        .await; // its last words may be read after its end
    assert_eq!(house.call("echo", "still here").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    nearpath_testkit::need_root!();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let out = Command::new(program("nearpath"))
        .args(["up", "--insecure", "--listen", &addr, "--admin-listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains(&addr) && said.contains("in use"), "{said}");
}
