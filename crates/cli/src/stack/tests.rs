//! Stack files, good and bad, in a world that is held in memory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nearpath_types::Policy;
use proptest::prelude::*;

use super::{Report, Stack, Surroundings, parse};

/// A world of one variable, one environment file and every folder but `./missing`.
struct World;

impl Surroundings for World {
    fn var(&self, name: &str) -> Option<String> {
        (name == "SET").then(|| "from-env".to_owned())
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("/stack/env.yml") => Ok("environment:\n  A: file\n  B: 3.10\n".into()),
            Some("/stack/bad.yml") => Ok("environment:\n  A: [1]\n".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn folder(&self, path: &Path) -> io::Result<PathBuf> {
        let clean: PathBuf = path.components().filter(|c| c.as_os_str() != ".").collect();
        if clean.ends_with("missing") { Err(io::ErrorKind::NotFound.into()) } else { Ok(clean) }
    }
}

fn read(text: &str) -> (Option<Stack>, Report) {
    parse("stack.yml", text, Path::new("/stack"), &World)
}

fn good(text: &str) -> Stack {
    let (stack, report) = read(text);
    stack.unwrap_or_else(|| panic!("{report}"))
}

/// A file of functions `a`, `b`, `c` and what follows.
fn abc(more: &str) -> String {
    format!("functions:\n  a: {{image: x}}\n  b: {{image: x}}\n  c: {{image: x}}\n{more}")
}

fn annotation<'a>(stack: &'a Stack, function: &str, key: &str) -> Option<&'a str> {
    let spec = stack.functions.iter().find(|spec| spec.service.as_str() == function).unwrap();
    spec.annotations.get(&format!("nearpath.io/{key}")).map(String::as_str)
}

