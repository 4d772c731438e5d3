use std::os::unix::fs::{PermissionsExt, symlink};

use nearpath_testkit::within;
use tempfile::TempDir;

use super::*;

fn key(revision: u64) -> Key {
    ("echo".parse().unwrap(), Revision(revision))
}

struct Bench {
    folder: TempDir,
    store: Arc<Artifacts>,
}

impl Bench {
    fn new(limit: Limit) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("code")).unwrap();
        let store = Arc::new(Artifacts::open(folder.path().join("store"), limit).unwrap());
        Self { folder, store }
    }

    fn code(&self, name: &str) -> PathBuf {
        self.folder.path().join("code").join(name)
    }

    async fn get(&self, revision: u64) -> Result<PathBuf, ArtifactError> {
        let image = format!("file://{}", self.folder.path().join("code").display());
        within(self.store.get(&key(revision), &image)).await
    }

    async fn until_flushed(&self, revision: u64) {
        nearpath_testkit::eventually("it is flushed", async || !self.store.mark(&key(revision)).exists()).await;
    }

    fn drafts(&self) -> usize {
        fs::read_dir(self.folder.path().join("store/drafts")).unwrap().count()
    }
}

#[tokio::test]
async fn a_revision_is_a_copy_that_does_not_change() {
    let bench = Bench::new(Limit::default());
    fs::create_dir(bench.code("lib")).unwrap();
    fs::write(bench.code("lib/run.sh"), "one").unwrap();
    fs::set_permissions(bench.code("lib/run.sh"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("lib/run.sh", bench.code("run")).unwrap();
    let first = bench.get(1).await.unwrap();
    fs::write(bench.code("lib/run.sh"), "two").unwrap();
    assert_eq!(bench.get(1).await.unwrap(), first);
    assert_eq!(fs::read_to_string(first.join("run")).unwrap(), "one");
    assert_eq!(fs::metadata(first.join("lib/run.sh")).unwrap().permissions().mode() & 0o777, 0o555);
    bench.until_flushed(1).await;
    let again = Arc::new(Artifacts::open(bench.folder.path().join("store"), Limit::default()).unwrap());
    let image = format!("file://{}", bench.folder.path().join("code").display());
    assert_eq!(within(again.get(&key(1), &image)).await.unwrap(), first, "a restart keeps it");
    assert_eq!(fs::read_to_string(bench.get(2).await.unwrap().join("run")).unwrap(), "two");
}

#[tokio::test]
async fn a_copy_that_may_be_torn_is_made_again() {
    let bench = Bench::new(Limit::default());
    fs::write(bench.code("run"), "whole").unwrap();
    let copy = bench.get(1).await.unwrap();
    bench.until_flushed(1).await;
    fs::write(bench.store.mark(&key(1)), "").unwrap();
    fs::remove_file(copy.join("run")).unwrap();
    fs::write(copy.join("run"), "").unwrap(); // what a power cut may leave
    let again = Arc::new(Artifacts::open(bench.folder.path().join("store"), Limit::default()).unwrap());
    let image = format!("file://{}", bench.folder.path().join("code").display());
    let copy = within(again.get(&key(1), &image)).await.unwrap();
    assert_eq!(fs::read_to_string(copy.join("run")).unwrap(), "whole");
}

#[tokio::test]
async fn what_is_not_needed_goes() {
    let bench = Bench::new(Limit::default());
    let (first, second) = (bench.get(1).await.unwrap(), bench.get(2).await.unwrap());
    bench.store.need([key(2)].into());
    bench.store.collect().unwrap();
    assert!(!first.exists() && second.exists());
    bench.store.need(BTreeSet::new());
    bench.store.collect().unwrap();
    assert!(!second.parent().unwrap().exists());
    assert!(bench.get(1).await.unwrap().exists(), "needed again: copied again");
}

#[tokio::test]
async fn a_link_that_escapes_is_refused_by_name() {
    let bench = Bench::new(Limit::default());
    symlink("/root/secret", bench.code("key")).unwrap();
    let error = bench.get(1).await.unwrap_err().to_string();
    assert!(error.contains("code/key") && error.contains("/root/secret"), "{error}");
    assert_eq!(bench.drafts(), 0);
    fs::remove_file(bench.code("key")).unwrap();
    bench.get(1).await.expect("a failure is not kept");
}

#[tokio::test]
async fn special_files_and_large_folders_are_refused() {
    let bench = Bench::new(Limit { bytes: 10, entries: 3 });
    rustix::fs::mknodat(rustix::fs::CWD, bench.code("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert!(bench.get(1).await.unwrap_err().to_string().contains("neither file"));
    fs::remove_file(bench.code("pipe")).unwrap();
    fs::write(bench.code("a"), "12345").unwrap();
    fs::write(bench.code("b"), "12345").unwrap();
    bench.get(1).await.expect("as much as allowed");
    fs::write(bench.code("b"), "123456").unwrap();
    assert!(bench.get(2).await.unwrap_err().to_string().contains("more than 10 bytes"));
    (0..4).for_each(|n| fs::write(bench.code(&n.to_string()), "").unwrap());
    assert!(bench.get(3).await.unwrap_err().to_string().contains("more than 3 files"));
}

#[tokio::test]
async fn other_images_name_the_seam() {
    let bench = Bench::new(Limit::default());
    for image in ["", "ghcr.io/openfaas/alpine:latest", "file://relative"] {
        let error = within(bench.store.get(&key(1), image)).await.unwrap_err().to_string();
        assert!(error.contains("image store"), "{error}");
    }
    let error = within(bench.store.get(&key(1), "file:///no/such/folder")).await.unwrap_err().to_string();
    assert!(error.contains("/no/such/folder"), "{error}");
}
