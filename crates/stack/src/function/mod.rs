//! Reader of a single entry below `functions:`.

pub(crate) mod egress;
mod environment;
mod image;
mod nodes;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use nearpath_types::egress::EgressFault;
use nearpath_types::{
    EgressSpec, FunctionName, FunctionSpec, InstanceResources, NodeAddresses, NodeName, policy,
    quantity,
};

use crate::context::StackContext;
use crate::problem::ProblemList;
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::SpannedText;
use crate::yaml::{YamlEntry, YamlNode};
use egress::DeclaredDestination;
use image::ImageSource;

/// Keys of a function that have an effect.
const FUNCTION_KEYS: &[&str] = &[
    "lang",
    "handler",
    "image",
    "fprocess",
    "environment",
    "environment_file",
    "secrets",
    "constraints",
    "labels",
    "annotations",
    "limits",
    "requests",
    "readonly_root_filesystem",
    "namespace",
    "nodes",
    "egress",
];
/// Keys of OpenFaaS that concern the building of images: accepted without effect, so that existing
/// files need no change.
const BUILD_KEYS: &[&str] = &[
    "skip_build",
    "build_options",
    "build_args",
    "build_secrets",
    "platforms",
    "handler_image",
];
/// Variables of the watchdog. Old files write them as keys of the function, where they have no
/// effect, instead of below `environment:`.
const WATCHDOG_VARIABLES: &[&str] = &[
    "read_timeout",
    "write_timeout",
    "exec_timeout",
    "upstream_timeout",
    "healthcheck_interval",
    "write_debug",
    "read_debug",
    "combined_output",
    "max_inflight",
    "mode",
    "upstream_url",
    "content_type",
];

/// A function whose entry is being read, with positions in the source for the problems of later
/// checks.
#[derive(Debug, Clone)]
pub(crate) struct FunctionDraft {
    pub(crate) spec: FunctionSpec,
    pub(crate) name_span: SourceSpan,
    /// Positions of labels, annotations and variables, by key.
    spans: BTreeMap<String, SourceSpan>,
    /// Items that other sections (egress, chains, topics) add to comma-separated annotations.
    list_annotations: BTreeMap<&'static str, UniqueItems>,
    /// Egress destinations, each address once.
    destinations: Vec<EgressSpec>,
    /// Positions of the items of `nodes:`, by name.
    node_spans: BTreeMap<NodeName, SourceSpan>,
}

/// Distinct texts in the order of their first occurrence.
#[derive(Debug, Clone, Default)]
struct UniqueItems {
    order: Vec<String>,
    seen: HashSet<String>,
}

impl UniqueItems {
    fn add(&mut self, item: &str) {
        if self.seen.insert(item.to_owned()) {
            self.order.push(item.to_owned());
        }
    }
}

/// Reads one function. Returns `None` if its name is invalid. Other problems are added to
/// `problems`, and reading continues, so that the user sees all of them.
pub(crate) fn read_function(
    entry: &YamlEntry,
    folder: &Path,
    context: &dyn StackContext,
    problems: &mut ProblemList<'_>,
) -> Option<FunctionDraft> {
    let name = match entry.key.parse::<FunctionName>() {
        Ok(name) => name,
        Err(error) => {
            problems.add_error(entry.span, error.to_string());
            return None;
        }
    };
    let section = format!("function {name}");
    let mut draft = FunctionDraft {
        spec: FunctionSpec::named(name),
        name_span: entry.span,
        spans: BTreeMap::new(),
        list_annotations: BTreeMap::new(),
        destinations: Vec::new(),
        node_spans: BTreeMap::new(),
    };
    let mut image_source = ImageSource::default();
    let (mut files, mut destinations) = (Vec::new(), Vec::new());
    for field in problems.expect_map(&entry.value, &section) {
        match field.key.as_str() {
            "lang" => image_source.lang = problems.expect_text(&field.value, "lang"),
            "handler" => image_source.handler = problems.expect_text(&field.value, "handler"),
            "image" => image_source.image = problems.expect_text(&field.value, "image"),
            "egress" => destinations = egress::read_destinations(&field.value, "egress", problems),
            "environment_file" => {
                files = problems.expect_text_list(&field.value, "environment_file")
            }
            _ => draft.read_field(field, &section, problems),
        }
    }
    // After all fields: a variable from a file overrides `environment:`, as in `faas-cli`.
    for file in files {
        let variables = environment::read_environment_file(&file, folder, context, problems);
        draft.set_values(variables, |spec| &mut spec.env_vars);
    }
    draft.add_egress(destinations, problems);
    // Last: a function without `image:` needs a command, from `fprocess` or the environment.
    image_source.resolve_image(&mut draft, folder, context, problems);
    Some(draft)
}

