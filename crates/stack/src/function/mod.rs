//! One entry below `functions:`.

pub(crate) mod egress;
mod environment;
mod origin;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use nearpath_types::egress::Flaw;
use nearpath_types::{Egress, FunctionName, FunctionSpec, Resources, policy, quantity};

use crate::problem::Problems;
use crate::surroundings::Surroundings;
use crate::text::Place;
use crate::yaml::shape::Text;
use crate::yaml::{Entry, Node};
use egress::Outside;
use origin::Origin;

/// Keys that nearpath obeys.
const KNOWN: &[&str] = &[
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
    "egress",
];
/// Keys of OpenFaaS that concern the building of images.
const BUILD: &[&str] = &["skip_build", "build_options", "build_args", "build_secrets", "platforms", "handler_image"];
/// Variables of the watchdog that old files write beside `environment:` instead of in it.
const WATCHDOG: &[&str] = &[
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

/// A function as read, with the places that later checks point at.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) spec: FunctionSpec,
    pub(crate) name_place: Place,
    /// Places of labels, annotations and variables, by key.
    places: BTreeMap<String, Place>,
    /// Items to add to annotations that are lists, each once.
    lists: BTreeMap<&'static str, Items>,
    /// Destinations outside, each place once.
    outside: Vec<Egress>,
}

/// Texts in the order in which they were first seen.
#[derive(Debug, Clone, Default)]
struct Items {
    order: Vec<String>,
    seen: HashSet<String>,
}

impl Items {
    fn add(&mut self, item: &str) {
        if self.seen.insert(item.to_owned()) {
            self.order.push(item.to_owned());
        }
    }
}

/// Reads one function. `None` when its name is not one; everything else is reported and read on.
pub(crate) fn read(
    entry: &Entry,
    folder: &Path,
    around: &dyn Surroundings,
    problems: &mut Problems<'_>,
) -> Option<Draft> {
    let name = match entry.key.parse::<FunctionName>() {
        Ok(name) => name,
        Err(error) => {
            problems.error(entry.place, error.to_string());
            return None;
        }
    };
    let home = format!("function {name}");
    let mut draft = Draft {
        spec: FunctionSpec::named(name),
        name_place: entry.place,
        places: BTreeMap::new(),
        lists: BTreeMap::new(),
        outside: Vec::new(),
    };
    let mut origin = Origin::default();
    let (mut files, mut destinations) = (Vec::new(), Vec::new());
    for field in problems.map(&entry.value, &home) {
        match field.key.as_str() {
            "lang" => origin.lang = problems.text(&field.value, "lang"),
            "handler" => origin.handler = problems.text(&field.value, "handler"),
            "image" => origin.image = problems.text(&field.value, "image"),
            "egress" => destinations = egress::read(&field.value, "egress", problems),
            "environment_file" => files = problems.texts(&field.value, "environment_file"),
            _ => draft.field(field, &home, problems),
        }
    }
    for file in files {
        let variables = environment::read(&file, folder, around, problems);
        draft.keep(variables, |spec| &mut spec.env_vars);
    }
    draft.egress(destinations, problems);
    origin.settle(&mut draft, folder, around, problems);
    Some(draft)
}

impl Draft {
    fn field(&mut self, field: &Entry, home: &str, problems: &mut Problems<'_>) {
        let value = &field.value;
        match field.key.as_str() {
            "fprocess" => {
                self.spec.env_process = problems.text(value, "fprocess").map(|text| text.text).unwrap_or_default();
            }
            "environment" => self.keep(problems.strings(value, "environment"), |spec| &mut spec.env_vars),
            "labels" => self.keep(problems.strings(value, "labels"), |spec| &mut spec.labels),
            "annotations" => self.keep(problems.strings(value, "annotations"), |spec| &mut spec.annotations),
            "secrets" => self.spec.secrets = plain(problems.texts(value, "secrets")),
            "constraints" => self.spec.constraints = plain(problems.texts(value, "constraints")),
            "limits" => self.spec.limits = resources(value, "limits", problems),
            "requests" => self.spec.requests = resources(value, "requests", problems),
            "readonly_root_filesystem" => {
                self.spec.read_only_root_filesystem = problems.flag(value, &field.key).unwrap_or(false);
            }
            "namespace" => self.namespace(value, problems),
            key if BUILD.contains(&key) => {}
            key if WATCHDOG.contains(&key) => {
                let text = format!("`{key}` has no effect here: the watchdog reads it from `environment:`");
                problems.warn(field.place, text).help(format!("move `{key}` below `environment:`"));
            }
            _ => problems.unknown(field, home, KNOWN),
        }
    }

