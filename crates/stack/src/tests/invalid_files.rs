//! Errors and warnings, each with its position.

use super::{problem_lines, read_text, report_of, three_functions};

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn every_error_has_a_position() {
    for (text, wanted) in [
        ("", "1:1: error: the file is empty"),
        ("functions: {}\n", "1:1: error: there is no function"),
        ("functions: [a]\n", "1:12: error: functions must be a map"),
        (
            "functions:\n  Echo_1: {image: x}\n",
            "2:3: error: invalid function name \"Echo_1\"",
        ),
        (
            "functions:\n  é: {image: x}\n",
            "2:3: error: invalid function name",
        ),
        (
            "functions:\n  a: {image: x}\n  a: {image: y}\n",
            "3:3: error: `a` is written twice; the first is on line 2",
        ),
        (
            "functions:\n  a: {}\n",
            "2:3: error: function a has nothing to run",
        ),
        (
            "functions:\n  a:\n    handler: ./a\n",
            "3:14: error: function a has no command",
        ),
        (
            "functions:\n  a: {handler: ./missing, fprocess: x}\n",
            "2:16: error: handler folder /stack/missing: ",
        ),
        (
            "functions:\n  a: {image: 'file://a', fprocess: x}\n",
            "2:14: error: an image that is a folder",
        ),
        (
            "functions:\n  a:\n    image: x\n    limits: {memory: lots}\n",
            "4:22: error: invalid memory \"lots\"",
        ),
        (
            "functions:\n  a:\n    image: x\n    limits: {pids: -1}\n",
            "4:20: error: pids must be a whole number",
        ),
        (
            "functions:\n  a:\n    image: x\n    namespace: A\n",
            "4:16: error: invalid namespace",
        ),
        (
            "functions:\n  a:\n    image: x\n    readonly_root_filesystem: 7\n",
            "4:31: error: readonly_root_filesystem must be true or",
        ),
        (
            "functions:\n  a:\n    image: x\n    annotations:\n      nearpath.io/queue-timeout: soon\n",
            "5:7: error: nearpath.io/queue-timeout: invalid duration",
        ),
        (
            "functions:\n  a:\n    image: x\n    environment: {max_inflight: x}\n",
            "4:19: error: max_inflight:",
        ),
        (
            "functions:\n  a: {image: x, environment_file: [no.yml]}\n",
            "2:36: error: environment file /stack/no.yml",
        ),
        (
            "functions:\n  a: {image: x, environment: {k: [1]}}\n",
            "2:34: error: environment.k must be text, not a list",
        ),
        (
            "egress: {b: ['x:1']}\nfunctions:\n  a: {image: x}\n",
            "1:10: error: function `b` is not below",
        ),
        (
            "functions:\n  a: {image: \"${SET!}\"}\n",
            "2:15: error: unknown form of `${…}`",
        ),
        (
            "functions:\n  a: {image: '${SET}', limits: {cpu: 1Mi}}\n",
            "2:38: error: invalid cpu",
        ),
        ("functions:\n\ta: x\n", "2:2: error: not valid YAML"),
        ("functions:\n  a: {image: x\n", "3:1: error: not valid YAML"),
        (
            "a: 1\n---\nb: 2\n",
            "2:1: error: a stack file is one YAML document",
        ),
        (
            "functions: &a\n  b: *a\n",
            "2:6: error: this alias refers to the value that it is part of",
        ),
        ("? [a]\n: b\n", "1:3: error: a key must be text"),
        (
            "functions:\n  a:\n    image: x\n    labels: {com.openfaas.scale.min: 9, com.openfaas.scale.max: 3}\n",
            "4:14: error: com.openfaas.scale.min: 9 is more than com.openfaas.scale.max, 3",
        ),
        (
            "provider: {name: aws}\nfunctions:\n  a: {image: x}\n",
            "1:18: error: unknown provider `aws`",
        ),
    ] {
        let all = problem_lines(text);
        assert!(
            all.iter().any(|one| one.starts_with(wanted)),
            "{text}\nwanted {wanted}\ngot {all:#?}"
        );
        assert!(read_text(text).is_err(), "{text}");
    }
}

