//! Calls through memory: edges, aliases, deliveries, replaced instances, huge pages and Go.

use std::path::Path;

use http::Method;
use nearpath_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{call_traced, chain_function, path_of, run_cli, wait_in_memory};
use crate::test_server::TestServer;

#[tokio::test]
async fn a_chain_calls_through_memory_along_its_edges_only() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    for (name, next, calls) in [
        ("second", None, ""),
        ("first", Some("second"), "second"),
        ("stranger", Some("second"), ""),
    ] {
        server
            .deploy_ready(&chain_function(&server, name, next, calls))
            .await;
        wait_in_memory(&server, name).await;
    }
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    let answer = call_traced(&server, "first").await;
    assert_eq!(
        (
            answer.status().as_u16(),
            path_of(&answer),
            answer.body().len()
        ),
        (200, "shm", 100)
    );
    let refused = call_traced(&server, "stranger").await;
    assert_eq!(
        (refused.status().as_u16(), path_of(&refused)),
        (502, "shm"),
        "it has no edge"
    );
    let mut foreign = chain_function(&server, "foreign", Some("second"), "second");
    foreign["annotations"]["nearpath.io/chain"] = json!("another");
    server.deploy_ready(&foreign).await;
    wait_in_memory(&server, "foreign").await;
    let refused = call_traced(&server, "foreign").await;
    assert_eq!(
        (refused.status().as_u16(), path_of(&refused)),
        (502, "shm"),
        "an edge out of its chain is no ring"
    );
}

/// The domain of a chain ends with its last function; another one of its name must be joined.
#[tokio::test]
async fn a_chain_that_is_deployed_again_is_called_through_memory() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    for _ in 0..3 {
        let spec = chain_function(&server, "second", None, "");
        server.deploy_ready(&spec).await;
        wait_in_memory(&server, "second").await;
        run_cli(&server, &["rm", "second"]);
        eventually("the chain's memory is gone", async || {
            let metrics = server.read_metrics().await;
            !metrics.contains("nearpath_shm_bytes{")
        })
        .await;
    }
}

#[tokio::test]
async fn an_alias_calls_through_memory() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(
            &server,
            "first",
            Some("rates"),
            "rates=second",
        ))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows it as rates", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    server
        .deploy_ready(&chain_function(&server, "other", Some("rates"), "second"))
        .await;
    wait_in_memory(&server, "other").await;
    let refused = call_traced(&server, "other").await;
    assert_eq!(
        (refused.status().as_u16(), path_of(&refused)),
        (502, "shm"),
        "the alias is the first one's own"
    );
}

#[tokio::test]
async fn a_function_of_no_chain_is_called_at_its_own_port_and_reported_so() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut alone = chain_function(&server, "alone", None, "");
    alone["annotations"] = json!({});
    server.deploy_ready(&alone).await;
    let answer = call_traced(&server, "alone").await;
    assert_eq!(
        (answer.status().as_u16(), path_of(&answer)),
        (200, "loopback; obstacle=no_domain")
    );
}

#[tokio::test]
async fn a_killed_instance_is_replaced_in_memory_too() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(&server, "first", Some("second"), "second"))
        .await;
    wait_in_memory(&server, "first").await;
    for _ in 0..3 {
        let victim = server.instance_pids("second").await[0];
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        let gone = async || !Path::new(&format!("/proc/{victim}")).exists();
        eventually("it is dead", gone).await;
        eventually("first reaches the new one", async || {
            let answer = call_traced(&server, "first").await;
            answer.status() == 200 && path_of(&answer) == "shm"
        })
        .await;
    }
}

#[tokio::test]
async fn a_chain_works_with_every_delivery() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    for delivery in ["sockmap", "poll"] {
        let (first, second) = (format!("first-{delivery}"), format!("second-{delivery}"));
        for (name, next, calls) in [(&second, None, ""), (&first, Some(&*second), &*second)] {
            let mut spec = chain_function(&server, name, next, calls);
            spec["annotations"]["nearpath.io/delivery"] = json!(delivery);
            server.deploy_ready(&spec).await;
        }
        wait_in_memory(&server, &first).await;
        eventually("first knows second", async || {
            call_traced(&server, &first).await.status() == 200
        })
        .await;
        let before = server
            .metric_total("nearpath_descriptors_delivered_total")
            .await;
        let answer = call_traced(&server, &first).await;
        assert_eq!(
            (
                answer.status().as_u16(),
                path_of(&answer),
                answer.body().len()
            ),
            (200, "shm", 100),
            "{delivery}"
        );
        let carried = server
            .metric_total("nearpath_descriptors_delivered_total")
            .await
            - before;
        assert!(
            if delivery == "sockmap" {
                carried >= 4
            } else {
                carried == 0
            },
            "{delivery}: {carried} carried"
        );
    }
    assert_eq!(
        server
            .metric_total("nearpath_descriptors_denied_total")
            .await,
        0
    );
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages reserved by this test, released at its end.
struct ReservedHugePages(u64);

