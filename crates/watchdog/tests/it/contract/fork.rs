//! Modes `streaming` and `serializing`.

use std::process::Command;

use http::{Request, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use nearpath_testkit::{eventually, within};
use tokio::sync::mpsc;

use crate::contract::support::{
    AnyError, WatchdogProcess, command_with_oom_counter, full, send, text,
};

/// A command that writes the number of a background process to `$TMPDIR/pid` and waits for it.
const BACKGROUND_COMMAND: (&str, &str) = (
    "fprocess",
    "sh -c 'sleep 1000 & echo $! >$TMPDIR/pid; wait'",
);

/// The background process of [`BACKGROUND_COMMAND`] is gone.
async fn wait_group_gone(watchdog: &WatchdogProcess) {
    let pid = std::fs::read_to_string(watchdog.temp.path().join("pid")).unwrap();
    eventually("the group is killed", async || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    })
    .await;
}

async fn wait_group_running(watchdog: &WatchdogProcess) {
    let path = watchdog.temp.path().join("pid");
    eventually("the process starts", async || {
        std::fs::read_to_string(&path).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
}

#[tokio::test]
async fn streaming_is_the_default_and_echoes() {
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat")]);
    let big = "x".repeat(1 << 20);
    for body in ["hello", "", &big] {
        assert_eq!(watchdog.post("/", body).await, (200, body.to_owned()));
    }
    let response = send(watchdog.addr, Request::post("/").body(full("a")).unwrap())
        .await
        .unwrap();
    assert_eq!(
        response.headers()["content-type"],
        "application/octet-stream"
    );
    assert!(!response.headers().contains_key("x-duration-seconds"));
    let http2 = Request::post("/")
        .version(Version::HTTP_2)
        .body(full("two"))
        .unwrap();
    assert_eq!(
        text(send(watchdog.addr, http2).await.unwrap()).await,
        (200, "two".to_owned())
    );
}

#[tokio::test]
async fn streaming_answers_before_the_request_has_ended() {
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat"), ("exec_timeout", "0")]);
    let (sender, receiver) = mpsc::channel::<Result<Frame<bytes::Bytes>, AnyError>>(1);
    let body = StreamBody::new(futures_util::stream::unfold(
        receiver,
        async |mut receiver| receiver.recv().await.map(|frame| (frame, receiver)),
    ));
    sender.send(Ok(Frame::data("one".into()))).await.unwrap();
    let response = send(
        watchdog.addr,
        Request::post("/").body(Box::pin(body)).unwrap(),
    )
    .await
    .unwrap();
    let mut body = response.into_body();
    assert_eq!(
        within(body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "one"
    );
    sender.send(Ok(Frame::data("two".into()))).await.unwrap();
    assert_eq!(
        within(body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "two"
    );
    drop(sender);
    assert!(within(body.frame()).await.is_none());
}

#[tokio::test]
async fn content_type_is_the_variables() {
    for mode in ["streaming", "serializing"] {
        let watchdog = WatchdogProcess::start(&[
            ("mode", mode),
            ("fprocess", "cat"),
            ("content_type", "text/html"),
        ]);
        let response = send(watchdog.addr, Request::post("/").body(full("a")).unwrap())
            .await
            .unwrap();
        assert_eq!(response.headers()["content-type"], "text/html");
    }
}

#[tokio::test]
async fn the_request_is_in_variables_and_nearpaths_own_are_not() {
    for mode in ["streaming", "serializing"] {
        let own = [
            ("NEARPATH_SECRET", "x"),
            ("db", "postgres"),
            ("mode", mode),
            ("fprocess", "env"),
        ];
        let watchdog = WatchdogProcess::start(&own);
        let request = Request::put("/a/b?c=d")
            .header("X-Call-Id", "7")
            .body(full("abc"))
            .unwrap();
        let (_, env) = text(send(watchdog.addr, request).await.unwrap()).await;
        let lines: Vec<_> = env.lines().collect();
        for line in [
            "Http_Method=PUT",
            "Http_Path=/a/b",
            "Http_Query=c=d",
            "Http_Content_Length=3",
            "Http_X_Call_Id=7",
            "Http_Host=function",
            "db=postgres",
        ] {
            assert!(lines.contains(&line), "{mode}: {line} is not in {env}");
        }
        assert!(!env.contains("NEARPATH"), "{env}");
    }
}

#[tokio::test]
async fn a_chunked_request_says_so() {
    let watchdog = WatchdogProcess::start(&[("fprocess", "env")]);
    let body = StreamBody::new(futures_util::stream::iter([Ok::<_, AnyError>(
        Frame::data(bytes::Bytes::from("x")),
    )]));
    let (_, env) = text(
        send(watchdog.addr, Request::post("/").body(body).unwrap())
            .await
            .unwrap(),
    )
    .await;
    assert!(
        env.contains("Http_Transfer_Encoding=chunked") && !env.contains("Http_Content_Length"),
        "{env}"
    );
}

#[tokio::test]
async fn no_descriptor_leaks_into_the_process() {
    let list = || {
        Command::new("ls")
            .arg("/proc/self/fd")
            .output()
            .unwrap()
            .stdout
    };
    let without = String::from_utf8(list()).unwrap(); // what this test itself was started with
    let watchdog = WatchdogProcess::start(&[("fprocess", "ls /proc/self/fd")]);
    assert_eq!(watchdog.get("/").await, (200, without));
}

#[tokio::test]
async fn a_process_that_fails_before_any_byte_is_a_500() {
    for mode in ["streaming", "serializing"] {
        let watchdog = WatchdogProcess::start(&[
            ("mode", mode),
            ("fprocess", "sh -c 'echo broken >&2; exit 3'"),
        ]);
        let response = send(watchdog.addr, Request::get("/").body(full("")).unwrap())
            .await
            .unwrap();
        assert_eq!(response.headers()["x-openfaas-internal"], "of-watchdog");
        assert_eq!(response.headers()["x-nearpath-reason"], "function_failed");
        let (status, body) = text(response).await;
        assert_eq!(status, 500);
        assert!(body.contains("exit code 3"), "{body}");
        watchdog.stderr.wait_for("stderr: broken");
    }
}

#[tokio::test]
async fn a_server_in_place_of_a_handler_is_named_with_its_port() {
    for mode in ["streaming", "serializing"] {
        let port = nearpath_testkit::free_addr().port();
        let server = format!("python3 -m http.server {port} --bind 127.0.0.1");
        let watchdog = WatchdogProcess::start(&[
            ("mode", mode),
            ("fprocess", &server),
            ("exec_timeout", "60s"),
        ]);
        let response = send(watchdog.addr, Request::get("/").body(full("")).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["x-nearpath-reason"], "function_failed");
        let (_, body) = text(response).await;
        assert!(body.contains("mode is not http"), "{body}");
        let advice = format!("set mode: http and upstream_url: http://127.0.0.1:{port}");
        watchdog.stderr.wait_for(&advice);
        eventually("the server is killed", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_err()
        })
        .await;
    }
}

/// A server below a shell, after a banner on stdout. It may be a helper of a handler, so its calls
/// go on until their time limit.
#[tokio::test]
async fn a_server_with_a_banner_below_a_shell_is_named_too() {
    for mode in ["streaming", "serializing"] {
        let port = nearpath_testkit::free_addr().port();
        // The second call's server finds its port taken, and the call goes on all the same.
        let server = format!(
            "sh -c 'echo starting; python3 -m http.server {port} --bind 127.0.0.1; sleep 60'"
        );
        let watchdog = WatchdogProcess::start(&[
            ("mode", mode),
            ("fprocess", &server),
            ("exec_timeout", "60s"),
        ]);
        let request = Request::get("/").body(full("")).unwrap();
        let first = tokio::spawn(send(watchdog.addr, request));
        let advice = format!("set mode: http and upstream_url: http://127.0.0.1:{port}");
        eventually("the server is named", async || {
            watchdog.read_notes().contains(&advice)
        })
        .await;
        watchdog.stderr.wait_for(&advice);
        let request = Request::get("/").header("x-timeout", "300ms");
        let response = send(watchdog.addr, request.body(full("")).unwrap()).await;
        match mode {
            // The banner may be the beginning of an answer.
            "streaming" => drop(response),
            _ => {
                let (status, body) = text(response.unwrap()).await;
                assert_eq!(status, 504);
                assert!(body.contains("if that is its server"), "{body}");
            }
        }
        let notes = watchdog.read_notes();
        let remarks = notes.lines().filter(|line| line.starts_with("remark "));
        assert_eq!(remarks.count(), 1, "one for the node: {notes}");
        first.abort();
    }
}

/// The handler ends when its helper was noticed.
#[tokio::test]
async fn a_handler_with_a_helper_that_nobody_connects_to_is_not_killed() {
    let port = nearpath_testkit::free_addr().port();
    let helper = format!("python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1");
    let handler = "until grep -q ^remark $TMPDIR/notes; do sleep 0.1; done; kill $!; echo done";
    let command = format!("sh -c '{helper} & {handler}'");
    let watchdog = WatchdogProcess::start(&[("fprocess", &command), ("exec_timeout", "60s")]);
    let (status, body) = watchdog.get("/").await;
    assert_eq!((status, body.as_str()), (200, "done\n"));
}

/// The kernel's counter is a file here, which the process changes before it ends.
#[tokio::test]
async fn a_kill_for_lack_of_memory_is_named_and_another_is_not() {
    let of_memory = "printf \"oom_kill 1\\n\" >$TMPDIR/oom";
    for (prelude, end, is_memory) in [
        ("true", "kill -9 $$", false),
        (of_memory, "kill -9 $$", true),
        // As a shell reports its killed child.
        (of_memory, "exit 137", true),
        (of_memory, "exit 3", false),
    ] {
        let command = format!("sh -c '{prelude}; {end}'");
        let watchdog = WatchdogProcess::spawn(|temp| {
            command_with_oom_counter(temp, &[("fprocess", &command)])
        });
        let (status, body) = watchdog.post("/", "").await;
        assert_eq!(status, 500, "{body}");
        assert_eq!(
            body.contains("needed more memory"),
            is_memory,
            "{command}: {body}"
        );
        assert_eq!(
            body.contains("limits.memory"),
            is_memory,
            "{command}: {body}"
        );
        let reported = watchdog.read_notes().contains("\noom_kill\n");
        assert_eq!(reported, is_memory, "{command}");
    }
}

#[tokio::test]
async fn a_process_that_fails_after_some_bytes_breaks_the_answer() {
    for command in ["sh -c 'echo half; exit 3'", "sh -c 'echo half; kill -9 $$'"] {
        let watchdog = WatchdogProcess::start(&[("fprocess", command)]);
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let request = Request::get("/").version(version).body(full("")).unwrap();
            let response = send(watchdog.addr, request).await.unwrap();
            assert_eq!(response.status(), 200);
            within(response.into_body().collect())
                .await
                .expect_err("half an answer must not look whole");
        }
    }
}

#[tokio::test]
async fn a_program_that_is_gone_is_a_500_that_names_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("answer");
    std::fs::write(&program, "#!/bin/sh\ncat\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let watchdog = WatchdogProcess::start(&[("fprocess", program.to_str().unwrap())]);
    std::fs::remove_file(&program).unwrap();
    let (status, body) = watchdog.get("/").await;
    assert_eq!(status, 500);
    assert!(
        body.contains("answer") && body.contains("function_process"),
        "{body}"
    );
}

#[test]
fn a_program_that_is_missing_stops_the_start() {
    let temp = tempfile::tempdir().unwrap();
    for program in ["/no/such/program", "no-such-program-in-path", "/etc/passwd"] {
        let out = crate::contract::support::watchdog_command(&temp, &[("fprocess", program)])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && stderr.contains(program),
            "{program}: {stderr}"
        );
    }
}

#[tokio::test]
async fn exec_timeout_kills_the_process_group() {
    for mode in ["streaming", "serializing"] {
        let watchdog = WatchdogProcess::start(&[
            ("mode", mode),
            BACKGROUND_COMMAND,
            ("exec_timeout", "300ms"),
        ]);
        let response = send(watchdog.addr, Request::get("/").body(full("")).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), 504);
        assert_eq!(response.headers()["x-nearpath-reason"], "exec_timeout");
        wait_group_gone(&watchdog).await;
    }
}