    fn keep(&mut self, texts: BTreeMap<String, Text>, of: impl Fn(&mut FunctionSpec) -> &mut BTreeMap<String, String>) {
        for (key, value) in texts {
            self.places.insert(key.clone(), value.place);
            of(&mut self.spec).insert(key, value.text);
        }
    }

    fn namespace(&mut self, value: &Node, problems: &mut Problems<'_>) {
        let Some(text) = problems.text(value, "namespace").filter(|text| !text.text.is_empty()) else { return };
        match text.text.parse() {
            Ok(namespace) => self.spec.namespace = namespace,
            Err(error) => {
                problems.error(text.place, error.to_string());
            }
        }
    }

    /// Adds permitted destinations, each once.
    pub(crate) fn egress(&mut self, destinations: Vec<Outside>, problems: &mut Problems<'_>) {
        for Outside { egress, place } in destinations {
            let known = self.outside.iter().find(|other| other.is_at(&egress));
            if known.is_some_and(|other| *other != egress) {
                egress::tell(&egress.to(), &Flaw::Contradiction, place, problems);
            }
            if known.is_none() {
                self.add(policy::EGRESS, &egress.to_string(), place);
                self.outside.push(egress);
            }
        }
    }

    /// Adds an item to an annotation that is a list, once.
    pub(crate) fn add(&mut self, annotation: &'static str, item: &str, place: Place) {
        self.places.entry(annotation.to_owned()).or_insert(place);
        self.lists.entry(annotation).or_default().add(item);
    }

    /// The spec, with the collected lists in its annotations after what the author annotated.
    pub(crate) fn finish(mut self, problems: &mut Problems<'_>) -> FunctionSpec {
        for (annotation, added) in std::mem::take(&mut self.lists) {
            let value = self.spec.annotations.entry(annotation.to_owned()).or_default();
            let mut items = Items::default();
            value.split(',').map(str::trim).filter(|item| !item.is_empty()).for_each(|item| items.add(item));
            added.order.iter().for_each(|item| items.add(item));
            *value = items.order.join(",");
        }
        self.check_settings(problems);
        self.spec
    }

    /// Reports every label, annotation and variable that the platform would not understand.
    fn check_settings(&self, problems: &mut Problems<'_>) {
        let mut spec = self.spec.clone();
        while let Err(error) = policy::Policy::of(&spec) {
            let place = self.places.get(error.key).copied().unwrap_or(self.name_place);
            problems.error(place, error.to_string());
            let maps = [&mut spec.labels, &mut spec.annotations, &mut spec.env_vars];
            if maps.map(|map| map.remove(error.key)).iter().all(Option::is_none) {
                return;
            }
        }
    }
}

fn plain(texts: Vec<Text>) -> Vec<String> {
    texts.into_iter().map(|text| text.text).collect()
}

fn resources(node: &Node, what: &str, problems: &mut Problems<'_>) -> Option<Resources> {
    let mut out = Resources::default();
    for entry in problems.map(node, what) {
        let Some(text) = problems.text(&entry.value, &entry.key) else { continue };
        let checked = match entry.key.as_str() {
            "memory" => quantity::memory(&text.text).map(|_| out.memory = Some(text.text)).map_err(|e| e.to_string()),
            "cpu" => quantity::cpu(&text.text).map(|_| out.cpu = Some(text.text)).map_err(|e| e.to_string()),
            "pids" => text.text.parse().map(|n| out.pids = Some(n)).map_err(|_| "pids is a whole number".to_owned()),
            _ => {
                problems.unknown(entry, what, &["memory", "cpu", "pids"]);
                Ok(())
            }
        };
        if let Err(error) = checked {
            problems.error(text.place, error);
        }
    }
    Some(out)
}
