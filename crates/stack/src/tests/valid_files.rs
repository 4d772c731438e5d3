//! Specs of valid files.

use std::collections::BTreeMap;

use nearpath_types::FunctionPolicy;

use super::{three_functions, valid_stack};
use crate::StackSpec;

fn annotation_of<'a>(stack: &'a StackSpec, function: &str, key: &str) -> Option<&'a str> {
    let spec = stack
        .functions
        .iter()
        .find(|spec| spec.service.as_str() == function)
        .unwrap();
    spec.annotations
        .get(&format!("nearpath.io/{key}"))
        .map(String::as_str)
}

#[test]
fn an_openfaas_file_is_read_without_changes() {
    let stack = valid_stack(
        r#"
version: 1.0
provider: {name: openfaas, gateway: "http://10.0.0.1:8080"}
functions:
  fib:
    lang: dockerfile
    handler: ./fib
    image: ghcr.io/x/fib:${TAG:-latest}
    environment: {write_debug: true, exec_timeout: 10s, port: 0x10, who: "${SET}"}
    environment_file: [env.yml]
    secrets: [one]
    labels: {com.openfaas.scale.min: 2}
    annotations: {topic: t}
    limits: {memory: 128Mi, cpu: 100m}
    requests: {memory: 64Mi}
    constraints: ["node.platform.os == linux"]
    readonly_root_filesystem: true
    build_args: {X: y}
    skip_build: true
configuration: {copy: [./common]}
"#,
    );
    assert_eq!(stack.gateway.as_deref(), Some("http://10.0.0.1:8080"));
    let spec = serde_json::to_value(&stack.functions[0]).unwrap();
    let wanted = serde_json::json!({
        "service": "fib", "namespace": "openfaas-fn", "image": "ghcr.io/x/fib:latest",
        "envVars": {"write_debug": "true", "exec_timeout": "10s", "port": "0x10", "who": "from-env", "A": "file", "B": "3.10"},
        "secrets": ["one"], "labels": {"com.openfaas.scale.min": "2"}, "annotations": {"topic": "t"},
        "limits": {"memory": "128Mi", "cpu": "100m"}, "requests": {"memory": "64Mi"},
        "constraints": ["node.platform.os == linux"], "readOnlyRootFilesystem": true
    });
    assert_eq!(spec, wanted);
}

#[test]
fn a_handler_folder_becomes_a_file_image() {
    let stack = valid_stack("functions:\n  echo:\n    handler: ./echo\n    fprocess: cat\n");
    assert_eq!(
        (
            stack.functions[0].image.as_str(),
            stack.functions[0].env_process.as_str()
        ),
        ("file:///stack/echo", "cat")
    );
    valid_stack("functions:\n  echo:\n    handler: ./echo\n    environment: {fprocess: cat}\n");
    valid_stack("functions:\n  page:\n    handler: ./page\n    environment: {mode: static}\n");
}

