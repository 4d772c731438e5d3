//! Backups: what is restored equals what was deployed, and damage is refused.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use nearpath_controller::ControllerModel;
use nearpath_controller::backup::{RestoreError, RestoreSummary, restore_backup};
use nearpath_testkit::within;

use crate::fixture::ControllerFixture;

/// Bytes of a block of tar (POSIX pax).
const BLOCK_BYTES: usize = 512;

/// A controller with a function whose folder exists, one without, a secret and a namespace.
async fn deployed_fixture(folder: &Path) -> ControllerFixture {
    let handler = folder.join("handler");
    fs::create_dir_all(handler.join("lib")).unwrap();
    fs::write(handler.join("run.sh"), "cat\n").unwrap();
    fs::set_permissions(handler.join("run.sh"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::write(handler.join("lib/odd\\name\n"), vec![7; 100_000]).unwrap();
    symlink("lib/odd\\name\n", handler.join("link")).unwrap();
    let fixture = ControllerFixture::new().await;
    let body = format!(
        r#"{{"service":"whole","image":"file://{}","secrets":["key"]}}"#,
        handler.display()
    );
    let secret = r#"{"name":"key","value":"hidden"}"#;
    fixture
        .expect_status(201, "POST", "/system/secrets", secret)
        .await;
    let gone = r#"{"service":"gone","image":"file:///srv/gone","annotations":{"nearpath.io/calls":"later"}}"#;
    for body in [&body, gone] {
        fixture
            .expect_status(202, "POST", "/system/functions", body)
            .await;
    }
    fixture
}

async fn take_backup(fixture: &ControllerFixture) -> (Vec<u8>, Vec<String>) {
    let request = Request::get("/system/backup").body(Body::empty()).unwrap();
    let response = within(fixture.controller.answer_request(request)).await;
    assert_eq!(response.status(), 200);
    let warnings = response.headers().get_all("x-nearpath-warning").iter();
    let warnings = warnings.map(|text| text.to_str().unwrap().to_owned());
    let warnings = warnings.collect();
    let body = within(response.into_body().collect()).await.unwrap();
    (body.to_bytes().into(), warnings)
}

/// Restores into a new folder below `parent`.
fn restore(archive: &[u8], parent: &Path) -> (PathBuf, Result<RestoreSummary, RestoreError>) {
    let target = tempfile::tempdir_in(parent).unwrap().keep().join("data");
    let result = restore_backup(archive, &target);
    (target, result)
}

async fn model_of(data_dir: &Path) -> Arc<ControllerModel> {
    ControllerFixture::open_on(data_dir)
        .await
        .controller
        .model()
}

#[tokio::test]
async fn a_restored_backup_equals_what_was_deployed() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = deployed_fixture(folder.path()).await;
    let (archive, warnings) = take_backup(&fixture).await;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("gone.openfaas-fn"), "{warnings:?}");

    let (target, summary) = restore(&archive, folder.path());
    let summary = summary.unwrap();
    assert_eq!((summary.functions, summary.secrets), (2, 1));
    assert_eq!(summary.without_folder, ["gone.openfaas-fn"]);
    let restored = model_of(&target).await;
    assert_eq!(*restored, *fixture.controller.model());
    assert!(restored.address_number(&"later".parse().unwrap()).is_some());
    let revision = fixture.controller.model().functions
        [&"whole".parse::<nearpath_types::FunctionId>().unwrap()]
        .revision;
    let copy = target.join(format!("artifacts/whole.openfaas-fn/{revision}"));
    let mode = fs::metadata(copy.join("run.sh"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o555);
    assert_eq!(fs::read(copy.join("link")).unwrap(), vec![7; 100_000]);
    let left = |name: &str| fixture.data_dir().join(name).exists() || target.join(name).exists();
    assert!(!left("nearpath.db-copy") && !left("restore-draft"));
}

#[tokio::test]
async fn a_cut_or_damaged_backup_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = deployed_fixture(folder.path()).await;
    let (archive, _) = take_backup(&fixture).await;
    // The end of the last file: after it are only the tar's two empty blocks and padding.
    let end = archive.iter().rposition(|byte| *byte != 0).unwrap();
    let blocks = (0..=end).step_by(7 * BLOCK_BYTES);
    for cut in blocks.clone().chain([end]) {
        let (target, result) = restore(&archive[..cut], folder.path());
        assert!(result.is_err(), "cut to {cut} bytes");
        assert!(!target.join("nearpath.db").exists());
    }
    let mut refused = 0;
    for place in blocks.clone().map(|start| start + 3) {
        let mut damaged = archive.clone();
        damaged[place.min(end)] ^= 0x15;
        let (target, result) = restore(&damaged, folder.path());
        match result {
            Err(_) => refused += 1,
            // A field of a header that nothing depends on.
            Ok(_) => assert_eq!(*model_of(&target).await, *fixture.controller.model()),
        }
    }
    let tried = blocks.count();
    assert!(refused * 10 > tried * 9, "{refused} of {tried}");
}

/// An entry of an archive, to be changed.
struct ChangedEntry {
    header: tar::Header,
    name: PathBuf,
    target: Option<PathBuf>,
}