#[test]
fn destinations_are_checked() {
    for (egress, wanted) in [
        ("[db]", "2:26: error: invalid egress `db`: write HOST:PORT"),
        (
            "['db:1 max=0']",
            "2:26: error: invalid egress `db:1`: max: `0` is no number",
        ),
        ("[{max: 3}]", "2:26: error: an item of egress has no `to`"),
        ("[{to: [db]}]", "2:31: error: to must be text, not a list"),
        (
            "[{to: 'db:1', max: lots}]",
            "2:44: error: invalid egress `db:1`: max: `lots`",
        ),
        (
            "[{to: 'db:1', mac: 3}]",
            "2:39: error: invalid egress `db:1`: unknown setting `mac`",
        ),
        (
            "[{to: 'db:1', ca: 'secret:x'}]",
            "2:26: error: invalid egress `db:1`: ca: it needs",
        ),
        (
            "['db:1', 'db:1 max=3']",
            "2:34: error: invalid egress `db:1`: it is declared twice",
        ),
    ] {
        let text = format!("functions:\n  a: {{image: x, egress: {egress}}}\n");
        let all = problem_lines(&text);
        assert!(
            all.iter().any(|one| one.starts_with(wanted)),
            "{text}\nwanted {wanted}\ngot {all:#?}"
        );
        assert!(read_text(&text).is_err(), "{text}");
    }
}