#[tokio::test]
async fn exec_timeout_breaks_an_answer_that_has_begun() {
    let watchdog = WatchdogProcess::start(&[
        ("fprocess", "sh -c 'echo a; exec sleep 1000'"),
        ("exec_timeout", "300ms"),
    ]);
    let response = send(watchdog.addr, Request::get("/").body(full("")).unwrap())
        .await
        .unwrap();
    within(response.into_body().collect())
        .await
        .expect_err("cut at the deadline");
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_process_group() {
    let watchdog = WatchdogProcess::start(&[BACKGROUND_COMMAND]);
    let addr = watchdog.addr;
    let call =
        tokio::spawn(async move { send(addr, Request::get("/").body(full("")).unwrap()).await });
    wait_group_running(&watchdog).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    // The connection's task in `send` ends with its sender, and with it the connection.
    wait_group_gone(&watchdog).await;
}

#[tokio::test]
async fn a_request_that_breaks_off_never_looks_whole_to_the_process() {
    use tokio::io::AsyncWriteExt;
    let command = "sh -c 'echo $$ >$TMPDIR/pid; cat >/dev/null; touch $TMPDIR/whole'";
    let watchdog = WatchdogProcess::start(&[("fprocess", command)]);
    let mut stream = tokio::net::TcpStream::connect(watchdog.addr).await.unwrap();
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: f\r\nContent-Length: 100\r\n\r\nhalf")
        .await
        .unwrap();
    wait_group_running(&watchdog).await;
    drop(stream);
    wait_group_gone(&watchdog).await;
    assert!(!watchdog.temp.path().join("whole").exists());
}

#[tokio::test]
async fn a_process_that_does_not_read_its_request_is_no_fault() {
    for mode in ["streaming", "serializing"] {
        let watchdog = WatchdogProcess::start(&[("mode", mode), ("fprocess", "echo done")]);
        assert_eq!(
            watchdog.post("/", &"x".repeat(1 << 18)).await,
            (200, "done\n".to_owned())
        );
    }
}

#[tokio::test]
async fn serializing_knows_its_length_and_has_a_limit() {
    let watchdog = WatchdogProcess::start(&[
        ("mode", "serializing"),
        ("fprocess", "cat"),
        ("max_body", "1k"),
    ]);
    let response = send(
        watchdog.addr,
        Request::post("/").body(full("hello")).unwrap(),
    )
    .await
    .unwrap();
    assert_eq!(response.headers()["content-length"], "5");
    let (status, body) = watchdog.post("/", &"x".repeat(1001)).await;
    assert_eq!(status, 413);
    assert!(body.contains("max_body"), "{body}");
    let watchdog = WatchdogProcess::start(&[
        ("mode", "serializing"),
        ("fprocess", "head -c 2000 /dev/zero"),
        ("max_body", "1k"),
    ]);
    assert_eq!(watchdog.get("/").await.0, 500);
}

#[tokio::test]
async fn a_background_process_may_outlive_its_call() {
    let command = "sh -c '(sleep 0.2; touch $TMPDIR/later) >/dev/null 2>&1 & echo now'";
    let watchdog = WatchdogProcess::start(&[("fprocess", command)]);
    assert_eq!(watchdog.get("/").await, (200, "now\n".to_owned()));
    let later = watchdog.temp.path().join("later");
    eventually("the background process ends its work", async || {
        later.exists()
    })
    .await;
}
