//! A root is replaced while nodes run.

use std::path::Path;
use std::time::{Duration, SystemTime};

use nearpath_ca::{AuthorityFiles, IssuedNode};
use nearpath_wire::node_tls::{NodeCredentials, NodeTls};

use super::fixture::{QuicNode, TlsNode, node_tls};
use crate::quic::fixture::run;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn issue(dir: &Path, node: &str) -> IssuedNode {
    let files = AuthorityFiles::open(dir).unwrap();
    files
        .issue(&node.parse().unwrap(), SystemTime::now(), DAY)
        .unwrap()
}

/// The node `issued` with the roots of `roots`.
fn with_roots(issued: &IssuedNode, roots: &IssuedNode) -> NodeCredentials {
    let mut files = issued.files().clone();
    files.roots = roots.files().roots.clone();
    NodeCredentials::from_files(Path::new("/node"), &files, SystemTime::now()).unwrap()
}

async fn call_both(server: &NodeTls, caller: &NodeTls) -> [String; 2] {
    let (tls, quic) = (TlsNode::of(server).await, QuicNode::of(server));
    let name = server.credentials().node().as_str();
    [
        tls.call(caller.caller_config().mtls_connector(), name)
            .await,
        quic.call(caller.caller_config(), name).await,
    ]
}

#[test]
fn certificates_of_both_roots_work_until_the_old_one_is_retired() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        AuthorityFiles::init(dir, "shop", SystemTime::now(), 9 * DAY).unwrap();
        let (old, server) = (issue(dir, "old"), issue(dir, "server"));
        AuthorityFiles::rotate(dir, SystemTime::now(), 9 * DAY).unwrap();
        let new = issue(dir, "new");

        // Nodes get the roots first; the server keeps its certificate of the old root.
        let server = NodeTls::new(with_roots(&server, &new)).unwrap();
        let old = NodeTls::new(with_roots(&old, &new)).unwrap();
        let (new, of_new) = (node_tls(new.files()), new);
        assert_eq!(call_both(&server, &old).await, ["old", "old early=false"]);
        assert_eq!(call_both(&server, &new).await, ["new", "new early=false"]);

        // Then the server gets a certificate of the new root: callers keep their sessions.
        let issued = issue(dir, "server");
        let server = server.renewed(with_roots(&issued, &of_new)).unwrap();
        assert_eq!(call_both(&server, &old).await, ["old", "old early=true"]);

        AuthorityFiles::retire(dir).unwrap();
        let retired = issue(dir, "server");
        assert!(!server.has_same_roots(&with_roots(&retired, &retired)));
        let server = server.renewed(with_roots(&retired, &retired)).unwrap();
        // The caller has sessions, which must not replace the check of the root.
        let [tls, quic] = call_both(&server, &old).await;
        assert!(tls.contains("alert"), "{tls}");
        assert!(quic.contains("BadSignature"), "{quic}");
        assert_eq!(call_both(&server, &new).await, ["new", "new early=false"]);
    });
}
