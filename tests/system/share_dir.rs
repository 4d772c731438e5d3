//! Folders of the machine that functions see.

use nearpath_testkit::need_root;

use crate::test_server::{TestServer, script_function};

#[tokio::test]
async fn functions_see_a_shared_folder_read_only_and_no_other() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    // In `/opt`: `/tmp` is the function's own.
    let shared = tempfile::tempdir_in("/opt").unwrap();
    std::fs::write(shared.path().join("file"), "shown").unwrap();
    let path = shared.path().display().to_string();
    let script = format!(
        "echo $(cat {path}/file 2>&1); touch {path}/new 2>/dev/null && echo written; test -e /opt && echo opt; true\n"
    );
    for (name, options, expected) in [
        ("shared", vec!["--share-dir", &path], "shown\nopt\n"),
        ("closed", vec![], "No such file or directory\n"),
    ] {
        let server = TestServer::start_in(&folder.path().join(name), &options).await;
        let spec = script_function(folder.path(), name, &script);
        server.deploy_ready(&spec).await;
        let answer = server.call_function(name, "").await;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert!(text.ends_with(expected), "{name}: {text}");
    }
}
