//! Faults of a node's files: each error names the file, the value and the remedy.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::Credentials;
use nearpath_wire::node_tls::{NodeCredentials, NodeFiles};
use proptest::prelude::*;

use super::fixture::{gateway_credentials, node_files};
use crate::quic::fixture::{DOMAIN, QuicFixture};

const HOUR: Duration = Duration::from_secs(3600);

fn refusal(files: &NodeFiles) -> String {
    NodeCredentials::from_files(Path::new("/n"), files, SystemTime::now())
        .unwrap_err()
        .to_string()
}

fn good_files(fixture: &QuicFixture) -> NodeFiles {
    node_files(fixture, &gateway_credentials(fixture, "a"))
}

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn missing_and_malformed_files_are_named() {
    let (fixture, folder) = (QuicFixture::new(), tempfile::tempdir().unwrap());
    let good = good_files(&fixture);
    let load = || NodeCredentials::load(folder.path(), SystemTime::now());
    let restore = || {
        for (name, contents) in [
            ("node.crt", &good.certificate),
            ("node.key", &good.key),
            ("ca.crt", &good.roots),
        ] {
            fs::write(folder.path().join(name), contents).unwrap();
        }
    };
    for name in ["node.crt", "node.key", "ca.crt"] {
        let path = folder.path().join(name);
        restore();
        assert_eq!(load().unwrap().node().as_str(), "a");
        for bytes in [&b""[..], b"text", b"\xff\xfe", &[b'x'; 2 << 20]] {
            fs::write(&path, bytes).unwrap();
            let text = load().unwrap_err().to_string();
            assert_parts(&text, &[&path.display().to_string(), "copy"]);
        }
        fs::remove_file(&path).unwrap();
        let text = load().unwrap_err().to_string();
        assert_parts(&text, &[&path.display().to_string(), "nearpath ca issue"]);
    }
}

#[test]
fn certificates_of_others_are_refused() {
    let (fixture, other) = (QuicFixture::new(), QuicFixture::new());
    let files = |credentials: &Credentials| node_files(&fixture, credentials);
    let gateway = |node| SpiffeId::for_gateway(DOMAIN, node);
    let instance = SpiffeId::for_instance(DOMAIN, "echo".parse().unwrap(), InstanceId(9));
    let life = |start, life| fixture.credentials_at(gateway("a"), "a", start, life);
    let now = SystemTime::now();
    let cases: [(Credentials, Vec<&str>); 6] = [
        (
            fixture.credentials(instance, "a"),
            vec!["/n/node.crt", "instance/9 is not the gateway of a node"],
        ),
        (
            fixture.credentials(gateway("not_a_name"), "a"),
            vec!["/n/node.crt", "node/not_a_name/gateway is not the gateway"],
        ),
        (
            fixture.credentials(gateway("a"), "b"),
            vec!["/n/node.crt", "node a has the DNS name \"b\"", "ca issue a"],
        ),
        (
            life(now - 2 * HOUR, HOUR),
            vec!["/n/node.crt", "node a expired at 2", "ca issue a"],
        ),
        (
            life(now + 2 * HOUR, HOUR),
            vec!["/n/node.crt", "is not valid before 2", "clock"],
        ),
        (
            gateway_credentials(&other, "a"),
            vec![
                "no root in /n/ca.crt signed /n/node.crt",
                "BadSignature",
                "ca issue a",
            ],
        ),
    ];
    for (credentials, parts) in cases {
        assert_parts(&refusal(&files(&credentials)), &parts);
    }
}

#[test]
fn files_of_different_folders_do_not_fit_together() {
    let fixture = QuicFixture::new();
    let (mut files, other) = (good_files(&fixture), good_files(&fixture));
    files.key = other.key.clone();
    let text = refusal(&files);
    assert_parts(
        &text,
        &["/n/node.crt", "/n/node.key do not match", "ca issue a"],
    );
    files = good_files(&fixture);
    files.roots = files.certificate.clone();
    assert_parts(
        &refusal(&files),
        &["/n/ca.crt", "not the certificate of an authority"],
    );
    assert!(
        !format!("{files:?}").contains("BEGIN"),
        "the key is a secret"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_an_error_and_no_panic(certificate: Vec<u8>, key: Vec<u8>, roots: Vec<u8>) {
        refusal(&NodeFiles { certificate, key, roots });
    }

    /// A changed byte inside of good files gets further into the parsers.
    #[test]
    fn damaged_files_do_no_harm(file in 0usize..3, at: prop::sample::Index, byte: u8) {
        let fixture = QuicFixture::new();
        let mut files = good_files(&fixture);
        let contents = [&mut files.certificate, &mut files.key, &mut files.roots];
        let contents = contents.into_iter().nth(file).unwrap();
        let position = at.index(contents.len());
        contents[position] = byte;
        // Some changes are harmless, as in a line ending.
        let _ = NodeCredentials::from_files(Path::new("/n"), &files, SystemTime::now());
    }

    /// Damaged DER in good PEM.
    #[test]
    fn damaged_certificates_do_no_harm(at: prop::sample::Index, byte: u8, is_root: bool) {
        let fixture = QuicFixture::new();
        let credentials = gateway_credentials(&fixture, "a");
        let mut files = node_files(&fixture, &credentials);
        let mut der = if is_root { fixture.authority.certificate() } else { &credentials.chain[0] }.to_vec();
        let position = at.index(der.len());
        der[position] = byte;
        let pem = nearpath_wire::identity::encode_pem("CERTIFICATE", &der).into_bytes();
        *(if is_root { &mut files.roots } else { &mut files.certificate }) = pem;
        let _ = NodeCredentials::from_files(Path::new("/n"), &files, SystemTime::now());
    }
}
