use std::os::unix::fs::MetadataExt;

use nearpath_wire::node_tls::{NodeCredentials, NodeCredentialsError};
use proptest::prelude::*;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn init(dir: &Path) -> AuthorityFiles {
    AuthorityFiles::init(dir, "shop.example", SystemTime::now(), 100 * DAY).unwrap()
}

fn issue(files: &AuthorityFiles, node: &str) -> IssuedNode {
    files
        .issue(&node.parse().unwrap(), SystemTime::now(), DAY)
        .unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// Result of a peer that accepts the roots of `roots`, and gets the certificate of `issued`.
fn check(issued: &IssuedNode, roots: &IssuedNode) -> Result<NodeName, NodeCredentialsError> {
    let mut files = issued.files().clone();
    files.roots = roots.files().roots.clone();
    NodeCredentials::from_files(Path::new("/peer"), &files, SystemTime::now())
        .map(|credentials| credentials.node().clone())
}

#[test]
fn an_authority_survives_a_round_trip_through_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("deep/ca");
    let made = init(&dir);
    let opened = AuthorityFiles::open(&dir).unwrap();
    assert_eq!(opened.trust_domain(), "shop.example");
    assert_eq!(opened.roots(), made.roots());
    let out = folder.path().join("east-1");
    issue(&opened, "east-1").write(&out).unwrap();
    let credentials = NodeCredentials::load(&out, SystemTime::now()).unwrap();
    assert_eq!(credentials.node().as_str(), "east-1");
    assert_eq!(
        credentials.id().to_string(),
        "spiffe://shop.example/node/east-1/gateway"
    );
    assert_eq!(credentials.roots(), made.roots());
}

#[test]
fn secrets_are_readable_for_their_owner_alone_and_no_drafts_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, out) = (folder.path().join("ca"), folder.path().join("n"));
    let files = init(&dir);
    issue(&files, "n").write(&out).unwrap();
    issue(&files, "n").write(&out).unwrap();
    AuthorityFiles::rotate(&dir, SystemTime::now(), DAY).unwrap();
    assert_eq!((mode(&dir), mode(&out)), (0o700, 0o700));
    assert_eq!(
        (mode(&dir.join("ca.key")), mode(&out.join("node.key"))),
        (0o600, 0o600)
    );
    for (dir, names) in [
        (&dir, vec!["ca.crt", "ca.key"]),
        (&out, vec!["ca.crt", "node.crt", "node.key"]),
    ] {
        let mut found: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        assert_eq!(found, names);
    }
}

#[test]
fn an_existing_authority_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    init(folder.path());
    let key = fs::read(folder.path().join("ca.key")).unwrap();
    let again = || AuthorityFiles::init(folder.path(), "other", SystemTime::now(), DAY);
    let text = again().unwrap_err().to_string();
    assert!(
        text.contains("ca.key exists") && text.contains("nearpath ca rotate"),
        "{text}"
    );
    assert_eq!(fs::read(folder.path().join("ca.key")).unwrap(), key);
    // One file of an authority is enough: the other may be on its way from a copy.
    fs::remove_file(folder.path().join("ca.key")).unwrap();
    assert!(again().unwrap_err().to_string().contains("ca.crt exists"));
}

#[test]
fn both_roots_are_accepted_after_a_rotation_and_one_after_retiring() {
    let folder = tempfile::tempdir().unwrap();
    let first = init(folder.path());
    let old = issue(&first, "a");
    let rotated = AuthorityFiles::rotate(folder.path(), SystemTime::now(), 200 * DAY).unwrap();
    assert_eq!(rotated.roots()[1..], *first.roots(), "the old root follows");
    let new = issue(&rotated, "b");
    assert_eq!(check(&old, &new).unwrap().as_str(), "a");
    assert_eq!(check(&new, &new).unwrap().as_str(), "b");
    let text = check(&new, &old).unwrap_err().to_string();
    assert!(
        text.contains("no root in /peer/ca.crt signed /peer/node.crt")
            && text.contains("nearpath ca issue b"),
        "{text}"
    );
    let (retired, removed) = AuthorityFiles::retire(folder.path()).unwrap();
    assert_eq!(
        (retired.roots(), &removed[..]),
        (&rotated.roots()[..1], first.roots())
    );
    let later = issue(&AuthorityFiles::open(folder.path()).unwrap(), "c");
    assert_eq!(check(&new, &later).unwrap().as_str(), "b");
    assert!(matches!(
        check(&old, &later),
        Err(NodeCredentialsError::UnknownIssuer { .. })
    ));
    let (_, removed) = AuthorityFiles::retire(folder.path()).unwrap();
    assert!(removed.is_empty(), "one root stays");
}

