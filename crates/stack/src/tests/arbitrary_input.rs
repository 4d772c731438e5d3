//! Any text gives a result, without a crash and in bounded memory.

use proptest::prelude::*;

use super::{problem_lines, read_text, report_of, three_functions};
use crate::StackReport;

#[test]
fn expansion_bombs_are_refused() {
    let mut aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for n in 1..9 {
        let list = vec![format!("*a{}", n - 1); 10].join(",");
        aliases += &format!("a{n}: &a{n} [{list}]\n");
    }
    assert!(
        problem_lines(&aliases)
            .iter()
            .any(|one| one.contains("aliases expand")),
        "{:?}",
        problem_lines(&aliases)
    );
    let depth = "- ".repeat(100_000);
    assert!(
        problem_lines(&depth)
            .iter()
            .any(|one| one.contains("levels deep"))
    );
    let flow = "[".repeat(100_000);
    assert!(read_text(&flow).is_err());
    let line = "${UNSET}".repeat(20_000);
    assert!(report_of(&line).problems.len() <= 200);
    let many = three_functions(&(0..20_000).map(|n| format!("k{n}: \n")).collect::<String>());
    assert!(report_of(&many).problems.len() <= 200);
}

/// Any YAML tree, as text in flow style.
fn any_yaml_tree() -> impl Strategy<Value = String> {
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
        Just("to"),
        Just("max"),
        Just("db:5432 max=3"),
        Just("env.yml"),
        Just("namespace"),
        Just("name"),
    ];
    let leaf = word
        .clone()
        .prop_map(|word| format!("\"{}\"", word.trim_matches('\'')));
    leaf.prop_recursive(6, 60, 6, move |inner| {
        let pair = (word.clone(), inner.clone())
            .prop_map(|(key, value)| format!("\"{}\": {value}", key.trim_matches('\'')));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec(pair, 0..6).prop_map(|pairs| format!("{{{}}}", pairs.join(", "))),
        ]
    })
}

/// The result is a stack without errors, or a report with at least one; both can be printed.
fn check_gets_a_result(text: &str) -> Result<(), TestCaseError> {
    let fatal = read_text(text).as_ref().is_err_and(StackReport::has_errors);
    prop_assert_eq!(fatal, read_text(text).is_err());
    let report = report_of(text);
    prop_assert_eq!(report.has_errors(), fatal);
    let _ = report.to_string();
    Ok(())
}

proptest! {
    #[test]
    fn any_text_gets_a_result(text in "[a-c:{}\\[\\]\\-&*!|>'\"%@`#?,<$ \\n\\t~0-9é]{0,200}") {
        check_gets_a_result(&text)?;
    }

    #[test]
    fn any_tree_gets_a_result(text in any_yaml_tree(), below in 0usize..3) {
        let text = match below {
            0 => text,
            1 => format!("functions: {text}"),
            _ => format!("functions: {{a: {{image: x}}, b: {{image: x}}}}\nchains: {text}"),
        };
        check_gets_a_result(&text)?;
    }

    #[test]
    fn a_valid_stack_becomes_its_specs(
        names in prop::collection::btree_set("[a-z][a-z0-9]{0,8}", 1..6),
        values in prop::collection::btree_map("[a-z]{1,6}", "[ -~é]{0,20}", 0..4),
    ) {
        let quoted = |text: &str| serde_json::to_string(text).unwrap().replace("${", "$${");
        let environment: String = values.iter().map(|(k, v)| format!("      \"{k}\": {}\n", quoted(v))).collect();
        let function = |name: &String| format!("  \"{name}\":\n    image: {}\n    environment:\n{environment}", quoted("x: y"));
        let parsed = read_text(&format!("functions:\n{}", names.iter().map(function).collect::<String>()));
        let stack = parsed.map_err(|report| TestCaseError::fail(report.to_string()))?.stack;
        prop_assert_eq!(stack.functions.iter().map(|f| f.service.to_string()).collect::<Vec<_>>(), names.into_iter().collect::<Vec<_>>());
        for spec in &stack.functions {
            prop_assert_eq!(&spec.image, "x: y");
            prop_assert_eq!(&spec.env_vars, &values);
            let json = serde_json::to_string(spec).unwrap();
            prop_assert_eq!(&serde_json::from_str::<nearpath_types::FunctionSpec>(&json).unwrap(), spec);
        }
    }
}
