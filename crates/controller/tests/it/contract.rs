//! Checks every reply in a test against `contract/openapi/nearpath.yaml`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use saphyr::{LoadableYamlNode, YamlOwned};

const CONTRACT: &str = include_str!("../../../../contract/openapi/nearpath.yaml");

type Operations = BTreeMap<(String, String), Vec<u16>>;

/// (path template, method in upper case) → documented statuses.
fn documented_operations() -> &'static Operations {
    static OPERATIONS: OnceLock<Operations> = OnceLock::new();
    OPERATIONS.get_or_init(|| {
        let document = YamlOwned::load_from_str(CONTRACT)
            .expect("the contract is YAML")
            .remove(0);
        let paths = document
            .as_mapping_get("paths")
            .and_then(|paths| paths.as_mapping())
            .expect("paths");
        let text = |node: &YamlOwned| node.as_str().expect("a text key").to_owned();
        let methods = paths.iter().flat_map(|(path, item)| {
            let item = item.as_mapping().expect("a path item");
            item.iter()
                .filter(|(key, _)| text(key) != "parameters")
                .map(move |(method, op)| (text(path), text(method), op))
        });
        methods
            .map(|(path, method, op)| ((path, method.to_uppercase()), documented_statuses(op)))
            .collect()
    })
}

fn documented_statuses(operation: &YamlOwned) -> Vec<u16> {
    let responses = operation
        .as_mapping_get("responses")
        .and_then(|node| node.as_mapping())
        .expect("responses");
    responses
        .keys()
        .map(|status| {
            status
                .as_str()
                .expect("a quoted status")
                .parse()
                .expect("a status")
        })
        .collect()
}

fn path_matches(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given))
                if wanted == given || (wanted.starts_with('{') && !given.is_empty()) => {}
            _ => return false,
        }
    }
}

/// Fails the test when the reply is not documented. Requests that the document does not contain
/// must be refused.
pub(crate) fn check_documented(method: &str, path: &str, status: u16) {
    let path = path.split('?').next().unwrap_or_default();
    let method = if method == "HEAD" { "GET" } else { method };
    let known = documented_operations()
        .iter()
        .find(|((template, verb), _)| verb == method && path_matches(template, path));
    match known {
        Some((_, statuses)) => assert!(
            statuses.contains(&status),
            "{method} {path}: {status} is not documented"
        ),
        None => assert!(
            [401, 404, 405, 501].contains(&status),
            "{method} {path} ({status}) is not documented"
        ),
    }
}

#[test]
fn undocumented_replies_are_detected() {
    assert!(documented_operations().len() > 20);
    check_documented("GET", "/system/functions?namespace=x", 200);
    assert!(
        std::panic::catch_unwind(|| check_documented("GET", "/system/functions", 418)).is_err()
    );
    assert!(std::panic::catch_unwind(|| check_documented("GET", "/system/nonsense", 200)).is_err());
}
