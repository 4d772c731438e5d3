//! gRPC end to end: `examples/grpc` as a user runs it, with the example's client, which uses
//! Google's `grpcio`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;

use nearpath_testkit::{program, skip, within};
use tokio::process::Command;

use crate::test_server::TestServer;

/// PATH of a sandbox. The test must install `grpcio` for the Python that is found there.
const METHOD_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A copy of the example, kept between runs with its installed dependency.
pub(crate) struct GrpcExample(pub(crate) PathBuf);

impl GrpcExample {
    /// Copies the example and installs its dependency.
    ///
    /// # Errors
    /// The reason why this is not possible here.
    pub(crate) async fn prepare_example() -> Result<Self, String> {
        let target = std::env::current_exe()
            .unwrap()
            .ancestors()
            .nth(3)
            .unwrap()
            .to_owned();
        let example = Self(target.join("grpc-example"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/grpc");
        std::fs::create_dir_all(example.0.join("handler")).unwrap();
        for file in ["stack.yml", "client.py", "handler/server.py"] {
            std::fs::copy(source.join(file), example.0.join(file)).unwrap();
        }
        if example
            .python_command(&["-c", "import grpc"])
            .await?
            .status
            .success()
        {
            return Ok(example);
        }
        let requirements = source.join("requirements.txt");
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--upgrade",
            "--retries",
            "1",
            "--timeout",
            "10",
        ];
        let to = [
            "--target",
            "handler/packages",
            "-r",
            requirements.to_str().unwrap(),
        ];
        let installed = example.python_command(&[&pip[..], &to].concat()).await?;
        let reply = String::from_utf8_lossy(&installed.stderr)
            .trim()
            .replace('\n', "; "); // a skip's reason is one line
        installed
            .status
            .success()
            .then_some(example)
            .ok_or(format!("grpcio cannot be installed: {reply}"))
    }

    async fn python_command(&self, arguments: &[&str]) -> Result<Output, String> {
        let mut python = Command::new("python3");
        python
            .args(arguments)
            .env("PATH", METHOD_PATH)
            .env("PYTHONPATH", "handler/packages")
            .current_dir(&self.0);
        let ran = tokio::time::timeout(
            std::time::Duration::from_secs(120),
            python.kill_on_drop(true).output(),
        )
        .await;
        let ran = ran.map_err(|_| format!("python3 {arguments:?} did not end within 2 minutes"))?;
        ran.map_err(|fault| format!("python3 cannot be run: {fault}"))
    }

    async fn deploy_example(&self, server: &TestServer, options: &[&str]) {
        let mut deploy = Command::new(program("nearpath"));
        deploy
            .args(["deploy", "-f", "stack.yml", "--env", "exec_timeout=1s"])
            .args(options)
            .arg("--gateway");
        let deploy = deploy
            .arg(format!("http://{}", server.addr))
            .current_dir(&self.0)
            .kill_on_drop(true);
        let reply = within(deploy.output()).await.unwrap();
        assert!(
            reply.status.success(),
            "{}\n{}",
            String::from_utf8_lossy(&reply.stderr),
            server.log()
        );
    }

    /// Runs the client. Returns its output without quotes and braces, and its errors.
    async fn run_client(&self, server: &TestServer, arguments: &str) -> (String, String) {
        self.run_client_at(server.addr, arguments).await
    }

    /// Runs the client at a gateway.
    pub(crate) async fn run_client_at(
        &self,
        gateway: SocketAddr,
        arguments: &str,
    ) -> (String, String) {
        let gateway = gateway.to_string();
        let words = ["client.py", "--gateway", &gateway]
            .into_iter()
            .chain(arguments.split(' '));
        let ran = within(self.python_command(&words.collect::<Vec<_>>()))
            .await
            .unwrap();
        let reply = String::from_utf8(ran.stdout)
            .unwrap()
            .replace(['"', '{', '}'], "");
        (
            reply.lines().collect::<Vec<_>>().join(", "),
            String::from_utf8(ran.stderr).unwrap(),
        )
    }
}

/// A single test, because Python instances start slowly.
#[tokio::test]
async fn the_grpc_example_works() {
    nearpath_testkit::need_root!();
    let example = match GrpcExample::prepare_example().await {
        Ok(example) => example,
        Err(reason) => skip!("{reason}"),
    };
    let server = TestServer::start().await;
    example.deploy_example(&server, &[]).await;
    every_kind_of_method(&example, &server).await;
    errors_have_grpcs_names(&example, &server).await;
    over_quic(&example, &server).await;
}

/// The same over QUIC streams, trailers included.
async fn over_quic(example: &GrpcExample, server: &TestServer) {
    let calls = async || crate::quic::metric_value(server, "nearpath_quic_calls_total", "").await;
    assert_eq!(calls().await, 0);
    example
        .deploy_example(server, &["--annotation", "nearpath.io/transport=quic"])
        .await;
    every_kind_of_method(example, server).await;
    let (_, complaint) = example.run_client(server, "shout").await;
    assert!(
        complaint.starts_with("INVALID_ARGUMENT: "),
        "its status is in the trailers: {complaint}"
    );
    assert!(calls().await > 7, "{}", server.log());
}

async fn every_kind_of_method(example: &GrpcExample, server: &TestServer) {
    for (call, answer) in [
        ("shout hello world", "text: HELLO WORLD"),
        ("shout hello --by-authority", "text: HELLO"),
        (
            "join a b --by-authority --function words.openfaas-fn",
            "text: a b",
        ),
        ("count 3", "number: 1, number: 2, number: 3"),
        ("join a b c", "text: a b c"),
        ("chat one two three", "text: ONE, text: TWO, text: THREE"),
        // 2 s, while `exec_timeout` is 1 s
        (
            "count 4 --pause 0.5",
            "number: 1, number: 2, number: 3, number: 4",
        ),
    ] {
        let reply = example.run_client(server, call).await;
        assert_eq!(
            reply,
            (answer.to_owned(), String::new()),
            "{call}\n{}",
            server.log()
        );
    }
}

async fn errors_have_grpcs_names(example: &GrpcExample, server: &TestServer) {
    for (call, status, part) in [
        ("shout", "INVALID_ARGUMENT: ", "text is missing"),
        (
            "count 1 --pause 3",
            "DEADLINE_EXCEEDED: ",
            "watchdog: exec_timeout: ",
        ),
        (
            "count 9 --pause 0.2 --timeout 0.5",
            "DEADLINE_EXCEEDED: ",
            "eadline",
        ),
        ("shout --function nobody", "UNIMPLEMENTED: ", "nobody"),
        (
            "shout --function nobody --by-authority",
            "UNIMPLEMENTED: ",
            "nobody",
        ),
    ] {
        let (_, complaint) = example.run_client(server, call).await;
        assert!(
            complaint.starts_with(status) && complaint.contains(part),
            "{call}: {complaint}\n{}",
            server.log()
        );
    }
    let (reply, complaint) = example.run_client(server, "chat one ").await;
    assert_eq!(
        (reply.as_str(), complaint.trim()),
        ("text: ONE", "INVALID_ARGUMENT: text is missing")
    );
}
