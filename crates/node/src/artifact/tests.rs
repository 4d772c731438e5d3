use std::os::unix::fs::{PermissionsExt, symlink};

use nearpath_testkit::within;
use tempfile::TempDir;

use super::*;

fn key_of(revision: u64) -> ArtifactKey {
    ("echo".parse().unwrap(), Revision(revision))
}

struct StoreFixture {
    folder: TempDir,
    store: Arc<ArtifactStore>,
}

impl StoreFixture {
    fn new(limit: FolderLimit) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("code")).unwrap();
        let store = Arc::new(ArtifactStore::open(folder.path().join("store"), limit).unwrap());
        Self { folder, store }
    }

    fn code_path(&self, name: &str) -> PathBuf {
        self.folder.path().join("code").join(name)
    }

    async fn get_revision(&self, revision: u64) -> Result<PathBuf, ArtifactError> {
        let image = format!("file://{}", self.folder.path().join("code").display());
        within(self.store.get_folder(&key_of(revision), &image)).await
    }

    fn need(&self, revisions: &[u64]) {
        let revisions = revisions.iter().copied().map(Revision).collect();
        self.store.set_needed(&key_of(0).0, revisions);
    }

    async fn until_flushed(&self, revision: u64) {
        nearpath_testkit::eventually("the copy is flushed", async || {
            !self.store.unsynced_mark(&key_of(revision)).exists()
        })
        .await;
    }

    fn count_drafts(&self) -> usize {
        fs::read_dir(self.folder.path().join("store/drafts"))
            .unwrap()
            .count()
    }
}

