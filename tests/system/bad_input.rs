//! Bad input gets a clear error and does no harm.

use http::{Method, StatusCode};
use nearpath_testkit::within;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{TestServer, echo_function};

async fn send_raw(server: &TestServer, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn names_against_rfc_1035_are_refused_by_the_server() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let answer = server
        .send_request(
            Method::POST,
            "/system/functions",
            json!({ "service": "Echo_1", "image": "x" }).to_string(),
        )
        .await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert!(String::from_utf8_lossy(answer.body()).contains("Echo_1"));
}

#[tokio::test]
async fn one_request_never_becomes_two() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    let smuggled = b"POST /function/echo HTTP/1.1\r\nHost: t\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /function/echo HTTP/1.1\r\nHost: t\r\n\r\n";
    let answer = send_raw(&server, smuggled).await;
    assert_eq!(
        answer.matches("HTTP/1.1 ").count(),
        1,
        "both framings at once end the connection: {answer}"
    );
    let differing = b"POST /function/echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx";
    assert!(
        send_raw(&server, differing)
            .await
            .starts_with("HTTP/1.1 400")
    );
}

#[tokio::test]
async fn header_bombs_are_refused_and_others_go_on() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    let bomb = format!(
        "GET /function/echo HTTP/1.1\r\nHost: t\r\nX-Bomb: {}\r\n\r\n",
        "a".repeat(2 << 20)
    );
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    // refused before all is read, so the write may fail
    let _ = stream.write_all(bomb.as_bytes()).await;
    let mut answer = String::new();
    let _ = within(stream.read_to_string(&mut answer)).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    assert_eq!(
        server.call_function("echo", "fine").await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_full_disk_refuses_orders_and_recovers() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mounted = SmallDisk::mount(folder.path());
    let functions = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&echo_function(functions.path(), "echo"))
        .await;
    let ballast = folder.path().join("ballast");
    let _ = std::fs::write(&ballast, vec![0u8; 64 << 20]); // stops when the disk is full
    let mut refused = None;
    for n in 0..200 {
        let image = format!("file://{}", functions.path().display());
        let spec = json!({ "service": format!("more-{n}"), "image": image, "annotations": { "pad": "x".repeat(4_000) } });
        let answer = server
            .send_request(Method::POST, "/system/functions", spec.to_string())
            .await;
        if !answer.status().is_success() {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a full disk must refuse an order");
    assert_eq!(
        refused.status(),
        StatusCode::INSUFFICIENT_STORAGE,
        "{:?}",
        refused.body()
    );
    assert_eq!(
        server
            .call_function("echo", "goes on")
            .await
            .body()
            .as_ref(),
        b"goes on"
    );
    std::fs::remove_file(&ballast).unwrap();
    server
        .deploy(&echo_function(functions.path(), "after"))
        .await;
    drop(server);
    drop(mounted);
}

#[tokio::test]
async fn a_killed_server_starts_on_a_full_disk_and_removes_functions() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mounted = SmallDisk::mount(folder.path());
    let functions = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    for name in ["echo", "spare"] {
        server
            .deploy_ready(&echo_function(functions.path(), name))
            .await;
    }
    server.end_with(rustix::process::Signal::KILL);
    let ballast = folder.path().join("ballast");
    let _ = std::fs::write(&ballast, vec![0_u8; 64 << 20]); // stops when the disk is full

    let server = TestServer::start_in(folder.path(), &[]).await;
    server.wait_available("echo", 1).await;
    let answer = server.call_function("echo", "goes on").await;
    assert_eq!(answer.body().as_ref(), b"goes on");
    let body = r#"{"functionName":"spare"}"#.to_owned();
    let removed = server
        .send_request(Method::DELETE, "/system/functions", body)
        .await;
    assert_eq!(removed.status(), StatusCode::OK, "{removed:?}");
    drop(server);
    drop(mounted);
}

/// A tmpfs of 16 MiB on a folder, unmounted when dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &std::path::Path) -> Self {
        rustix::mount::mount(
            "tmpfs",
            at,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            // A data directory is its owner's: tmpfs(5) makes it world-writable otherwise.
            Some(c"size=16m,mode=0700"),
        )
        .unwrap();
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn too_few_file_descriptors_are_named_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(nearpath_testkit::program("nearpath"));
    let mut server = TestServer::spawn_with(command, folder.path(), &[]);
    assert!(!server.wait_exit().await.success());
    // A thread collects the output: it may come after the end of the process.
    nearpath_testkit::eventually("the log names the limit", async || {
        let log = server.log();
        log.contains("the limit is 64") && log.contains("ulimit -n")
    })
    .await;
}

#[tokio::test]
async fn a_machine_without_cgroups_is_announced_without_them() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("unshare");
    command
        .args([
            "-m",
            "sh",
            "-c",
            "umount -R -l /sys/fs/cgroup && exec \"$0\" \"$@\"",
        ])
        .arg(nearpath_testkit::program("nearpath"));
    let mut server = TestServer::spawn_with(command, folder.path(), &[]);
    server.wait_ready().await;
    // The banner comes in several writes.
    let announced = async || server.log().contains("no cgroups for memory, cpu, pids");
    nearpath_testkit::eventually("it says so", announced).await;
}

#[tokio::test]
async fn out_of_file_descriptors_is_survived() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    // inherited by the child
    let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit {
        current: Some(96),
        maximum,
    };
    let pid = rustix::process::Pid::from_raw(server.pid() as i32).unwrap();
    let before =
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(TcpStream::connect(server.addr).await);
    }
    drop(crowd);
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, before).unwrap();
    assert_eq!(
        server.call_function("echo", "back").await.body().as_ref(),
        b"back",
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn the_command_line_reports_that_a_body_is_too_large() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut small = echo_function(&server.data_dir, "small");
    small["annotations"] = json!({ "nearpath.io/max-body": "1Ki" });
    server.deploy_ready(&small).await;
    let body = server.data_dir.join("body");
    std::fs::write(&body, vec![b'x'; 32 << 20]).unwrap();
    let invoke = tokio::process::Command::new(nearpath_testkit::program("nearpath"))
        .args(["invoke", "small", "-g", &format!("http://{}", server.addr)])
        .args(["-d", &format!("@{}", body.display())])
        .output();
    let run = within(invoke).await.unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(8), "{text}");
    assert!(text.contains("413: gateway: body_too_large"), "{text}");
}
