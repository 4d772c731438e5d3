//! Context of stack files that records what they use.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

use nearpath_stack::{HostContext, StackContext};
use nearpath_types::NodeAddresses;

use crate::scan::WatchedPaths;

/// The machine, with a record of files and folders that were used.
pub(crate) struct RecordingContext<'a> {
    nodes: Option<&'a NodeAddresses>,
    used: RefCell<WatchedPaths>,
}

impl<'a> RecordingContext<'a> {
    /// Functions may name only `nodes`, unless there is none.
    pub(crate) fn new(nodes: Option<&'a NodeAddresses>) -> Self {
        Self {
            nodes,
            used: RefCell::default(),
        }
    }

    /// Returns the files and folders that were used, also missing ones.
    pub(crate) fn into_used(self) -> WatchedPaths {
        self.used.into_inner()
    }
}

impl StackContext for RecordingContext<'_> {
    fn env_variable(&self, name: &str) -> Option<String> {
        HostContext.env_variable(name)
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        self.used.borrow_mut().files.insert(path.to_owned());
        HostContext.read_file(path)
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        // Also without a function of this node: the path may become a folder later. The files below
        // it matter to the functions that run here only, so their reader adds the tree.
        self.used.borrow_mut().files.insert(path.to_owned());
        HostContext.resolve_folder(path)
    }

    fn known_nodes(&self) -> Option<&NodeAddresses> {
        self.nodes
    }
}
