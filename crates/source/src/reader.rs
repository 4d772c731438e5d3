//! Reading of a folder into a declared state, or into its faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nearpath_controller::{DeclaredFunction, DeclaredState, FolderDigest, SecretId, SecretValue};
use nearpath_stack::{ProblemSeverity, StackReadError, StackSpec, read_nodes, read_stack};
use nearpath_types::similar::find_similar;
use nearpath_types::{FunctionId, FunctionPolicy, FunctionSpec, NodeAddresses, NodeName};

use crate::digest::DigestCache;
use crate::fault::{FolderFaults, lines_of};
use crate::recording::RecordingContext;
use crate::scan::WatchedPaths;
use crate::secrets::{read_secret, secret_paths};

/// The list of nodes.
const NODES_FILE: &str = "nodes.yml";

/// Location of a source, and the node that reads it.
#[derive(Debug, Clone)]
pub(crate) struct SourceLocation {
    pub(crate) node: NodeName,
    pub(crate) folder: PathBuf,
    pub(crate) secrets: PathBuf,
}

/// Result of a reading.
#[derive(Debug)]
pub(crate) struct FolderReading {
    pub(crate) state: Result<DeclaredState, FolderFaults>,
    /// Files and folders that it was made from.
    pub(crate) watched: WatchedPaths,
    /// Warnings of the files, a line each.
    pub(crate) warnings: Vec<String>,
}

/// Reads everything. No fault hides another. Blocks.
pub(crate) fn read_folder(location: &SourceLocation, digests: &mut DigestCache) -> FolderReading {
    let mut reader = FolderReader {
        location,
        digests,
        watched: WatchedPaths::default(),
        faults: FolderFaults::default(),
        warnings: Vec::new(),
    };
    let nodes = reader.read_nodes();
    let stacks = reader.read_stacks(nodes.as_ref());
    let specs = reader.merge_functions(stacks);
    let (mut functions, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for (id, spec) in specs {
        let folder = reader.read_local_parts(&spec, &mut secrets);
        let spec = Arc::new(spec);
        functions.insert(id, DeclaredFunction { spec, folder });
    }
    let trees = &reader.watched.trees;
    reader.digests.retain_folders(|path| trees.contains(path));
    let state = match (nodes, reader.faults.is_empty()) {
        (Some(nodes), true) => Ok(DeclaredState {
            node: location.node.clone(),
            nodes,
            functions,
            secrets,
        }),
        _ => Err(reader.faults),
    };
    FolderReading {
        state,
        watched: reader.watched,
        warnings: reader.warnings,
    }
}

/// Returns the files at the top of a folder that may be stack files.
///
/// # Errors
/// When the folder cannot be listed.
pub(crate) fn stack_candidates(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let is_candidate = |name: &str| {
        let extension = Path::new(name).extension().unwrap_or_default();
        // Hidden files are those of editors and of programs that copy.
        !name.starts_with('.') && name != NODES_FILE && (extension == "yml" || extension == "yaml")
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        found.extend(
            name.to_str()
                .filter(|name| is_candidate(name))
                .map(|name| folder.join(name)),
        );
    }
    Ok(found)
}

/// Result of one stack file, with the other files that it named.
struct StackFile {
    path: PathBuf,
    stack: Result<StackSpec, StackReadError>,
    warnings: Vec<String>,
}

struct FolderReader<'a> {
    location: &'a SourceLocation,
    digests: &'a mut DigestCache,
    watched: WatchedPaths,
    faults: FolderFaults,
    warnings: Vec<String>,
}

