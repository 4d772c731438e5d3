//! examples/motion and examples/parking, deployed from their stack files: outputs follow from the
//! seed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use http::StatusCode;
use nearpath_testkit::{eventually, free_addr, program, skip, within};
use sensing::motion::{Decision, Event, Shape, events};
use sensing::parking::{Visit, picture, plates};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::test_server::TestServer;

/// A running server with an example, whose functions are all endpoints of the chain's memory.
struct SensorsFixture {
    server: TestServer,
    mqtt: SocketAddr,
    _folder: tempfile::TempDir,
}

impl SensorsFixture {
    async fn start(example: &str, functions: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let mqtt = free_addr();
        let options = ["--mqtt-listen", &mqtt.to_string()];
        let server = TestServer::start_in(&folder.path().join("data"), &options).await;
        deploy_example(&server, example, folder.path()).await;
        for name in functions {
            server.wait_available(name, 1).await;
        }
        let fixture = Self {
            server,
            mqtt,
            _folder: folder,
        };
        for name in functions {
            eventually("it is called through memory", async || {
                fixture.call_path(name).await == "shm"
            })
            .await;
        }
        fixture
    }

    /// Path of a call to a function; an invalid body is enough for that.
    async fn call_path(&self, name: &str) -> String {
        let request = http::Request::post(format!("/function/{name}")).header("host", "localhost");
        let request = request
            .header("x-nearpath-path", "?")
            .body("?".into())
            .unwrap();
        let answer = within(crate::test_server::send_request(self.server.addr, request))
            .await
            .unwrap();
        answer.headers()["x-nearpath-path"]
            .to_str()
            .unwrap()
            .to_owned()
    }

    fn client_command(&self, program: &str, arguments: &[&str]) -> Command {
        // unbuffered: a pipe would get all lines at the end
        let mut client = Command::new("stdbuf");
        client
            .args([
                "-oL",
                program,
                "-h",
                "127.0.0.1",
                "-p",
                &self.mqtt.port().to_string(),
            ])
            .args(arguments);
        client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        client
    }
}

/// Deploys an example with its own stack file, as a user does. The program is put where `make
/// build` puts it.
async fn deploy_example(server: &TestServer, example: &str, folder: &Path) {
    let stack = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(example)
        .join("stack.yml");
    std::fs::copy(stack, folder.join("stack.yml")).unwrap();
    std::fs::create_dir(folder.join("functions")).unwrap();
    nearpath_testkit::copy_program(program("sensing"), folder.join("functions/sensing"));
    let mut command = Command::new(program("nearpath"));
    command.args(["deploy", "-f"]).arg(folder.join("stack.yml"));
    command.env("OPENFAAS_URL", format!("http://{}", server.addr));
    let reply = within(command.output()).await.unwrap();
    assert!(reply.status.success(), "{reply:?}\n{}", server.log());
}

fn read_trace() -> Vec<Event> {
    events(3, Shape::default(), std::time::Duration::from_secs(1_800))
}

#[tokio::test]
async fn motion_every_event_becomes_its_decision_over_http() {
    nearpath_testkit::need_root!();
    let fixture = SensorsFixture::start("motion", &["actuator", "sensor"]).await;
    for event in read_trace() {
        let body = serde_json::to_vec(&event).unwrap();
        let answer = fixture
            .server
            .send_request(http::Method::POST, "/function/sensor", body)
            .await;
        assert_eq!(answer.status(), StatusCode::OK, "{:?}", answer.body());
        let decision: Decision = serde_json::from_slice(answer.body()).unwrap();
        assert_eq!(decision, event.sight().decide());
    }
}

#[tokio::test]
async fn motion_every_event_becomes_its_decision_over_mqtt() {
    nearpath_testkit::need_root!();
    if std::process::Command::new("mosquitto_pub")
        .arg("--help")
        .output()
        .is_err()
    {
        skip!("mosquitto's clients are missing: apt-get install mosquitto-clients");
    }
    let (fixture, trace) = (
        SensorsFixture::start("motion", &["actuator", "sensor"]).await,
        read_trace(),
    );
    let count = trace.len().to_string();
    let listen = [
        "-q",
        "1",
        "-t",
        "functions/sensor/result",
        "-C",
        &count,
        "-W",
        "20",
        "-d",
    ];
    let mut subscriber = fixture
        .client_command("mosquitto_sub", &listen)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
    while !within(lines.next_line())
        .await
        .unwrap()
        .expect("it subscribes")
        .starts_with("Subscribed")
    {}

    let mut publisher = fixture
        .client_command(
            "mosquitto_pub",
            &["-q", "1", "-t", "sensors/1/motion", "-l"],
        )
        .spawn()
        .unwrap();
    let mut input = publisher.stdin.take().unwrap();
    for event in &trace {
        let line = serde_json::to_string(event).unwrap() + "\n";
        input.write_all(line.as_bytes()).await.unwrap();
    }
    drop(input);
    assert!(
        within(publisher.wait()).await.unwrap().success(),
        "all are acknowledged: the functions have answered"
    );

    let mut decisions = Vec::new();
    while let Some(line) = within(lines.next_line()).await.unwrap() {
        // other output of the client is no JSON
        decisions.extend(serde_json::from_str::<Decision>(&line));
    }
    let mut expected: Vec<_> = trace.iter().map(|event| event.sight().decide()).collect();
    for all in [&mut decisions, &mut expected] {
        // messages are handled concurrently
        all.sort_by_key(|decision| (decision.lamp, decision.on));
    }
    assert_eq!(decisions, expected);
}

#[tokio::test]
async fn parking_each_arrival_takes_the_path_its_plate_says() {
    nearpath_testkit::need_root!();
    const SEED: u64 = 5;
    let fixture = SensorsFixture::start(
        "parking",
        &["charging", "persist", "index", "search", "detection"],
    )
    .await;
    let plates = plates(SEED, 1);
    let mut visits = tokio::task::JoinSet::new();
    for plate in plates.iter().copied() {
        let request = http::Request::post("/function/detection").header("host", "localhost");
        let request = request.body(picture(SEED, plate).into()).unwrap();
        let sent = crate::test_server::send_request(fixture.server.addr, request);
        visits.spawn(async move { (plate, within(sent).await.unwrap()) });
    }
    let mut long = 0;
    while let Some(done) = visits.join_next().await {
        let (plate, answer) = done.unwrap();
        assert_eq!(
            answer.status(),
            StatusCode::OK,
            "{:?}\n{}",
            answer.body(),
            fixture.server.log()
        );
        let visit: Visit = serde_json::from_slice(answer.body()).unwrap();
        assert_eq!(visit.plate, plate);
        assert_eq!(visit.route, visit.whole_route());
        long += usize::from(visit.route.len() == 5);
    }
    assert_eq!(
        long,
        plates
            .iter()
            .filter(|plate| plate.is_multiple_of(10))
            .count()
    );
    assert!(
        long > 0 && long < plates.len(),
        "both routes are taken: {long}"
    );
    let refused = fixture
        .server
        .call_function("detection", "no picture")
        .await;
    assert_eq!(
        refused.status(),
        StatusCode::BAD_REQUEST,
        "{:?}",
        refused.body()
    );
}