#[test]
fn a_mistyped_destination_setting_gets_a_suggestion() {
    for (setting, meant) in [
        ("protocol=postgre", "postgres"),
        ("protocl=http", "protocol"),
        ("shared=chains", "chain"),
    ] {
        let text = format!("functions:\n  a: {{image: x, egress: ['db:1 {setting}']}}\n");
        assert!(
            report_of(&text)
                .to_string()
                .contains(&format!("help: did you mean `{meant}`?")),
            "{}",
            report_of(&text)
        );
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn edges_are_checked() {
    for (chains, wanted) in [
        (
            "chains:\n  k: [a -> d]\n",
            "6:7: error: function `d` is not below `functions:`",
        ),
        ("chains:\n  k: [a]\n", "6:7: error: `a` is not an edge"),
        (
            "chains:\n  k: [a -> b -> c, c -> a]\n",
            "6:20: error: chain k has a cycle: a -> b -> c -> a",
        ),
        (
            "chains:\n  K: [a -> b]\n",
            "6:3: error: invalid chain name `K`",
        ),
        (
            "chains:\n  k: [a -> b]\n  l: [a -> c]\n",
            "7:7: error: a calls others in chain k and in chain l",
        ),
        (
            "chains:\n  k:\n    edges:\n      d.other: [a]\n",
            "8:7: error: d.other is not below",
        ),
        (
            "chains:\n  k: [a -> c=b]\n",
            "6:7: error: alias `c` is a function's name",
        ),
        (
            "chains:\n  k: [a -> x=b, a -> x=c]\n",
            "6:7: error: nearpath.io/calls: `x` stands for two functions",
        ),
        (
            "chains:\n  k:\n    delivery: pigeon\n",
            "7:15: error: unknown delivery `pigeon`",
        ),
        (
            "chains:\n  k:\n    isolation: loose\n",
            "7:16: error: unknown isolation `loose`",
        ),
        (
            "chains:\n  k:\n    isolation: [strict]\n",
            "7:16: error: isolation must be text, not a list",
        ),
        (
            "chains:\n  k:\n    placement: cores\n",
            "7:16: error: unknown placement `cores`",
        ),
        (
            "chains:\n  k:\n    placement: 1\n",
            "7:16: error: unknown placement `1`",
        ),
        (
            "chains:\n  k:\n    placement: {a: core}\n",
            "7:16: error: placement must be text, not a map",
        ),
        (
            "chains:\n  k:\n    pages: large\n",
            "7:12: error: unknown pages `large`",
        ),
        (
            "chains:\n  k:\n    pages: 2Mi\n",
            "7:12: error: unknown pages `2Mi`",
        ),
        (
            "chains:\n  k:\n    topics: {t: {from: a, to: [d]}}\n",
            "7:32: error: function `d` is not below `functions:`",
        ),
        (
            "chains:\n  k:\n    topics: {t: {from: a}}\n",
            "7:14: error: topic t has no function in `to`",
        ),
        (
            "chains:\n  k:\n    topics: {'t/#/u': {from: a, to: b}}\n",
            "7:14: error: invalid topic filter \"t/#/u\"",
        ),
        (
            "chains:\n  k:\n    topics: {t: {from: a, to: b.other}}\n",
            "7:31: error: b.other is not below `functions:`",
        ),
        (
            "chains:\n  k: [a -> b]\n  l:\n    topics: {t: {from: a, to: b}}\n",
            "8:24: error: a calls others in chain k and in chain l",
        ),
    ] {
        let all = problem_lines(&three_functions(chains));
        assert!(
            all.iter().any(|one| one.starts_with(wanted)),
            "{chains}\nwanted {wanted}\ngot {all:#?}"
        );
    }
}

#[test]
fn an_invalid_chain_setting_is_reported_with_the_valid_values() {
    for (line, help) in [
        ("delivery: rings", "one of ring, sockmap, poll"),
        ("isolation: strictly", "one of shared, strict"),
        ("placement: cpu", "one of auto, core, spread"),
        ("pages: big", "one of small, huge, auto"),
    ] {
        let report =
            report_of(&three_functions(&format!("chains:\n  k:\n    {line}\n"))).to_string();
        assert!(report.contains(&format!("help: {help}")), "{report}");
    }
    let report = report_of(&three_functions("chains:\n  k:\n    placment: core\n")).to_string();
    assert!(
        report.contains("unknown key `placment` in chain k") && report.contains("`placement`"),
        "{report}"
    );
}

#[test]
fn doubtful_settings_are_warnings() {
    for (text, wanted) in [
        (
            "functions:\n  a: {imag: y, image: x}\n",
            "2:7: warning: unknown key `imag` in function a",
        ),
        (
            "functions:\n  a: {image: x, read_timeout: 5}\n",
            "2:17: warning: `read_timeout` has no effect here",
        ),
        (
            "chain: {}\nfunctions:\n  a: {image: x}\n",
            "1:1: warning: unknown key `chain`",
        ),
        (
            "functions:\n  a: {image: 'x${UNSET}'}\n",
            "2:16: warning: UNSET is not set",
        ),
        (
            "functions:\n  a: {image: x, lang: python3}\n",
            "2:23: warning: templates",
        ),
        (
            "functions:\n  a: {image: x}\nchains:\n  k: {edges: {a: [a]}, isolation: strict, pages: huge}\n",
            "4:3: warning: chain k is strict: its memory uses small pages",
        ),
    ] {
        assert!(
            problem_lines(text)
                .iter()
                .any(|one| one.starts_with(wanted)),
            "{wanted}: {:#?}",
            problem_lines(text)
        );
        assert!(read_text(text).is_ok(), "{text}");
    }
    assert_eq!(
        problem_lines("x-mine: 1\nfunctions:\n  a: {image: x, x-b: 1}\n"),
        Vec::<String>::new()
    );
}

#[test]
fn the_report_shows_the_line_and_what_to_do() {
    let report = report_of("functions:\n  cart:\n    imgae: ${A:-é}  # x\n    image: y\n");
    let wanted = "stack.yml:3:5: warning: unknown key `imgae` in function cart: it is ignored\n    3 |     imgae: ${A:-é}  # x\n      |     ^^^^^\n      = help: did you mean `image`?\n";
    assert_eq!(report.to_string(), wanted);
}

#[test]
fn problems_of_an_environment_file_name_that_file() {
    let report = report_of("functions:\n  a: {image: x, environment_file: [bad.yml]}\n");
    assert!(
        report
            .to_string()
            .starts_with("/stack/bad.yml:2:6: error: environment.A must be text"),
        "{report}"
    );
}

#[test]
fn all_errors_are_reported_at_once() {
    let all = problem_lines(
        "functions:\n  A: {image: x}\n  b: {image: x, limits: {cpu: x, memory: y}}\n  c: {handler: ./missing}\n",
    );
    assert_eq!(all.len(), 5, "{all:#?}");
}
