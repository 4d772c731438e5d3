//! A folder, the source on it, and a controller with a fleet that does nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_controller::{
    AuthMode, Controller, ControllerConfig, Fleet, HeldFolders, StoreOpenError,
};
use nearpath_source::{SourceHandle, SourceSettings, SourceStatus};
use nearpath_testkit::within;
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    DesiredState, FunctionId, FunctionMap, LogLine, LogQuery, ObservedFunction, Revision,
    StatusQuery, StatusReport, StatusSource,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// A node that runs nothing.
struct IdleFleet;

impl Fleet for IdleFleet {
    fn apply_desired(&self, _: DesiredState) {}
    fn has_folder(&self, _: PathBuf) -> BoxFuture<'static, bool> {
        std::future::ready(true).boxed()
    }
    fn hold_folders(&self) -> Arc<dyn HeldFolders> {
        Arc::new(Self)
    }
    fn observed_functions(&self) -> FunctionMap<ObservedFunction> {
        FunctionMap::default()
    }
    fn read_logs(&self, _: LogQuery) -> mpsc::Receiver<LogLine> {
        mpsc::channel(1).1
    }
    fn function_usage(&self, _: FunctionId) -> BoxFuture<'static, UsageStatus> {
        std::future::ready(UsageStatus::default()).boxed()
    }
    fn invocation_count(&self, _: &FunctionId) -> u64 {
        0
    }
}

impl HeldFolders for IdleFleet {
    fn revision_folder(
        &self,
        _: FunctionId,
        _: Revision,
        image: String,
    ) -> BoxFuture<'static, Result<PathBuf, String>> {
        std::future::ready(Ok(image.into())).boxed()
    }
}

impl StatusSource for IdleFleet {
    fn status(&self, _: StatusQuery) -> StatusReport {
        StatusReport::Edges(Vec::new())
    }
}

/// Revisions by function.
pub(crate) type Revisions = BTreeMap<String, u64>;

/// A source that node `a` reads.
pub(crate) struct SourceFixture {
    pub(crate) source: Option<SourceHandle>,
    pub(crate) controller: Controller,
    /// Folder of the files, which tests change.
    pub(crate) folder: PathBuf,
    parent: TempDir,
}

impl SourceFixture {
    /// Starts on a folder with the nodes `a` and `b`, and these stack files.
    pub(crate) async fn with_stacks(stacks: &[(&str, &str)]) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("app");
        for handler in ["one", "two"] {
            write_file(&folder.join(handler).join("main.py"), "print(1)");
        }
        write_file(
            &folder.join("nodes.yml"),
            "nodes:\n  a: {address: 10.0.0.1:9000}\n  b: {address: host.example}\n",
        );
        for (name, text) in stacks {
            write_file(&folder.join(name), text);
        }
        Self::start_in(parent, &folder).await
    }

    async fn start_in(parent: TempDir, folder: &Path) -> Self {
        let mut config = ControllerConfig::new(parent.path().join("data"));
        config.auth = AuthMode::Disabled;
        config.declared_in = Some(folder.to_owned());
        let controller = within(open_when_free(config)).await;
        let settings = SourceSettings {
            node: "a".parse().unwrap(),
            folder: folder.to_owned(),
            secrets: folder.join("secrets"),
            poll_interval: Duration::from_millis(5),
        };
        Self {
            source: Some(SourceHandle::start(settings, controller.clone())),
            controller,
            folder: folder.to_owned(),
            parent,
        }
    }

    /// Ends source and controller, and starts both again.
    pub(crate) async fn restart(mut self) -> Self {
        drop(self.source.take());
        self.controller.close().await;
        Self::start_in(self.parent, &self.folder).await
    }

    pub(crate) fn handle(&self) -> &SourceHandle {
        self.source.as_ref().unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        write_file(&self.folder.join(name), text);
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.folder.join(name)).unwrap();
    }

    pub(crate) async fn until_status(
        &self,
        matches: impl Fn(&SourceStatus) -> bool,
    ) -> SourceStatus {
        let mut status = self.handle().watch_status();
        within(status.wait_for(|status| matches(status)))
            .await
            .unwrap()
            .clone()
    }

    /// Waits for a state that was applied, without a fault, and matches.
    pub(crate) async fn until_applied(&self, matches: impl Fn(&Revisions) -> bool) -> Revisions {
        let has_state = |status: &SourceStatus| {
            let is_good = status.applied_at.is_some() && status.fault.is_none();
            is_good && matches(&self.revisions())
        };
        self.until_status(has_state).await;
        self.revisions()
    }

    /// Waits for a fault that contains `part`.
    pub(crate) async fn until_fault(&self, part: &str) -> String {
        let has_part =
            |status: &SourceStatus| status.fault.as_ref().is_some_and(|it| it.contains(part));
        let status = self.until_status(has_part).await;
        status.fault.unwrap().to_string()
    }

    pub(crate) fn revisions(&self) -> Revisions {
        let model = self.controller.model();
        let functions = model.functions.iter();
        functions
            .map(|(id, function)| (id.to_string(), function.revision.0))
            .collect()
    }
}

/// A process that another test has just forked may hold the lock of a closed controller.
async fn open_when_free(config: ControllerConfig) -> Controller {
    loop {
        match Controller::open(config.clone(), Arc::new(IdleFleet), Arc::new(IdleFleet)).await {
            Err(StoreOpenError::InUse { .. }) => tokio::task::yield_now().await,
            opened => return opened.unwrap(),
        }
    }
}

pub(crate) fn write_file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A stack file with functions, each with the handler of the same name and these fields.
pub(crate) fn stack(functions: &[(&str, &str)]) -> String {
    let lines = functions.iter().map(|(name, more)| {
        format!("  {name}: {{handler: ./{name}, fprocess: python3 main.py{more}}}\n")
    });
    format!("functions:\n{}", lines.collect::<String>())
}