#[test]
fn an_openfaas_file_is_read_as_it_is() {
    let stack = good(
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
    let stack = good("functions:\n  echo:\n    handler: ./echo\n    fprocess: cat\n");
    assert_eq!(
        (stack.functions[0].image.as_str(), stack.functions[0].env_process.as_str()),
        ("file:///stack/echo", "cat")
    );
    good("functions:\n  echo:\n    handler: ./echo\n    environment: {fprocess: cat}\n");
    good("functions:\n  page:\n    handler: ./page\n    environment: {mode: static}\n");
}

#[test]
fn an_environment_file_wins_over_the_environment() {
    let stack = good("functions:\n  a: {image: x, environment_file: [env.yml], environment: {A: inline, C: c}}\n");
    let wanted = [("A", "file"), ("B", "3.10"), ("C", "c")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(stack.functions[0].env_vars, BTreeMap::from(wanted));
}

#[test]
fn edges_become_annotations_of_the_caller() {
    for chains in [
        "chains:\n  shop:\n    edges:\n      a: [b, c]\n      b: [c]\n",
        "chains:\n  shop: [a -> b -> c, a -> c]\n",
        "chains:\n  shop:\n    edges: ['a -> b -> c', 'a->c']\n",
    ] {
        let stack = good(&abc(chains));
        let calls = ["a", "b", "c"].map(|name| annotation(&stack, name, "calls"));
        assert!(matches!(calls, [Some("b,c" | "c,b"), Some("c"), None]), "{calls:?}");
        assert_eq!(["a", "b", "c"].map(|name| annotation(&stack, name, "chain")), [Some("shop"); 3]);
    }
}

#[test]
fn edges_know_namespaces_and_add_to_what_is_annotated() {
    let stack = good(
        "functions:\n  a: {image: x, annotations: {nearpath.io/calls: z}}\n  b: {image: x, namespace: dev}\nchains:\n  k: [a -> b, a -> c.other, a -> a]\n",
    );
    assert_eq!(annotation(&stack, "a", "calls"), Some("z,b.dev,c.other,a"));
    let policy = Policy::of(&stack.functions[0]).unwrap();
    assert!(policy.may_call(&"b.dev".parse().unwrap()));
}

#[test]
fn who_only_answers_two_chains_belongs_to_none() {
    let stack = good(&abc("chains:\n  one: [a -> c]\n  two: [b -> c]\n"));
    assert_eq!(["a", "b", "c"].map(|name| annotation(&stack, name, "chain")), [Some("one"), Some("two"), None]);
}

#[test]
fn egress_in_both_places_is_one_list() {
    let stack = good("functions:\n  a: {image: x, egress: ['db:5432']}\negress:\n  a: ['db:5432', '*.x.org:443']\n");
    assert_eq!(annotation(&stack, "a", "egress"), Some("db:5432,*.x.org:443"));
}

#[test]
fn merge_keys_and_anchors() {
    let stack = good(
        "x-base: &base\n  image: x\n  labels: {l: '1'}\nfunctions:\n  a: {<<: *base}\n  b:\n    <<: [*base]\n    image: y\n",
    );
    assert_eq!(stack.functions.iter().map(|f| f.image.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(stack.functions[1].labels["l"], "1");
}

/// One `LINE:COLUMN: WEIGHT: TEXT` a problem.
fn told(text: &str) -> Vec<String> {
    let report = read(text).1;
    report
        .problems
        .iter()
        .map(|p| p.to_string().lines().next().unwrap().trim_start_matches("stack.yml:").to_owned())
        .collect()
}

#[test]
fn every_error_has_its_place() {
    for (text, wanted) in [
        ("", "1:1: error: the file is empty"),
        ("functions: {}\n", "1:1: error: there is no function"),
        ("functions: [a]\n", "1:12: error: functions should be a map"),
        ("functions:\n  Echo_1: {image: x}\n", "2:3: error: invalid function name \"Echo_1\""),
        ("functions:\n  é: {image: x}\n", "2:3: error: invalid function name"),
        ("functions:\n  a: {image: x}\n  a: {image: y}\n", "3:3: error: `a` is written twice; the first is on line 2"),
        ("functions:\n  a: {}\n", "2:3: error: function a says nothing of what to run"),
        ("functions:\n  a:\n    handler: ./a\n", "3:14: error: function a has no command"),
        ("functions:\n  a: {handler: ./missing, fprocess: x}\n", "2:16: error: handler folder /stack/./missing"),
        ("functions:\n  a: {image: 'file://a', fprocess: x}\n", "2:14: error: an image that is a folder"),
        ("functions:\n  a:\n    image: x\n    limits: {memory: lots}\n", "4:22: error: invalid memory \"lots\""),
        ("functions:\n  a:\n    image: x\n    limits: {pids: -1}\n", "4:20: error: pids is a whole number"),
        ("functions:\n  a:\n    image: x\n    namespace: A\n", "4:16: error: invalid namespace"),
        (
            "functions:\n  a:\n    image: x\n    readonly_root_filesystem: 7\n",
            "4:31: error: readonly_root_filesystem is true or",
        ),
        (
            "functions:\n  a:\n    image: x\n    annotations:\n      nearpath.io/queue-timeout: soon\n",
            "5:7: error: nearpath.io/queue-timeout: invalid duration",
        ),
        ("functions:\n  a:\n    image: x\n    environment: {max_inflight: x}\n", "4:19: error: max_inflight:"),
        ("functions:\n  a: {image: x, environment_file: [no.yml]}\n", "2:36: error: environment file /stack/no.yml"),
        (
            "functions:\n  a: {image: x, environment: {k: [1]}}\n",
            "2:34: error: environment.k should be text, and is a list",
        ),
        ("functions:\n  a: {image: x, egress: [db]}\n", "2:26: error: invalid egress `db`: write HOST:PORT"),
        ("egress: {b: ['x:1']}\nfunctions:\n  a: {image: x}\n", "1:10: error: function `b` is not below"),
        ("functions:\n  a: {image: \"${SET!}\"}\n", "2:15: error: this form of `${…}` is not known"),
        ("functions:\n  a: {image: '${SET}', limits: {cpu: 1Mi}}\n", "2:38: error: invalid cpu"),
        ("functions:\n\ta: x\n", "2:2: error: not valid YAML"),
        ("functions:\n  a: {image: x\n", "3:1: error: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "2:1: error: a stack file is one YAML document"),
        ("functions: &a\n  b: *a\n", "2:6: error: this alias refers to the value that it is part of"),
        ("? [a]\n: b\n", "1:3: error: a key must be text"),
        ("provider: {name: aws}\nfunctions:\n  a: {image: x}\n", "1:18: error: unknown provider `aws`"),
    ] {
        let all = told(text);
        assert!(all.iter().any(|one| one.starts_with(wanted)), "{text}\nwanted {wanted}\ngot {all:#?}");
        assert!(read(text).0.is_none(), "{text}");
    }
}

#[test]
fn edges_are_checked() {
    for (chains, wanted) in [
        ("chains:\n  k: [a -> d]\n", "6:7: error: function `d` is not below `functions:`"),
        ("chains:\n  k: [a]\n", "6:7: error: `a` is not an edge"),
        ("chains:\n  k: [a -> b -> c, c -> a]\n", "6:20: error: chain k has a cycle: a -> b -> c -> a"),
        ("chains:\n  K: [a -> b]\n", "6:3: error: invalid chain name `K`"),
        ("chains:\n  k: [a -> b]\n  l: [a -> c]\n", "7:7: error: a calls others in chain k and in chain l"),
        ("chains:\n  k:\n    edges:\n      d.other: [a]\n", "8:7: error: d.other is not below"),
    ] {
        let all = told(&abc(chains));
        assert!(all.iter().any(|one| one.starts_with(wanted)), "{chains}\nwanted {wanted}\ngot {all:#?}");
    }
}

#[test]
fn doubts_are_warnings() {
    for (text, wanted) in [
        ("functions:\n  a: {imag: y, image: x}\n", "2:7: warning: unknown key `imag` in function a"),
        ("functions:\n  a: {image: x, read_timeout: 5}\n", "2:17: warning: `read_timeout` has no effect here"),
        ("chain: {}\nfunctions:\n  a: {image: x}\n", "1:1: warning: unknown key `chain`"),
        ("functions:\n  a: {image: 'x${UNSET}'}\n", "2:16: warning: UNSET is not set"),
        ("functions:\n  a: {image: x, lang: python3}\n", "2:23: warning: templates"),
    ] {
        assert!(told(text).iter().any(|one| one.starts_with(wanted)), "{wanted}: {:#?}", told(text));
        assert!(read(text).0.is_some(), "{text}");
    }
    assert_eq!(told("x-mine: 1\nfunctions:\n  a: {image: x, x-b: 1}\n"), Vec::<String>::new());
}

#[test]
fn the_report_shows_the_line_and_what_to_do() {
    let report = read("functions:\n  cart:\n    imgae: ${A:-é}  # x\n    image: y\n").1;
    let wanted = "stack.yml:3:5: warning: unknown key `imgae` in function cart: it is ignored\n    3 |     imgae: ${A:-é}  # x\n      |     ^^^^^\n      = help: did you mean `image`?\n";
    assert_eq!(report.to_string(), wanted);
}

#[test]
fn problems_of_an_environment_file_are_at_home_there() {
    let report = read("functions:\n  a: {image: x, environment_file: [bad.yml]}\n").1;
    assert!(report.to_string().starts_with("/stack/bad.yml:2:6: error: environment.A should be text"), "{report}");
}

#[test]
fn all_errors_are_told_at_once() {
    let all =
        told("functions:\n  A: {image: x}\n  b: {image: x, limits: {cpu: x, memory: y}}\n  c: {handler: ./missing}\n");
    assert_eq!(all.len(), 5, "{all:#?}");
}

#[test]
fn bombs_are_refused() {
    let mut aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for n in 1..9 {
        let list = vec![format!("*a{}", n - 1); 10].join(",");
        aliases += &format!("a{n}: &a{n} [{list}]\n");
    }
    assert!(told(&aliases).iter().any(|one| one.contains("aliases expand")), "{:?}", told(&aliases));
    let depth = "- ".repeat(100_000);
    assert!(told(&depth).iter().any(|one| one.contains("levels deep")));
    let flow = "[".repeat(100_000);
    assert!(read(&flow).1.is_fatal());
    let line = "${UNSET}".repeat(20_000);
    assert!(read(&line).1.problems.len() <= 200);
    let many = abc(&(0..20_000).map(|n| format!("k{n}: \n")).collect::<String>());
    assert!(read(&many).1.problems.len() <= 200);
}

/// Any YAML tree, as text in flow style.
fn tree() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("functions"),
        Just("chains"),
        Just("edges"),
        Just("egress"),
        Just("provider"),
        Just("gateway"),
        Just("image"),
        Just("handler"),
        Just("fprocess"),
        Just("environment"),
        Just("environment_file"),
        Just("labels"),
        Just("limits"),
        Just("memory"),
        Just("a"),
        Just("b"),
        Just("a -> b"),
        Just("b -> a"),
        Just("''"),
        Just("~"),
        Just("3.10"),
        Just("Ä"),
        Just("<<"),
        Just("${SET}"),
        Just("db:1"),
        Just("env.yml"),
        Just("namespace"),
        Just("name"),
    ];
    let leaf = word.clone().prop_map(|word| format!("\"{}\"", word.trim_matches('\'')));
    leaf.prop_recursive(6, 60, 6, move |inner| {
        let pair =
            (word.clone(), inner.clone()).prop_map(|(key, value)| format!("\"{}\": {value}", key.trim_matches('\'')));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec(pair, 0..6).prop_map(|pairs| format!("{{{}}}", pairs.join(", "))),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "[a-c:{}\\[\\]\\-&*!|>'\"%@`#?,<$ \\n\\t~0-9é]{0,200}") {
        let (stack, report) = read(&text);
        prop_assert_eq!(stack.is_none(), report.is_fatal());
        let _ = report.to_string();
    }

    #[test]
    fn any_tree_is_answered(text in tree(), below in 0usize..3) {
        let text = match below {
            0 => text,
            1 => format!("functions: {text}"),
            _ => format!("functions: {{a: {{image: x}}, b: {{image: x}}}}\nchains: {text}"),
        };
        let (stack, report) = read(&text);
        prop_assert_eq!(stack.is_none(), report.is_fatal());
    }

    #[test]
    fn a_valid_stack_becomes_the_specs_that_it_says(
        names in prop::collection::btree_set("[a-z][a-z0-9]{0,8}", 1..6),
        values in prop::collection::btree_map("[a-z]{1,6}", "[ -~é]{0,20}", 0..4),
    ) {
        let quoted = |text: &str| serde_json::to_string(text).unwrap().replace("${", "$${");
        let environment: String = values.iter().map(|(k, v)| format!("      \"{k}\": {}\n", quoted(v))).collect();
        let function = |name: &String| format!("  \"{name}\":\n    image: {}\n    environment:\n{environment}", quoted("x: y"));
        let (stack, report) = read(&format!("functions:\n{}", names.iter().map(function).collect::<String>()));
        let stack = stack.ok_or_else(|| TestCaseError::fail(report.to_string()))?;
        prop_assert_eq!(stack.functions.iter().map(|f| f.service.to_string()).collect::<Vec<_>>(), names.into_iter().collect::<Vec<_>>());
        for spec in &stack.functions {
            prop_assert_eq!(&spec.image, "x: y");
            prop_assert_eq!(&spec.env_vars, &values);
            let json = serde_json::to_string(spec).unwrap();
            prop_assert_eq!(&serde_json::from_str::<nearpath_types::FunctionSpec>(&json).unwrap(), spec);
        }
    }
}
