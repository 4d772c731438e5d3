//! Renewals while a node runs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::AuthorityFiles;
use nearpath_testkit::CapturedWarnings;
use nearpath_wire::node_tls::{NodeTls, watch_node_tls};
use tempfile::TempDir;
use tokio::sync::watch;

use super::fixture::{QuicNode, TlsNode};
use crate::quic::fixture::run;

const DAY: Duration = Duration::from_secs(24 * 3600);
const POLL: Duration = Duration::from_millis(5);

struct Fixture {
    authority: TempDir,
    node: TempDir,
}

impl Fixture {
    fn new(life: Duration) -> Self {
        let (authority, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = AuthorityFiles::init(authority.path(), "shop", SystemTime::now(), 99 * DAY);
        let fixture = Self { authority, node };
        drop(files.unwrap());
        fixture.issue("a", life, fixture.node.path());
        fixture
    }

    fn issue(&self, name: &str, life: Duration, to: &Path) {
        let files = AuthorityFiles::open(self.authority.path()).unwrap();
        let issued = files.issue(&name.parse().unwrap(), SystemTime::now(), life);
        issued.unwrap().write(to).unwrap();
    }

    fn watch(&self) -> watch::Receiver<Arc<NodeTls>> {
        watch_node_tls(self.node.path(), POLL).unwrap()
    }
}

/// Waits until this many lines contain `part`. The test's limit bounds the wait.
async fn wait_lines(warnings: &CapturedWarnings, part: &str, count: usize) {
    while warnings
        .lines()
        .iter()
        .filter(|line| line.contains(part))
        .count()
        < count
    {
        tokio::time::sleep(POLL).await;
    }
}

#[test]
fn a_renewed_certificate_and_a_new_root_are_used_without_a_restart() {
    run(async {
        let (fixture, warnings) = (Fixture::new(10 * DAY), CapturedWarnings::start());
        let mut current = fixture.watch();
        let first = current.borrow_and_update().clone();
        fixture.issue("a", 20 * DAY, fixture.node.path());
        let is_renewed =
            |tls: &Arc<NodeTls>| tls.credentials().validity().1 > first.credentials().validity().1;
        let renewed = current.wait_for(is_renewed).await.unwrap().clone();
        assert!(renewed.has_same_roots(first.credentials()));
        assert!(
            !renewed
                .caller_config()
                .has_same_certificate(first.caller_config())
        );

        AuthorityFiles::rotate(fixture.authority.path(), SystemTime::now(), 99 * DAY).unwrap();
        let roots = fixture.authority.path().join("ca.crt");
        fs::copy(roots, fixture.node.path().join("ca.crt")).unwrap();
        let has_both = |tls: &Arc<NodeTls>| tls.credentials().roots().len() == 2;
        let both = current.wait_for(has_both).await.unwrap().clone();
        let text = TlsNode::of(&both)
            .await
            .call(both.caller_config().mtls_connector(), "a")
            .await;
        assert_eq!(text, "a");
        let text = QuicNode::of(&both).call(first.caller_config(), "a").await;
        assert_eq!(text, "a early=false");
        let lines = warnings.lines();
        assert!(
            !lines.iter().any(|line| line.contains("ends soon")),
            "{lines:?}"
        );
    });
}

#[test]
fn a_torn_write_keeps_the_last_good_files_and_is_logged_once() {
    run(async {
        let (fixture, warnings) = (Fixture::new(30 * DAY), CapturedWarnings::start());
        let mut current = fixture.watch();
        let (path, other) = (
            fixture.node.path().join("node.crt"),
            tempfile::tempdir().unwrap(),
        );
        fixture.issue("a", 40 * DAY, other.path());
        let next = fs::read(other.path().join("node.crt")).unwrap();

        // Half of a certificate, then a certificate without its key.
        fs::write(&path, &next[..next.len() / 2]).unwrap();
        wait_lines(&warnings, "missing or malformed PEM block: certificate", 1).await;
        fs::write(&path, &next).unwrap();
        wait_lines(&warnings, "node.key do not match", 1).await;
        assert!(!current.has_changed().unwrap(), "the last good ones stay");

        fs::copy(
            other.path().join("node.key"),
            fixture.node.path().join("node.key"),
        )
        .unwrap();
        current.changed().await.unwrap();
        let end = current.borrow().credentials().validity().1;
        assert!(end > SystemTime::now() + 35 * DAY);

        // Another node's folder, after which the fault of before is logged again.
        fixture.issue("b", 40 * DAY, fixture.node.path());
        wait_lines(
            &warnings,
            "spiffe://shop/node/b/gateway, and this process is spiffe://shop/node/a/gateway",
            1,
        )
        .await;
        fs::remove_file(&path).unwrap();
        wait_lines(&warnings, "cannot read", 1).await;
        for part in [
            "missing or malformed",
            "do not match",
            "this process is",
            "cannot read",
        ] {
            let lines = warnings.lines();
            let count = lines.iter().filter(|line| line.contains(part)).count();
            assert_eq!(count, 1, "{part}: {lines:?}");
        }
        assert_eq!(current.borrow().credentials().node().as_str(), "a");
    });
}

#[test]
fn a_certificate_that_ends_soon_is_warned_of() {
    run(async {
        let (fixture, warnings) = (
            Fixture::new(Duration::from_secs(60)),
            CapturedWarnings::start(),
        );
        // The grace for clocks makes a life of two minutes, of which half is left.
        let mut current = fixture.watch();
        fixture.issue("a", Duration::from_secs(20), fixture.node.path());
        current.changed().await.unwrap();
        wait_lines(&warnings, "ends soon", 1).await;
        let line = warnings.lines().pop().unwrap();
        assert!(
            line.contains("node=a") && line.contains("nearpath ca issue"),
            "{line}"
        );
    });
}

#[test]
fn the_watcher_ends_with_its_last_receiver() {
    run(async {
        let fixture = Fixture::new(DAY);
        let current = fixture.watch();
        let tls = Arc::downgrade(&*current.borrow());
        drop(current);
        while tls.strong_count() > 0 {
            tokio::time::sleep(POLL).await;
        }
    });
}
