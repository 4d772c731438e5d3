//! Which functions a topic calls: the one that it names, and those that declared a filter for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::FunctionId;
use nearpath_types::name::DEFAULT_NAMESPACE;
use tokio::sync::watch;

use super::invoke::segment;
use super::tree::Tree;
use crate::route::{Function, Table};

const PREFIX: &str = "functions";
const RESULT: &str = "result";

/// What a topic is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic<'a> {
    /// `functions/NAME/result`: only the platform publishes there.
    Result(&'a str),
    /// `functions/NAME[/PATH]`: calls NAME.
    Function(&'a str, &'a str),
    /// Anything else calls those who declared it.
    Other,
}

/// Reads a topic, or a filter, which may have wildcards in the name's place.
pub(crate) fn read(topic: &str) -> Topic<'_> {
    let Some(after) = topic.strip_prefix(PREFIX).and_then(|after| after.strip_prefix('/')) else { return Topic::Other };
    match after.split_once('/') {
        Some((name, RESULT)) => Topic::Result(name),
        Some((name, path)) => Topic::Function(name, path),
        None => Topic::Function(after, ""),
    }
}

/// Where a function's results are published. Functions of the default namespace go by their short names.
pub(crate) fn result_topic(id: &FunctionId) -> String {
    match id.namespace.as_str() == DEFAULT_NAMESPACE {
        true => format!("{PREFIX}/{}/{RESULT}", id.name),
        false => format!("{PREFIX}/{id}/{RESULT}"),
    }
}

/// A function to call, with the path that it sees.
pub(crate) type Aim = (Arc<Function>, String);

/// The rules of all functions, as of one snapshot.
pub(crate) struct Rules {
    table: Arc<Table>,
    changes: watch::Receiver<u64>,
    declared: Tree<FunctionId, Arc<Function>>,
}

impl Rules {
    pub(crate) fn new(table: Arc<Table>) -> Self {
        let mut rules = Self { changes: table.changes(), table, declared: Tree::default() };
        rules.changes.mark_changed();
        rules
    }

    /// Whether there is a function of that name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.table.find(name).is_some()
    }

    /// The functions that a message on `topic` calls, each once. Empty: nobody.
    pub(crate) fn aims(&mut self, topic: &str) -> Vec<Aim> {
        self.refresh();
        let mut aims = BTreeMap::new();
        let mut declared = |id: &FunctionId, function: &Arc<Function>| {
            aims.insert(id.to_string(), (function.clone(), String::new()));
        };
        match read(topic) {
            Topic::Result(_) => return Vec::new(),
            Topic::Other => self.declared.select(topic, &mut declared),
            Topic::Function(name, path) => {
                self.declared.select(topic, &mut declared);
                if let Some(function) = self.table.find(name) {
                    aims.insert(function.id.to_string(), (function, own_path(path)));
                }
            }
        }
        aims.into_values().collect()
    }

    fn refresh(&mut self) {
        if !self.changes.has_changed().unwrap_or(false) {
            return;
        }
        self.changes.mark_unchanged();
        self.declared = Tree::default();
        for function in self.table.functions() {
            for filter in &function.route().policy.topics {
                self.declared.insert(filter, function.id.clone(), function.clone());
            }
        }
    }
}

fn own_path(path: &str) -> String {
    match path {
        "" => String::new(),
        path => path.split('/').fold(String::new(), |whole, level| whole + "/" + &segment(level)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::{FunctionRoute, Policy, Snapshot};
    use proptest::prelude::*;

    fn table(functions: &[(&str, &[&str])]) -> Arc<Table> {
        let table = Arc::<Table>::default();
        let functions = functions.iter().map(|(name, topics)| {
            let topics = topics.iter().map(|topic| topic.to_string()).collect();
            FunctionRoute {
                id: name.parse().unwrap(),
                policy: Policy { topics, ..Policy::default() }.into(),
                replicas: 1,
                instances: Vec::new(),
                trouble: None,
            }
        });
        table.publish(&Snapshot { version: 1, functions: functions.collect() });
        table
    }

    fn aims(rules: &mut Rules, topic: &str) -> String {
        let shown = rules.aims(topic).into_iter().map(|(function, path)| format!("{}{path}", function.id.name));
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_topic_names_its_function_or_was_declared() {
        let table = table(&[("echo", &[]), ("on", &["vm/+/on", "vm/1/#"]), ("all", &["#"]), ("far.dev", &[])]);
        let mut rules = Rules::new(table.clone());
        for (topic, called) in [
            ("functions/echo", "all echo"),
            ("functions/echo/a b/é", "all echo/a%20b/%C3%A9"),
            ("functions/echo/", "all echo"),
            ("functions/echo/result", ""),
            ("functions/far.dev/result", ""),
            ("functions/echo/result/x", "all echo/result/x"),
            ("functions/missing", "all"),
            ("vm/1/on", "all on"),
            ("vm/2/off", "all"),
            ("$SYS/x", ""),
        ] {
            assert_eq!(aims(&mut rules, topic), called, "{topic}");
        }
        table.publish(&Snapshot::default());
        assert_eq!(aims(&mut rules, "vm/1/on"), "", "it follows the snapshot");
        assert_eq!(result_topic(&"far.dev".parse().unwrap()), "functions/far.dev/result");
        assert_eq!(result_topic(&"echo".parse().unwrap()), "functions/echo/result");
    }

    proptest! {
        #[test]
        fn any_topic_makes_a_path(path in "\\PC{0,30}") {
            let path = own_path(&path);
            prop_assert!(path.is_empty() || path.parse::<http::Uri>().is_ok());
        }

        #[test]
        fn nobody_calls_through_a_result(name in "[a-z]{1,5}") {
            let mut rules = Rules::new(table(&[(&name, &["#", "functions/#"])]));
            prop_assert!(rules.aims(&result_topic(&name.parse().unwrap())).is_empty());
        }
    }
}