impl FunctionDraft {
    fn read_field(&mut self, field: &YamlEntry, section: &str, problems: &mut ProblemList<'_>) {
        let value = &field.value;
        match field.key.as_str() {
            "fprocess" => {
                self.spec.env_process = problems
                    .expect_text(value, "fprocess")
                    .map(|text| text.text)
                    .unwrap_or_default();
            }
            "environment" => self
                .set_values(problems.expect_text_map(value, "environment"), |spec| {
                    &mut spec.env_vars
                }),
            "labels" => self.set_values(problems.expect_text_map(value, "labels"), |spec| {
                &mut spec.labels
            }),
            "annotations" => self
                .set_values(problems.expect_text_map(value, "annotations"), |spec| {
                    &mut spec.annotations
                }),
            "secrets" => {
                self.spec.secrets = into_strings(problems.expect_text_list(value, "secrets"))
            }
            "constraints" => {
                self.spec.constraints =
                    into_strings(problems.expect_text_list(value, "constraints"))
            }
            "limits" => self.spec.limits = read_resources(value, "limits", problems),
            "requests" => self.spec.requests = read_resources(value, "requests", problems),
            "readonly_root_filesystem" => {
                self.spec.read_only_root_filesystem =
                    problems.expect_bool(value, &field.key).unwrap_or(false);
            }
            "namespace" => self.set_namespace(value, problems),
            "nodes" => self.add_nodes(value, problems),
            key if BUILD_KEYS.contains(&key) => {}
            key if WATCHDOG_VARIABLES.contains(&key) => {
                let text = format!(
                    "`{key}` has no effect here: the watchdog reads it from `environment:`"
                );
                problems
                    .add_warning(field.span, text)
                    .set_help(format!("move `{key}` below `environment:`"));
            }
            _ => problems.warn_unknown_key(field, section, FUNCTION_KEYS),
        }
    }

    fn set_values(
        &mut self,
        texts: BTreeMap<String, SpannedText>,
        map_of: impl Fn(&mut FunctionSpec) -> &mut BTreeMap<String, String>,
    ) {
        for (key, value) in texts {
            self.spans.insert(key.clone(), value.span);
            map_of(&mut self.spec).insert(key, value.text);
        }
    }

    fn set_namespace(&mut self, value: &YamlNode, problems: &mut ProblemList<'_>) {
        // An empty namespace means the default one.
        let Some(text) = problems
            .expect_text(value, "namespace")
            .filter(|text| !text.text.is_empty())
        else {
            return;
        };
        match text.text.parse() {
            Ok(namespace) => self.spec.namespace = namespace,
            Err(error) => {
                problems.add_error(text.span, error.to_string());
            }
        }
    }