/// Writes an archive again, with a change of each entry.
fn rewrite(archive: &[u8], change: impl Fn(&mut ChangedEntry)) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let entry = entry.unwrap();
        let mut changed = ChangedEntry {
            header: entry.header().clone(),
            name: entry.path().unwrap().into_owned(),
            target: entry.link_name().unwrap().map(|target| target.into_owned()),
        };
        change(&mut changed);
        let (header, name) = (&mut changed.header, &changed.name);
        match &changed.target {
            Some(target) => out.append_link(header, name, target).unwrap(),
            None => out.append_data(header, name, entry).unwrap(),
        }
    }
    out.into_inner().unwrap()
}

#[tokio::test]
async fn a_changed_link_or_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = deployed_fixture(folder.path()).await;
    let (archive, _) = take_backup(&fixture).await;
    let refusal = |change: &dyn Fn(&mut ChangedEntry)| {
        let (_, result) = restore(&rewrite(&archive, change), folder.path());
        result.map_or_else(|error| error.to_string(), |_| "restored".to_owned())
    };
    let with_target = |target: &'static str| {
        refusal(&move |entry| {
            if entry.target.is_some() {
                entry.target = Some(target.into());
            }
        })
    };
    assert_eq!(refusal(&|_| {}), "restored", "the same entries");
    let other = with_target("run.sh");
    assert!(other.contains("differs from the list"), "{other}");
    for escaping in ["../run.sh", "lib/../../x", "/usr/../root/key"] {
        let text = with_target(escaping);
        assert!(text.contains(&format!("leads to {escaping}")), "{text}");
    }
    let hard = refusal(&|entry| {
        if entry.target.is_some() {
            entry.header.set_entry_type(tar::EntryType::Link);
            entry.target = Some("nearpath.db".into());
        }
    });
    assert!(hard.contains("no file, folder or symbolic link"), "{hard}");
    let renamed = refusal(&|entry| {
        if entry.name.ends_with("lib") {
            entry.name.set_file_name("lob");
        }
    });
    assert!(renamed.contains("# folder"), "{renamed}");
}

/// Writes an archive again with a list of files only, as backups had before.
fn with_files_listed_only(archive: &[u8]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut header = entry.header().clone();
        let name = entry.path().unwrap().into_owned();
        if let Some(target) = entry.link_name().unwrap() {
            out.append_link(&mut header, name, target).unwrap();
            continue;
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        if name == Path::new("SHA256SUMS") {
            let lines = content.split_inclusive(|byte| *byte == b'\n');
            content = lines
                .filter(|line| !line.starts_with(b"# "))
                .flatten()
                .copied()
                .collect();
            header.set_size(content.len() as u64);
        }
        out.append_data(&mut header, name, &content[..]).unwrap();
    }
    out.into_inner().unwrap()
}

#[tokio::test]
async fn a_backup_whose_list_has_only_files_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = deployed_fixture(folder.path()).await;
    let (archive, _) = take_backup(&fixture).await;
    let old = with_files_listed_only(&archive);
    let (target, summary) = restore(&old, folder.path());
    assert_eq!(summary.unwrap().without_folder, ["gone.openfaas-fn"]);
    let restored = model_of(&target).await;
    assert_eq!(*restored, *fixture.controller.model());
    assert!(restored.address_number(&"later".parse().unwrap()).is_some());
    let escaping = rewrite(&old, |entry| {
        if entry.target.is_some() {
            entry.target = Some("../run.sh".into());
        }
    });
    let error = restore(&escaping, folder.path()).1.unwrap_err().to_string();
    assert!(error.contains("leads to ../run.sh"), "{error}");
    let fewer = rewrite(&old, |entry| {
        if entry.name.ends_with("run.sh") {
            entry.name.set_file_name("other.sh");
        }
    });
    let error = restore(&fewer, folder.path()).1.unwrap_err().to_string();
    assert!(error.contains("differs from the list"), "{error}");
}

#[tokio::test]
async fn sha256sum_checks_an_unpacked_backup() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = deployed_fixture(folder.path()).await;
    let (archive, _) = take_backup(&fixture).await;
    let target = folder.path().join("unpacked");
    tar::Archive::new(&archive[..]).unpack(&target).unwrap();
    let mut command = std::process::Command::new("sha256sum");
    command.args(["--check", "--strict", "SHA256SUMS"]);
    let output = command.current_dir(&target).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_directory_with_a_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = deployed_fixture(folder.path()).await;
    let (archive, _) = take_backup(&fixture).await;
    let error = restore_backup(&archive[..], fixture.data_dir()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    let (target, first) = restore(&archive, folder.path());
    first.unwrap();
    let error = restore_backup(&archive[..], &target).unwrap_err();
    assert!(matches!(error, RestoreError::HasDatabase(_)), "{error}");
}

#[test]
fn other_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["etc/passwd", "artifacts/../../escaped", "nearpath.db/x"] {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        // `set_path` would refuse such names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, &b"x"[..]).unwrap();
        let (_, result) = restore(&tar.into_inner().unwrap(), folder.path());
        let error = result.unwrap_err().to_string();
        assert!(error.contains("no part of a backup"), "{name}: {error}");
    }
    assert!(!folder.path().join("escaped").exists());
}
