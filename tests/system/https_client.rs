//! The command line and a gateway with TLS: the certificate counts.

use std::path::Path;
use std::process::{Command, Output};

use nearpath_testkit::program;

use crate::http3::start_http3_server;

fn list_functions(data_dir: &Path, url: &str, options: &[&str]) -> Output {
    let mut command = Command::new(program("nearpath"));
    command
        .args(["ls", "--json", "--gateway", url])
        .args(options);
    command.env("NEARPATH_DATA_DIR", data_dir).output().unwrap()
}

#[tokio::test]
async fn an_https_gateway_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, listen, authority) = start_http3_server(folder.path(), &[]).await;
    let (data_dir, url) = (
        folder.path().join("data"),
        format!("https://localhost:{}", listen.port()),
    );
    let list = |options: &[&str]| list_functions(&data_dir, &url, options);

    let trusted = list(&["--tls-ca", authority.to_str().unwrap()]);
    assert!(trusted.status.success(), "{trusted:?}");
    assert!(list(&["--tls-no-verify"]).status.success());
    let unknown = list(&[]);
    let text = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(3), "{text}");
    assert!(
        text.contains("certificate") && text.contains("--tls-ca"),
        "{text}"
    );
}