#[test]
fn an_environment_file_wins_over_the_environment() {
    let stack = valid_stack(
        "functions:\n  a: {image: x, environment_file: [env.yml], environment: {A: inline, C: c}}\n",
    );
    let wanted =
        [("A", "file"), ("B", "3.10"), ("C", "c")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(stack.functions[0].env_vars, BTreeMap::from(wanted));
}

#[test]
fn edges_become_annotations_of_the_caller() {
    for chains in [
        "chains:\n  shop:\n    edges:\n      a: [b, c]\n      b: [c]\n",
        "chains:\n  shop: [a -> b -> c, a -> c]\n",
        "chains:\n  shop:\n    edges: ['a -> b -> c', 'a->c']\n",
    ] {
        let stack = valid_stack(&three_functions(chains));
        let calls = ["a", "b", "c"].map(|name| annotation_of(&stack, name, "calls"));
        assert!(
            matches!(calls, [Some("b,c" | "c,b"), Some("c"), None]),
            "{calls:?}"
        );
        assert_eq!(
            ["a", "b", "c"].map(|name| annotation_of(&stack, name, "chain")),
            [Some("shop"); 3]
        );
    }
}

#[test]
fn settings_of_edges_travel_with_them() {
    for (edges, calls) in [
        ("{a: [b balance=connection, c]}", "b balance=connection,c"),
        (
            "{a: [{to: b, balance: connection}, {to: c, x-note: 1}]}",
            "b balance=connection,c",
        ),
        (
            "{a: [{to: rates=b, balance: request}]}",
            "rates=b balance=request",
        ),
        (
            "['a -> rates=b balance=connection -> c']",
            "rates=b balance=connection",
        ),
    ] {
        let chains = format!("chains:\n  shop:\n    edges: {edges}\n");
        let stack = valid_stack(&three_functions(&chains));
        assert_eq!(annotation_of(&stack, "a", "calls"), Some(calls), "{edges}");
    }
}

#[test]
fn edges_across_namespaces_extend_existing_annotations() {
    let stack = valid_stack(
        "functions:\n  a: {image: x, annotations: {nearpath.io/calls: z}}\n  b: {image: x, namespace: dev}\nchains:\n  k: [a -> b, a -> c.other, a -> a]\n",
    );
    assert_eq!(
        annotation_of(&stack, "a", "calls"),
        Some("z,b.dev,c.other,a")
    );
    let policy = FunctionPolicy::from_spec(&stack.functions[0]).unwrap();
    assert!(policy.may_call(&"b.dev".parse().unwrap()));
}

#[test]
fn aliases_topics_delivery_and_isolation_become_annotations() {
    let stack = valid_stack(&three_functions(
        "chains:\n  shop:\n    edges: {a: [rates=b]}\n    topics:\n      order/placed: {from: a, to: [c]}\n      stock/+: {from: [b, c], to: c}\n    delivery: poll\n    isolation: strict\n",
    ));
    let of = |key| ["a", "b", "c"].map(|name| annotation_of(&stack, name, key));
    assert_eq!(of("calls"), [Some("rates=b"), None, None]);
    assert_eq!(
        of("publishes"),
        [Some("order/placed"), Some("stock/+"), Some("stock/+")]
    );
    assert_eq!(of("subscribes"), [None, None, Some("order/placed,stock/+")]);
    assert_eq!(
        (of("chain"), of("delivery")),
        ([Some("shop"); 3], [Some("poll"); 3])
    );
    assert_eq!(of("isolation"), [Some("strict"); 3]);
    let policy = FunctionPolicy::from_spec(&stack.functions[0]).unwrap();
    assert_eq!(
        policy.resolve_alias(&"rates".parse().unwrap()),
        Some(&"b".parse().unwrap())
    );
    let walked = valid_stack(&three_functions("chains:\n  shop: [a -> rates=b -> c]\n"));
    assert_eq!(
        ["a", "b"].map(|name| annotation_of(&walked, name, "calls")),
        [Some("rates=b"), Some("c")]
    );
}

#[test]
fn every_chain_setting_becomes_an_annotation() {
    for (key, values) in [
        ("delivery", &["ring", "sockmap", "poll"][..]),
        ("isolation", &["shared", "strict"]),
        ("placement", &["auto", "core", "spread"]),
        ("pages", &["small", "huge", "auto"]),
    ] {
        for value in values {
            let stack = valid_stack(&three_functions(&format!(
                "chains:\n  shop:\n    edges: {{a: [b]}}\n    {key}: {value}\n"
            )));
            assert_eq!(
                ["a", "b", "c"].map(|name| annotation_of(&stack, name, key)),
                [Some(*value), Some(*value), None],
                "{key}"
            );
            let policy = FunctionPolicy::from_spec(&stack.functions[1]).unwrap();
            let read = [
                ("delivery", policy.delivery.to_string()),
                ("isolation", policy.isolation.to_string()),
                (
                    "placement",
                    format!("{:?}", policy.placement).to_lowercase(),
                ),
                ("pages", format!("{:?}", policy.pages).to_lowercase()),
            ];
            assert!(
                read.contains(&(key, (*value).to_owned())),
                "the platform reads it as written: {read:?}"
            );
        }
    }
}

#[test]
fn a_functions_own_annotation_wins_over_its_chain() {
    let stack = valid_stack(
        "functions:\n  a: {image: x, annotations: {nearpath.io/placement: spread}}\n  b: {image: x}\nchains:\n  k:\n    edges: {a: [b]}\n    placement: core\n    pages: auto\n",
    );
    assert_eq!(
        ["a", "b"].map(|name| annotation_of(&stack, name, "placement")),
        [Some("spread"), Some("core")]
    );
    assert_eq!(
        ["a", "b"].map(|name| annotation_of(&stack, name, "pages")),
        [Some("auto"); 2]
    );
}

#[test]
fn a_callee_of_two_chains_belongs_to_none() {
    let stack = valid_stack(&three_functions(
        "chains:\n  one: [a -> c]\n  two: [b -> c]\n",
    ));
    assert_eq!(
        ["a", "b", "c"].map(|name| annotation_of(&stack, name, "chain")),
        [Some("one"), Some("two"), None]
    );
}

#[test]
fn egress_of_both_sections_is_one_list() {
    let stack = valid_stack(
        "functions:\n  a: {image: x, egress: ['db:5432']}\negress:\n  a: ['db:5432', '*.x.org:443']\n",
    );
    assert_eq!(
        annotation_of(&stack, "a", "egress"),
        Some("db:5432,*.x.org:443")
    );
}

#[test]
fn a_destination_is_a_text_or_a_map() {
    let egress = "[{to: 'db:5432', max: 20, mode: session, password: 'secret:p', user: u, x-mine: 1}, 'api.x:443 warm=2']";
    let stack = valid_stack(&format!(
        "functions:\n  a: {{image: x, egress: {egress}}}\n"
    ));
    let text = "db:5432 mode=session user=u password=secret:p,api.x:443 warm=2";
    assert_eq!(
        annotation_of(&stack, "a", "egress"),
        Some(text),
        "defaults are not written"
    );
    assert_eq!(
        FunctionPolicy::from_spec(&stack.functions[0])
            .unwrap()
            .egress
            .len(),
        2
    );
}

#[test]
fn prefetch_paths_are_a_list_or_a_text() {
    for paths in ["['GET /rates', /day]", "'GET /rates|GET /day'"] {
        let egress = format!("[{{to: 'api.x:80', protocol: http, prefetch: {paths}}}]");
        let stack = valid_stack(&format!(
            "functions:\n  a: {{image: x, egress: {egress}}}\n"
        ));
        assert_eq!(
            annotation_of(&stack, "a", "egress"),
            Some("api.x:80 protocol=http prefetch=/rates|/day")
        );
    }
}

#[test]
fn merge_keys_and_anchors_are_expanded() {
    let stack = valid_stack(
        "x-base: &base\n  image: x\n  labels: {l: '1'}\nfunctions:\n  a: {<<: *base}\n  b:\n    <<: [*base]\n    image: y\n",
    );
    assert_eq!(
        stack
            .functions
            .iter()
            .map(|f| f.image.as_str())
            .collect::<Vec<_>>(),
        ["x", "y"]
    );
    assert_eq!(stack.functions[1].labels["l"], "1");
}
