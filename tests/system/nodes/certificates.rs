//! Certificates of running nodes are replaced, and roots are removed.

use std::fs;
use std::path::Path;

use http::Method;
use nearpath_testkit::{eventually, need_root};

use super::functions::write_counted;
use super::load::{CallLoad, LoadPlan, RATE};
use super::machines::{Machines, certificates, run_ca};

fn copy(from: &Path, to: &Path) {
    // Renamed, so that a node never reads half a file.
    let part = to.with_extension("part");
    fs::copy(from, &part).unwrap();
    fs::rename(part, to).unwrap();
}

impl Machines {
    fn ca(&self, command: &str, nodes: &[&str]) {
        let dir = self.authority();
        run_ca(&[command, "--dir", dir.to_str().unwrap()], nodes);
    }

    /// Copies the roots of the authority to the folder of a node.
    fn copy_roots(&self, node: &str) {
        let to = certificates(&self.authority(), node).join("ca.crt");
        copy(&self.authority().join("ca.crt"), &to);
    }
}

#[tokio::test]
async fn a_rotation_of_the_root_fails_no_call() {
    need_root!();
    let names = ["a", "b", "c"];
    let mut machines = Machines::new(&names);
    write_counted(&machines, &["b", "c"]);
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    let load = CallLoad::start(LoadPlan::new(
        &machines,
        &[0],
        "/function/task",
        Method::POST,
    ));
    load.wait_calls(RATE as usize).await;
    let seconds = |count: usize| count * RATE as usize;
    machines.ca("rotate", &[]);
    names.iter().for_each(|node| machines.copy_roots(node));
    load.wait_calls(seconds(3)).await; // nodes look at their files each second
    machines.ca("issue", &names);
    load.wait_calls(seconds(3)).await;
    machines.ca("retire", &[]);
    names.iter().for_each(|node| machines.copy_roots(node));
    load.wait_calls(seconds(3)).await;
    load.finish().await.assert_no_failure(&machines);
    assert!(
        !machines.logs().contains("node is down"),
        "{}",
        machines.logs()
    );
}

/// Node b goes on with a certificate of the old root. It is refused, also on open connections.
#[tokio::test]
async fn control_a_node_of_a_removed_root_is_refused() {
    need_root!();
    let mut machines = Machines::new(&["a", "b"]);
    write_counted(&machines, &["b"]);
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    machines.ca("rotate", &[]);
    machines.ca("issue", &["a"]);
    machines.ca("retire", &[]);
    machines.copy_roots("a");
    let series = "nearpath_node_refusals_total{reason=\"unknown_root\"}";
    eventually("b is refused", async || {
        machines.metric(0, series).await > 0.0
    })
    .await;
    eventually("b has lost its connections", async || {
        machines.server(1).log().contains("node is down")
    })
    .await;
}