    /// Adds permitted destinations, each once.
    pub(crate) fn add_egress(
        &mut self,
        destinations: Vec<DeclaredDestination>,
        problems: &mut ProblemList<'_>,
    ) {
        for DeclaredDestination { egress, span } in destinations {
            // A repeated address is accepted if its settings are equal: the sections of the
            // function and of its chain may both declare it.
            let declared = self
                .destinations
                .iter()
                .find(|other| other.is_same_address(&egress));
            if declared.is_some_and(|other| *other != egress) {
                egress::report_invalid(
                    &egress.host_port(),
                    &EgressFault::ConflictingSettings,
                    span,
                    problems,
                );
            }
            if declared.is_none() {
                self.add_list_item(policy::EGRESS, &egress.to_string(), span);
                self.destinations.push(egress);
            }
        }
    }

    /// Adds an item to a comma-separated annotation unless it is present.
    pub(crate) fn add_list_item(&mut self, annotation: &'static str, item: &str, span: SourceSpan) {
        self.spans.entry(annotation.to_owned()).or_insert(span);
        self.list_annotations
            .entry(annotation)
            .or_default()
            .add(item);
    }

    /// Returns the finished spec. In annotations that are lists, the collected items follow those
    /// that the stack file writes itself.
    pub(crate) fn into_spec(
        mut self,
        known_nodes: Option<&NodeAddresses>,
        problems: &mut ProblemList<'_>,
    ) -> FunctionSpec {
        for (annotation, new_items) in std::mem::take(&mut self.list_annotations) {
            let value = self
                .spec
                .annotations
                .entry(annotation.to_owned())
                .or_default();
            let mut items = UniqueItems::default();
            value
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .for_each(|item| items.add(item));
            new_items.order.iter().for_each(|item| items.add(item));
            *value = items.order.join(",");
        }
        self.check_settings(problems);
        if let Some(known_nodes) = known_nodes {
            self.check_nodes(known_nodes, problems);
        }
        self.warn_ignored_settings(problems);
        self.spec
    }

    fn warn_ignored_settings(&self, problems: &mut ProblemList<'_>) {
        for ignored in self.spec.ignored_settings() {
            let span = self.spans.get(&ignored.key).copied();
            problems.add_warning(span.unwrap_or(self.name_span), ignored.to_string());
        }
    }

    /// Reports every label, annotation and variable with an invalid value.
    fn check_settings(&self, problems: &mut ProblemList<'_>) {
        let mut spec = self.spec.clone();
        while let Err(error) = policy::FunctionPolicy::from_spec(&spec) {
            let span = self.spans.get(error.key).copied().unwrap_or(self.name_span);
            problems.add_error(span, error.to_string());
            // The key is removed and the rest checked again: `from_spec` stops at the first error,
            // but the user should see all.
            let maps = [&mut spec.labels, &mut spec.annotations, &mut spec.env_vars];
            if maps
                .map(|map| map.remove(error.key))
                .iter()
                .all(Option::is_none)
            {
                return;
            }
        }
    }
}

fn into_strings(texts: Vec<SpannedText>) -> Vec<String> {
    texts.into_iter().map(|text| text.text).collect()
}

fn read_resources(
    node: &YamlNode,
    what: &str,
    problems: &mut ProblemList<'_>,
) -> Option<InstanceResources> {
    let mut out = InstanceResources::default();
    for entry in problems.expect_map(node, what) {
        let Some(text) = problems.expect_text(&entry.value, &entry.key) else {
            continue;
        };
        let checked = match entry.key.as_str() {
            "memory" => quantity::parse_memory(&text.text)
                .map(|_| out.memory = Some(text.text))
                .map_err(|e| e.to_string()),
            "cpu" => quantity::parse_cpu(&text.text)
                .map(|_| out.cpu = Some(text.text))
                .map_err(|e| e.to_string()),
            "pids" => text
                .text
                .parse()
                .map(|n| out.pids = Some(n))
                .map_err(|_| "pids must be a whole number".to_owned()),
            _ => {
                problems.warn_unknown_key(entry, what, &["memory", "cpu", "pids"]);
                Ok(())
            }
        };
        if let Err(error) = checked {
            problems.add_error(text.span, error);
        }
    }
    Some(out)
}
