//! Routes a topic to functions: the one that it names, and those that declared a matching filter.

use std::collections::BTreeMap;

use nearpath_types::FunctionId;
use nearpath_types::name::DEFAULT_NAMESPACE;
use tokio::sync::watch;

use nearpath_gateway::invoke::{FunctionHandle, FunctionTable};

use crate::filter_tree::FilterTree;
use crate::url_encoding::encode_segment;

const PREFIX: &str = "functions";
const RESULT: &str = "result";

/// The meaning of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopicKind<'a> {
    /// `functions/NAME/result`: only the platform publishes there.
    Result(&'a str),
    /// `functions/NAME[/PATH]`: calls NAME.
    Function(&'a str, &'a str),
    /// Anything else calls the functions that declared a filter for it.
    Other,
}

/// Parses a topic, or a filter, which may have a wildcard in the name's place.
pub(crate) fn parse_topic(topic: &str) -> TopicKind<'_> {
    let Some(after) = topic
        .strip_prefix(PREFIX)
        .and_then(|after| after.strip_prefix('/'))
    else {
        return TopicKind::Other;
    };
    match after.split_once('/') {
        Some((name, RESULT)) => TopicKind::Result(name),
        Some((name, path)) => TopicKind::Function(name, path),
        None => TopicKind::Function(after, ""),
    }
}

/// Returns the topic of a function's results. Functions of the default namespace go by their short
/// names.
pub(crate) fn result_topic(id: &FunctionId) -> String {
    // One form only: subscribers find all results of a function under one topic.
    match id.namespace.as_str() == DEFAULT_NAMESPACE {
        true => format!("{PREFIX}/{}/{RESULT}", id.name),
        false => format!("{PREFIX}/{id}/{RESULT}"),
    }
}

/// A function to call, with the path that it sees.
pub(crate) type TopicTarget = (FunctionHandle, String);

/// Routes to all functions, as of one snapshot.
pub(crate) struct TopicRoutes {
    functions: FunctionTable,
    changes: watch::Receiver<u64>,
    declared: FilterTree<FunctionId, FunctionHandle>,
}

impl TopicRoutes {
    pub(crate) fn new(functions: FunctionTable) -> Self {
        let mut routes = Self {
            changes: functions.subscribe(),
            functions,
            declared: FilterTree::default(),
        };
        routes.changes.mark_changed(); // so that the first topic reads the snapshot
        routes
    }

    /// Returns whether a function has that name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.functions.find_by_name(name).is_some()
    }

    /// Returns the functions that a message on `topic` calls, each once.
    pub(crate) fn targets(&mut self, topic: &str) -> Vec<TopicTarget> {
        self.refresh();
        // Keyed by function: it is called once, however many of its filters match.
        let mut targets = BTreeMap::new();
        let mut add_target = |id: &FunctionId, function: &FunctionHandle| {
            targets.insert(id.to_string(), (function.clone(), String::new()));
        };
        match parse_topic(topic) {
            // A function that declared `#` would otherwise call itself with its own results.
            TopicKind::Result(_) => return Vec::new(),
            TopicKind::Other => self.declared.select(topic, &mut add_target),
            TopicKind::Function(name, path) => {
                self.declared.select(topic, &mut add_target);
                if let Some(function) = self.functions.find_by_name(name) {
                    // Overwrites an entry without a path: the function that the topic names sees
                    // the path.
                    targets.insert(function.id().to_string(), (function, function_path(path)));
                }
            }
        }
        targets.into_values().collect()
    }

    fn refresh(&mut self) {
        // An error means that the gateway is gone; the last routes serve until the task ends too.
        if !self.changes.has_changed().unwrap_or(false) {
            return;
        }
        // Before the table is read: a snapshot published meanwhile is seen by the next topic.
        self.changes.mark_unchanged();
        self.declared = FilterTree::default();
        for function in self.functions.list_with_topics() {
            for filter in &function.policy().topics {
                self.declared
                    .insert(filter, function.id().clone(), function.clone());
            }
        }
    }
}

fn function_path(path: &str) -> String {
    match path {
        "" => String::new(),
        path => path.split('/').fold(String::new(), |whole, level| {
            whole + "/" + &encode_segment(level)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_daemon::metrics::MetricsRegistry;
    use nearpath_gateway::{Gateway, GatewaySettings, NoControl};
    use nearpath_types::{FunctionPolicy, FunctionRoute, RoutingSnapshot};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// A gateway that does not serve: its table of functions is all that routes read.
    fn gateway_with(functions: &[(&str, &[&str])]) -> Gateway {
        let gateway = Gateway::new(
            GatewaySettings::default(),
            Arc::new(NoControl),
            &MetricsRegistry::default(),
        );
        let functions = functions.iter().map(|(name, topics)| {
            let topics = topics.iter().map(|topic| topic.to_string()).collect();
            FunctionRoute {
                address: None,
                id: name.parse().unwrap(),
                policy: FunctionPolicy {
                    topics,
                    ..FunctionPolicy::default()
                }
                .into(),
                replicas: 1,
                instances: Vec::new(),
                runs_here: true,
                remotes: Vec::new(),
                start_failure: None,
            }
        });
        gateway.publish(&RoutingSnapshot {
            version: 1,
            nodes: Arc::default(),
            functions: functions.collect(),
        });
        gateway
    }

    fn target_names(routes: &mut TopicRoutes, topic: &str) -> String {
        let names = routes
            .targets(topic)
            .into_iter()
            .map(|(function, path)| format!("{}{path}", function.id().name));
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_topic_names_its_function_or_was_declared() {
        let gateway = gateway_with(&[
            ("echo", &[]),
            ("on", &["vm/+/on", "vm/1/#"]),
            ("all", &["#"]),
            ("far.dev", &[]),
        ]);
        let mut routes = TopicRoutes::new(gateway.functions());
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
            assert_eq!(target_names(&mut routes, topic), called, "{topic}");
        }
        gateway.publish(&RoutingSnapshot::default());
        assert_eq!(
            target_names(&mut routes, "vm/1/on"),
            "",
            "it follows the snapshot"
        );
        assert_eq!(
            result_topic(&"far.dev".parse().unwrap()),
            "functions/far.dev/result"
        );
        assert_eq!(
            result_topic(&"echo".parse().unwrap()),
            "functions/echo/result"
        );
    }

    proptest! {
        #[test]
        fn any_topic_makes_a_path(path in "\\PC{0,30}") {
            let path = function_path(&path);
            prop_assert!(path.is_empty() || path.parse::<http::Uri>().is_ok());
        }

        #[test]
        fn a_result_topic_calls_no_function(name in "[a-z]{1,5}") {
            let mut routes = TopicRoutes::new(gateway_with(&[(&name, &["#", "functions/#"])]).functions());
            prop_assert!(routes.targets(&result_topic(&name.parse().unwrap())).is_empty());
        }
    }
}