impl FolderReader<'_> {
    /// Reads the list of nodes, which must have this node.
    fn read_nodes(&mut self) -> Option<NodeAddresses> {
        let path = self.location.folder.join(NODES_FILE);
        let context = RecordingContext::new(None);
        let read = read_nodes(&path, &context);
        self.watched.extend(context.into_used());
        match read {
            Ok(parsed) => {
                let warnings = lines_of(&parsed.warnings, ProblemSeverity::Warning);
                self.warnings.extend(warnings);
                self.check_own_name(&path, &parsed.nodes);
                Some(parsed.nodes)
            }
            Err(error) => {
                self.faults.add_read_error(&path, &error);
                None
            }
        }
    }

    fn check_own_name(&mut self, path: &Path, nodes: &NodeAddresses) {
        let own = &self.location.node;
        if nodes.contains_key(own) {
            return;
        }
        let names = nodes.keys().map(NodeName::as_str);
        let help = match find_similar(own.as_str(), names) {
            Some(name) => format!("is its name `{name}`? Set it with --name"),
            None => "add it, or set its name with --name".to_owned(),
        };
        let path = path.display();
        self.faults.push(format!(
            "{path}: this node, {own}, is not in the list: {help}"
        ));
    }

    fn read_stacks(&mut self, nodes: Option<&NodeAddresses>) -> Vec<StackFile> {
        let candidates = match stack_candidates(&self.location.folder) {
            Ok(candidates) => candidates,
            Err(error) => {
                let folder = self.location.folder.display();
                self.faults
                    .push(format!("{folder}: cannot be listed: {error}"));
                return Vec::new();
            }
        };
        let (mut files, mut named) = (Vec::new(), BTreeSet::new());
        for path in candidates {
            let context = RecordingContext::new(nodes);
            let read = read_stack(&path, &context);
            let used = context.into_used();
            named.extend(used.files.iter().filter(|one| **one != path).cloned());
            self.watched.extend(used);
            files.push(StackFile::new(path, read));
        }
        // Files of variables (`environment_file:`) may be beside stack files.
        files.retain(|file| !named.contains(&file.path));
        files
    }

    /// Returns the functions of all files, each declared once.
    fn merge_functions(&mut self, files: Vec<StackFile>) -> BTreeMap<FunctionId, FunctionSpec> {
        let (mut specs, mut origins) = (BTreeMap::new(), BTreeMap::<FunctionId, PathBuf>::new());
        for file in files {
            self.warnings.extend(file.warnings);
            let stack = match file.stack {
                Ok(stack) => stack,
                Err(error) => {
                    self.faults.add_read_error(&file.path, &error);
                    continue;
                }
            };
            for spec in stack.functions {
                match origins.insert(spec.id(), file.path.clone()) {
                    Some(other) => self.faults.push(format!(
                        "function {} is in {} and in {}: remove it from one of them",
                        spec.id(),
                        other.display(),
                        file.path.display()
                    )),
                    None => drop(specs.insert(spec.id(), spec)),
                }
            }
        }
        specs
    }

    /// Reads what only the functions of this node need: the content of its folder, and its secrets.
    fn read_local_parts(
        &mut self,
        spec: &FunctionSpec,
        secrets: &mut BTreeMap<SecretId, SecretValue>,
    ) -> Option<FolderDigest> {
        // Invalid settings were reported by the reader of the file.
        let policy = FunctionPolicy::from_spec(spec).unwrap_or_default();
        if !policy.runs_on(&self.location.node) {
            return None;
        }
        for name in spec.needed_secrets() {
            self.read_secret(spec, &name, secrets);
        }
        self.digest_image(spec)
    }

    fn read_secret(
        &mut self,
        spec: &FunctionSpec,
        name: &str,
        secrets: &mut BTreeMap<SecretId, SecretValue>,
    ) {
        let id = match name.parse() {
            Ok(name) => SecretId {
                namespace: spec.namespace.clone(),
                name,
            },
            Err(error) => return self.faults.push(format!("function {}: {error}", spec.id())),
        };
        let paths = secret_paths(&self.location.secrets, &id);
        self.watched.files.extend(paths.iter().cloned());
        if secrets.contains_key(&id) {
            return;
        }
        match read_secret(&paths) {
            Ok(value) => drop(secrets.insert(id, value)),
            Err(fault) => self.faults.push(format!(
                "function {} needs secret {name}: {fault}",
                spec.id()
            )),
        }
    }

    fn digest_image(&mut self, spec: &FunctionSpec) -> Option<FolderDigest> {
        // The controller refuses other images.
        let folder = PathBuf::from(spec.image.strip_prefix("file://")?);
        self.watched.trees.insert(folder.clone());
        match self.digests.digest_of(&folder) {
            Ok(digest) => Some(digest),
            Err(error) => {
                let (id, folder) = (spec.id(), folder.display());
                self.faults
                    .push(format!("function {id}: its folder {folder}: {error}"));
                None
            }
        }
    }
}

impl StackFile {
    fn new(path: PathBuf, read: Result<nearpath_stack::ParsedStack, StackReadError>) -> Self {
        let warnings = match &read {
            Ok(parsed) => lines_of(&parsed.warnings, ProblemSeverity::Warning).collect(),
            Err(_) => Vec::new(),
        };
        Self {
            path,
            stack: read.map(|parsed| parsed.stack),
            warnings,
        }
    }
}
