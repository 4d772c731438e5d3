//! `invoke`: the request that reaches the function, and the response.

use std::future::Future;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fake_gateway::{CliOutput, CliRun, FakeGateway};

#[tokio::test]
async fn request_and_response_bodies_pass_unchanged() {
    let fake = FakeGateway::start(|request, _| (200, request.body.clone().into())).await;
    let run = fake
        .run(&["invoke", "echo", "-d", "hello\n"])
        .await
        .expect(0);
    assert_eq!(run.out, "hello\n");
    let request = &fake.requests()[0];
    assert_eq!(request.line, "POST /function/echo");
    assert_eq!(request.headers["content-length"], "6");
    assert!(
        !request.headers.contains_key("authorization"),
        "a function has no business with the password"
    );
}

#[tokio::test]
async fn every_option_reaches_the_function() {
    let fake = FakeGateway::start(|_, _| (200, "".into())).await;
    let args = [
        "invoke",
        "echo.dev",
        "-X",
        "PATCH",
        "--path",
        "/a/b",
        "--query",
        "k=ä &",
        "--query",
        "x=1",
        "-H",
        "X-One: 1",
        "-H",
        "X-Two=2",
        "-H",
        "content-type: application/json",
        "-d",
        "{}",
    ];
    fake.run(&args).await.expect(0);
    let request = &fake.requests()[0];
    assert_eq!(
        request.line,
        "PATCH /function/echo.dev/a/b?k=%C3%A4%20%26&x=1"
    );
    assert_eq!(
        (&request.headers["x-one"], &request.headers["x-two"]),
        (&"1".parse().unwrap(), &"2".parse().unwrap())
    );
    assert_eq!(request.headers["content-type"], "application/json");
}

#[tokio::test]
async fn standard_input_and_files_are_bodies() {
    let fake = FakeGateway::start(|request, _| (200, request.body.clone().into())).await;
    let url = format!("http://{}", fake.addr);
    let big = vec![b'x'; 1 << 20];
    let run = CliRun::new(&["invoke", "echo", "-g", &url])
        .stdin(&big)
        .output()
        .await
        .expect(0);
    assert_eq!(run.out.len(), big.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file").unwrap();
    let data = format!("@{}", file.path().display());
    assert_eq!(
        fake.run(&["invoke", "echo", "-d", &data])
            .await
            .expect(0)
            .out,
        "from a file"
    );
    fake.run(&["invoke", "echo", "-d", "@/nonexistent/x"])
        .await
        .expect(2);
    assert_eq!(
        fake.run(&["invoke", "echo", "-X", "GET"])
            .await
            .expect(0)
            .out,
        ""
    );
}

#[tokio::test]
async fn the_exit_code_distinguishes_platform_and_function() {
    let fake = FakeGateway::start(|request, _| match request.line.as_str() {
        "POST /function/none" => (404, "reason=no_function".into()),
        "POST /function/busy" => (429, "reason=overload".into()),
        "POST /function/own" => (404, "my own 404".into()),
        _ => (500, "oops".into()),
    })
    .await;
    let none = fake.run(&["invoke", "none"]).await.expect(4);
    assert!(
        none.err
            .contains("nearpath: 404: gateway: no_function: refused")
            && none.out.is_empty(),
        "{}",
        none.err
    );
    assert!(
        fake.run(&["invoke", "busy"])
            .await
            .expect(8)
            .err
            .contains("overload")
    );
    let own = fake.run(&["invoke", "own"]).await.expect(8);
    assert!(
        own.out == "my own 404" && own.err.contains("the function returned 404"),
        "{}",
        own.err
    );
    assert_eq!(fake.run(&["invoke", "crash"]).await.expect(8).out, "oops");
}

#[tokio::test]
async fn verbose_prints_the_response_head_on_standard_error() {
    let fake = FakeGateway::start(|_, _| (201, "made".into())).await;
    let run = fake.run(&["invoke", "echo", "-v"]).await.expect(0);
    assert_eq!(run.out, "made");
    assert!(
        run.err.starts_with("HTTP/1.1 201 Created\n") && run.err.contains("content-length: 4"),
        "{}",
        run.err
    );
}

#[tokio::test]
async fn a_call_is_aborted_after_its_timeout() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(); // accepts in its backlog, never answers
    let url = format!("http://{}", listener.local_addr().unwrap());
    let run = CliRun::new(&["invoke", "echo", "-g", &url, "--timeout", "200ms"])
        .output()
        .await
        .expect(1);
    assert!(run.err.contains("no response within 200ms"), "{}", run.err);
}

/// A gateway that reads the beginning of an upload and then does `act` with the connection.
async fn gateway_that_interrupts<F>(act: impl FnOnce(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 1000]).await.unwrap();
        act(stream).await;
    });
    url
}

/// Larger than the buffers of a connection.
const UPLOAD_BYTES: usize = 32 << 20;

async fn upload_to(url: &str) -> CliOutput {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("upload");
    std::fs::write(&file, vec![b'x'; UPLOAD_BYTES]).unwrap();
    let data = format!("@{}", file.display());
    CliRun::new(&["invoke", "echo", "-g", url, "-d", &data])
        .output()
        .await
}

#[tokio::test]
async fn an_upload_that_is_refused_midway_is_told_with_its_status() {
    let url = gateway_that_interrupts(async |mut stream| {
        let refusal = b"HTTP/1.1 413 Payload Too Large\r\nconnection: close\r\ncontent-length: 9\r\n\r\ntoo large";
        stream.write_all(refusal).await.unwrap();
        // As the gateway does: a close with unread bytes would destroy the response.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap();
    })
    .await;
    let run = upload_to(&url).await.expect(8);
    assert!(run.err.contains("413"), "{}", run.err);
    assert!(!run.err.contains("no response"), "{}", run.err);
}

/// A gateway that answers nothing and closes while the body arrives.
#[tokio::test]
async fn a_reset_during_the_body_is_told_as_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Dropping it with unread bytes sends a reset.
            let _ = stream.read_exact(&mut [0; 1024]).await;
        }
    });
    let run = upload_to(&url).await.expect(1);
    let told = "closed the connection before it had the whole request";
    assert!(run.err.contains(told), "{}", run.err);
    assert!(run.err.contains("nearpath.io/max-body"), "{}", run.err);
    assert!(!run.err.contains("nearpath up"), "{}", run.err);
}