/// A crash between the two files of a rotation: the roots are new, the key is old.
#[test]
fn an_interrupted_rotation_leaves_an_authority_that_signs() {
    let folder = tempfile::tempdir().unwrap();
    let first = init(folder.path());
    let key = fs::read(folder.path().join("ca.key")).unwrap();
    AuthorityFiles::rotate(folder.path(), SystemTime::now(), DAY).unwrap();
    fs::write(folder.path().join("ca.key"), key).unwrap();
    let opened = AuthorityFiles::open(folder.path()).unwrap();
    assert_eq!(
        (opened.roots().len(), &opened.roots()[0]),
        (2, &first.roots()[0])
    );
    let issued = issue(&opened, "a");
    assert_eq!(check(&issued, &issued).unwrap().as_str(), "a");
    let (retired, _) = AuthorityFiles::retire(folder.path()).unwrap();
    assert_eq!(retired.roots(), first.roots(), "the root that signs stays");
}

#[test]
fn faults_name_file_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("ca");
    let open_error = || AuthorityFiles::open(&dir).unwrap_err().to_string();
    assert!(open_error().contains("create an authority with `nearpath ca init --dir "));
    init(&dir);
    let (key, roots) = (dir.join("ca.key"), dir.join("ca.crt"));
    let assert_names = |path: &Path, remedy: &str| {
        let text = open_error();
        let is_named = text.contains(&path.display().to_string());
        assert!(is_named && text.contains(remedy), "{text}");
    };
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    assert_names(
        &key,
        "has mode 640, so other users can read the key: run chmod 600",
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let other = folder.path().join("other");
    init(&other);
    fs::copy(other.join("ca.crt"), &roots).unwrap();
    assert_names(&key, "belongs to no root");
    issue(&AuthorityFiles::open(&other).unwrap(), "n")
        .write(&dir)
        .unwrap();
    fs::copy(dir.join("node.crt"), &roots).unwrap();
    assert_names(
        &roots,
        "certificate 1 is not the certificate of an authority",
    );
    fs::write(&roots, "").unwrap();
    assert_names(&roots, "missing or malformed PEM block");
    fs::write(&key, "none").unwrap();
    assert_names(&key, "expected a private key");
    fs::remove_file(&key).unwrap();
    assert_names(&key, "does not exist");
}

#[test]
fn lives_that_peers_would_refuse_are_not_signed() {
    let folder = tempfile::tempdir().unwrap();
    let files = init(folder.path());
    let now = SystemTime::now();
    let error = |node: &str, life| {
        let node = node.parse().unwrap();
        files.issue(&node, now, life).unwrap_err().to_string()
    };
    let text = error("a", 101 * DAY);
    assert!(
        text.contains("after the root") && text.contains("nearpath ca rotate"),
        "{text}"
    );
    for domain in ["", "Shop", "a/b", "a:1"] {
        let made = AuthorityFiles::init(&folder.path().join("x"), domain, now, DAY);
        assert!(
            matches!(made, Err(AuthorityFilesError::TrustDomain(_))),
            "{domain}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_in_the_files_are_an_error(key: Vec<u8>, roots: Vec<u8>, is_key_valid: bool) {
        let folder = tempfile::tempdir().unwrap();
        init(folder.path());
        fs::write(folder.path().join(ROOTS_FILE), &roots).unwrap();
        if !is_key_valid {
            fs::write(folder.path().join(KEY_FILE), &key).unwrap();
        }
        prop_assert!(AuthorityFiles::open(folder.path()).is_err());
    }
}