#[tokio::test]
async fn a_revisions_copy_never_changes() {
    let fixture = StoreFixture::new(FolderLimit::default());
    fs::create_dir(fixture.code_path("lib")).unwrap();
    fs::write(fixture.code_path("lib/run.sh"), "one").unwrap();
    fs::set_permissions(
        fixture.code_path("lib/run.sh"),
        fs::Permissions::from_mode(0o700),
    )
    .unwrap();
    symlink("lib/run.sh", fixture.code_path("run")).unwrap();
    let first = fixture.get_revision(1).await.unwrap();
    fs::write(fixture.code_path("lib/run.sh"), "two").unwrap();
    assert_eq!(fixture.get_revision(1).await.unwrap(), first);
    assert_eq!(fs::read_to_string(first.join("run")).unwrap(), "one");
    assert_eq!(
        fs::metadata(first.join("lib/run.sh"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o555
    );
    fixture.until_flushed(1).await;
    let again = Arc::new(
        ArtifactStore::open(fixture.folder.path().join("store"), FolderLimit::default()).unwrap(),
    );
    let image = format!("file://{}", fixture.folder.path().join("code").display());
    assert_eq!(
        within(again.get_folder(&key_of(1), &image)).await.unwrap(),
        first,
        "a restart keeps the copy"
    );
    assert_eq!(
        fs::read_to_string(fixture.get_revision(2).await.unwrap().join("run")).unwrap(),
        "two"
    );
}

#[tokio::test]
async fn a_copy_that_may_be_torn_is_made_again() {
    let fixture = StoreFixture::new(FolderLimit::default());
    fs::write(fixture.code_path("run"), "whole").unwrap();
    let copy = fixture.get_revision(1).await.unwrap();
    fixture.until_flushed(1).await;
    fs::write(fixture.store.unsynced_mark(&key_of(1)), "").unwrap();
    fs::remove_file(copy.join("run")).unwrap();
    fs::write(copy.join("run"), "").unwrap(); // the state after a power failure
    let again = Arc::new(
        ArtifactStore::open(fixture.folder.path().join("store"), FolderLimit::default()).unwrap(),
    );
    let image = format!("file://{}", fixture.folder.path().join("code").display());
    let copy = within(again.get_folder(&key_of(1), &image)).await.unwrap();
    assert_eq!(fs::read_to_string(copy.join("run")).unwrap(), "whole");
}

#[tokio::test]
async fn unneeded_copies_are_removed() {
    let fixture = StoreFixture::new(FolderLimit::default());
    let (first, second) = (
        fixture.get_revision(1).await.unwrap(),
        fixture.get_revision(2).await.unwrap(),
    );
    fixture.need(&[2]);
    fixture.store.collect_garbage().unwrap();
    assert!(!first.exists() && second.exists());
    fixture.need(&[]);
    fixture.store.collect_stale().unwrap();
    assert!(!second.parent().unwrap().exists());
    assert!(
        fixture.get_revision(1).await.unwrap().exists(),
        "a copy that is needed again is created again"
    );
}

#[tokio::test]
async fn held_copies_outlive_their_need() {
    let fixture = StoreFixture::new(FolderLimit::default());
    let first = fixture.get_revision(1).await.unwrap();
    let hold = fixture.store.hold_copies();
    fixture.need(&[2]);
    fixture.store.collect_garbage().unwrap();
    assert!(first.exists());
    let late = fixture.get_revision(3).await.unwrap();
    drop(hold);
    fixture.store.collect_stale().unwrap();
    assert!(!first.exists() && !late.exists());
}

#[tokio::test]
async fn copies_of_an_earlier_process_are_removed() {
    let fixture = StoreFixture::new(FolderLimit::default());
    let copy = fixture.get_revision(1).await.unwrap();
    fixture.until_flushed(1).await;
    let root = fixture.store.root.clone();
    let store = ArtifactStore::open(root, FolderLimit::default()).unwrap();
    store.collect_stale().unwrap();
    assert!(copy.exists(), "nothing of it is known yet");
    store.collect_garbage().unwrap();
    assert!(!copy.exists());
}

#[tokio::test]
async fn an_escaping_link_is_refused_by_name() {
    let fixture = StoreFixture::new(FolderLimit::default());
    symlink("/root/secret", fixture.code_path("key")).unwrap();
    let error = fixture.get_revision(1).await.unwrap_err().to_string();
    assert!(
        error.contains("code/key") && error.contains("/root/secret"),
        "{error}"
    );
    assert_eq!(fixture.count_drafts(), 0);
    fs::remove_file(fixture.code_path("key")).unwrap();
    fixture
        .get_revision(1)
        .await
        .expect("the next attempt succeeds");
}

#[tokio::test]
async fn special_files_and_large_folders_are_refused() {
    let fixture = StoreFixture::new(FolderLimit {
        bytes: 10,
        entries: 3,
    });
    rustix::fs::mknodat(
        rustix::fs::CWD,
        fixture.code_path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(
        fixture
            .get_revision(1)
            .await
            .unwrap_err()
            .to_string()
            .contains("neither file")
    );
    fs::remove_file(fixture.code_path("pipe")).unwrap();
    fs::write(fixture.code_path("a"), "12345").unwrap();
    fs::write(fixture.code_path("b"), "12345").unwrap();
    fixture
        .get_revision(1)
        .await
        .expect("the limit itself is allowed");
    fs::write(fixture.code_path("b"), "123456").unwrap();
    assert!(
        fixture
            .get_revision(2)
            .await
            .unwrap_err()
            .to_string()
            .contains("more than 10 bytes")
    );
    (0..4).for_each(|n| fs::write(fixture.code_path(&n.to_string()), "").unwrap());
    assert!(
        fixture
            .get_revision(3)
            .await
            .unwrap_err()
            .to_string()
            .contains("more than 3 files")
    );
}

#[tokio::test]
async fn other_images_are_refused() {
    let fixture = StoreFixture::new(FolderLimit::default());
    for image in ["", "ghcr.io/openfaas/alpine:latest", "file://relative"] {
        let error = within(fixture.store.get_folder(&key_of(1), image))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("image store"), "{error}");
    }
    let error = within(
        fixture
            .store
            .get_folder(&key_of(1), "file:///no/such/folder"),
    )
    .await
    .unwrap_err()
    .to_string();
    assert!(error.contains("/no/such/folder"), "{error}");
}

#[tokio::test]
async fn equal_files_of_copies_are_one_file() {
    use std::os::unix::fs::MetadataExt;
    let fixture = StoreFixture::new(FolderLimit::default());
    fs::write(fixture.code_path("program"), "1").unwrap();
    fs::write(fixture.code_path("same"), "1").unwrap();
    fs::write(fixture.code_path("empty"), "").unwrap();
    let first = fixture.get_revision(1).await.unwrap();
    fs::write(fixture.code_path("other"), "2").unwrap();
    fs::set_permissions(fixture.code_path("same"), fs::Permissions::from_mode(0o755)).unwrap();
    let second = fixture.get_revision(2).await.unwrap();
    let file_of = |folder: &Path, name: &str| {
        let file = fs::metadata(folder.join(name)).unwrap();
        (file.ino(), file.nlink())
    };
    let program = file_of(&first, "program");
    assert_eq!(program, file_of(&second, "program"));
    assert_eq!(program, file_of(&first, "same"), "names do not matter");
    assert_eq!(program.1, 4, "three names and the content");
    let executable = file_of(&second, "same");
    assert!(executable.0 != program.0 && executable.1 == 2, "modes do");
    assert_eq!(file_of(&first, "empty").1, 1);
    assert_eq!(fixture.count_drafts(), 0);
    // Contents are removed with the last copy that uses them.
    let contents = || {
        fs::read_dir(fixture.store.root.join(CONTENTS_DIR))
            .unwrap()
            .count()
    };
    assert_eq!(contents(), 3);
    fixture.need(&[1]);
    fixture.store.collect_garbage().unwrap();
    assert_eq!((contents(), file_of(&first, "program").1), (1, 3));
    // A copy that fails leaves nothing.
    symlink("/nowhere", fixture.code_path("z-escapes")).unwrap();
    fs::write(fixture.code_path("a-new"), "new").unwrap();
    fixture.get_revision(3).await.unwrap_err();
    assert_eq!((contents(), fixture.count_drafts()), (1, 0));
}

#[tokio::test]
async fn namespaces_and_functions_without_a_sandbox_share_no_file() {
    use std::os::unix::fs::MetadataExt;
    let fixture = StoreFixture::new(FolderLimit::default());
    fs::write(fixture.code_path("program"), "1").unwrap();
    let image = format!("file://{}", fixture.folder.path().join("code").display());
    let link_count = async |store: &Arc<ArtifactStore>, function: &str| {
        let key = (function.parse().unwrap(), Revision(1));
        let copy = within(store.get_folder(&key, &image)).await.unwrap();
        fs::metadata(copy.join("program")).unwrap().nlink()
    };
    assert_eq!(link_count(&fixture.store, "a.red").await, 2);
    assert_eq!(link_count(&fixture.store, "a.blue").await, 2);
    assert_eq!(link_count(&fixture.store, "b.red").await, 3, "the control");
    let root = fixture.folder.path().join("plain");
    let store = ArtifactStore::open(root, FolderLimit::default()).unwrap();
    let store = Arc::new(store.without_shared_files());
    link_count(&store, "a.red").await;
    assert_eq!(link_count(&store, "b.red").await, 1);
}

#[tokio::test]
async fn a_torn_content_is_not_shared_after_a_crash() {
    let fixture = StoreFixture::new(FolderLimit::default());
    fs::write(fixture.code_path("program"), "whole").unwrap();
    let copy = fixture.get_revision(1).await.unwrap();
    fixture.until_flushed(1).await;
    // The power failed before the flush: a part of the bytes is on the disk, and the mark.
    fs::set_permissions(copy.join("program"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(copy.join("program"), "who").unwrap();
    fs::write(fixture.store.unsynced_mark(&key_of(1)), "").unwrap();
    let root = fixture.store.root.clone();
    let store = Arc::new(ArtifactStore::open(root, FolderLimit::default()).unwrap());
    let fixture = StoreFixture { store, ..fixture };
    let copy = fixture.get_revision(1).await.unwrap();
    assert_eq!(fs::read_to_string(copy.join("program")).unwrap(), "whole");
}
