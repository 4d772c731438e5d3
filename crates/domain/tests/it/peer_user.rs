//! A dispatch socket serves the instance's user and the node's, whoever else reaches its file.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nearpath_domain::endpoint::{EndpointSettings, blocking::BlockingEndpoint};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_testkit::need_root;
use nearpath_types::InstanceId;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_uid;

const INSTANCE_UID: u32 = 12_345;
const OTHER_UID: u32 = 65_534;

/// Joins from a thread that runs as `uid`; credentials belong to a thread (credentials(7)).
fn joins_as(uid: u32, path: &Path) -> bool {
    let path = path.to_owned();
    let joining = std::thread::spawn(move || {
        if uid != geteuid().as_raw() {
            set_thread_uid(Uid::from_raw(uid)).unwrap();
        }
        BlockingEndpoint::dial(&path, EndpointSettings::default()).is_ok()
    });
    joining.join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_instances_user_and_the_nodes_join() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("dispatch");
    let (domain, _faults) = DomainHandle::start(DomainSettings::named("shop")).unwrap();
    let socket = EndpointSocket::listen_for_user(&path, INSTANCE_UID).unwrap();
    domain.admit_instance(InstanceId(1), "first".parse().unwrap(), socket);

    set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(!joins_as(OTHER_UID, &path), "the file's mode");
    set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert!(
        !joins_as(OTHER_UID, &path),
        "the credentials of the connection"
    );
    assert!(joins_as(INSTANCE_UID, &path));
    assert!(joins_as(geteuid().as_raw(), &path));
}