impl ReservedHugePages {
    fn add_pages(pages: u64) -> Option<Self> {
        let reserved = || {
            std::fs::read_to_string(HUGE_PAGES)
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let before = reserved()?;
        std::fs::write(HUGE_PAGES, (before + pages).to_string()).ok()?;
        let reserve = Self(before);
        (reserved() == Some(before + pages)).then_some(reserve)
    }
}

impl Drop for ReservedHugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HUGE_PAGES, self.0.to_string());
    }
}

#[tokio::test]
async fn a_chain_gets_huge_pages_where_all_its_functions_ask_for_them() {
    nearpath_testkit::need_root!();
    let Some(_reserve) = ReservedHugePages::add_pages(32) else {
        nearpath_testkit::skip!("this machine reserves no huge pages for us (vm.nr_hugepages)");
    };
    let server = TestServer::start().await;
    let asking = |name: &str, next, calls| {
        let mut spec = chain_function(&server, name, next, calls);
        spec["annotations"]["nearpath.io/pages"] = json!("huge");
        spec
    };
    server.deploy_ready(&asking("second", None, "")).await;
    server
        .deploy_ready(&asking("first", Some("second"), "second"))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    assert_eq!(
        run_cli(&server, &["memory", "shop"])[0]["pageBytes"],
        2 << 20
    );
    server
        .deploy_ready(&chain_function(&server, "careful", None, ""))
        .await;
    let answer = call_traced(&server, "careful").await;
    assert_eq!(
        (answer.status().as_u16(), path_of(&answer)),
        (200, "loopback; obstacle=no_endpoint"),
        "it did not agree"
    );
    let mut wrong = chain_function(&server, "wrong", None, "");
    wrong["annotations"]["nearpath.io/pages"] = json!("large");
    let refused = server
        .send_request(Method::POST, "/system/functions", wrong.to_string())
        .await;
    assert_eq!(refused.status(), 400);
}

/// Builds the SDK's example as a user would: a static program without downloads.
async fn go_function(folder: &Path) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/go");
    let mut build = tokio::process::Command::new("go");
    build
        .args(["build", "-o"])
        .arg(folder.join("price"))
        .arg("./examples/price")
        .current_dir(source);
    let built = build
        .env("CGO_ENABLED", "0")
        .kill_on_drop(true)
        .output()
        .await;
    let built = built.map_err(|error| format!("go cannot be run: {error}"))?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn a_go_function_is_called_and_calls_through_memory() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    if let Err(why) = go_function(folder.path()).await {
        nearpath_testkit::skip!("{why}");
    }
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "currency", None, ""))
        .await;
    let mut price = chain_function(&server, "price", None, "currency");
    price["image"] = json!(format!("file://{}", folder.path().display()));
    price["envProcess"] = json!("./price");
    price["envVars"]["PORT"] = json!("5000");
    server.deploy_ready(&price).await;
    wait_in_memory(&server, "price").await;
    eventually("price knows currency", async || {
        call_traced(&server, "price").await.status() == 200
    })
    .await;
    let report = async |name: &str, what: &str| {
        let logs = server
            .send_request(
                Method::GET,
                &format!("/system/logs?name={name}&tail=100"),
                "",
            )
            .await;
        String::from_utf8_lossy(logs.body()).contains(what)
    };
    eventually("its own call went the same way", async || {
        report("price", "100 bytes came over shm").await
    })
    .await;
    for spec in [
        &mut chain_function(&server, "currency", None, ""),
        &mut price,
    ] {
        spec["annotations"]["nearpath.io/delivery"] = json!("sockmap");
        spec["service"] = json!(format!("{}-sockmap", spec["service"].as_str().unwrap()));
        server.deploy_ready(spec).await;
    }
    wait_in_memory(&server, "currency-sockmap").await;
    // Its library is refused there: it is called at its port, the watchdog handles its calls, and the
    // response reports it to the library.
    eventually("the watchdog stands for the library", async || {
        let answer = call_traced(&server, "price-sockmap").await;
        path_of(&answer) == "loopback; obstacle=own_port"
    })
    .await;
    eventually("its call went through memory", async || {
        report("price-sockmap", "100 bytes came over shm").await
    })
    .await;
}
