use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn read_config(pairs: &[(&str, &str)]) -> Result<WatchdogConfig, WatchdogConfigError> {
    let map: HashMap<String, String> = pairs
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    WatchdogConfig::read(&|name| map.get(name).cloned())
}

#[test]
fn defaults_of_the_contract() {
    let config = read_config(&[("fprocess", "cat")]).unwrap();
    assert_eq!((config.port, config.metrics_port), (8080, Some(8081)));
    assert_eq!(config.mode, ModeName::Streaming);
    let thirty = Duration::from_secs(30);
    assert_eq!(
        [
            config.exec_timeout,
            config.read_timeout,
            config.write_timeout
        ],
        [Some(thirty); 3]
    );
    assert_eq!(config.healthcheck_interval, thirty);
    assert_eq!(config.content_type, "application/octet-stream");
    assert_eq!((config.max_inflight, config.max_body), (0, 64 << 20));
    assert_eq!(config.static_path, PathBuf::from("/home/app/public"));
    assert!(config.prefix_logs && !config.log_callid && !config.buffer_request);
    assert_eq!(config.lock_file, Some(PathBuf::from("/tmp/.lock")));
}

#[test]
fn the_first_alias_that_is_set_wins() {
    let command = |pairs: &[(&str, &str)]| read_config(pairs).unwrap().command;
    assert_eq!(command(&[("fprocess", "old")]), ["old"]);
    assert_eq!(
        command(&[("fprocess", "old"), ("function_process", "new")]),
        ["new"]
    );
    let http = [
        ("mode", "http"),
        ("fprocess", "x"),
        ("http_upstream_url", "http://127.0.0.1:5000"),
    ];
    assert_eq!(
        read_config(&http).unwrap().upstream.unwrap().addrs[0].port(),
        5000
    );
    assert!(
        read_config(&[("fprocess", "x"), ("buffer_http", "true")])
            .unwrap()
            .buffer_request
    );
}

#[test]
fn healthcheck_interval_follows_write_timeout_unless_set() {
    let of = |pairs: &[(&str, &str)]| read_config(pairs).unwrap().healthcheck_interval.as_secs();
    assert_eq!(of(&[("fprocess", "x"), ("write_timeout", "5")]), 5);
    assert_eq!(
        of(&[
            ("fprocess", "x"),
            ("write_timeout", "5"),
            ("healthcheck_interval", "1s")
        ]),
        1
    );
}

#[test]
fn zero_disables_a_time_limit() {
    let config = read_config(&[
        ("fprocess", "x"),
        ("exec_timeout", "0"),
        ("read_timeout", "0s"),
    ])
    .unwrap();
    assert_eq!((config.exec_timeout, config.read_timeout), (None, None));
}

#[test]
fn a_malformed_value_is_refused_by_name() {
    for (name, value) in [
        ("port", "80800"),
        ("bind_address", "here"),
        ("metrics_port", "x"),
        ("mode", "inproc"),
        ("mode", "afterburn"),
        ("mode", "fast"),
        ("function_process", "sh -c 'x"),
        ("upstream_url", "https://127.0.0.1"),
        ("upstream_protocol", "h3"),
        ("exec_timeout", "soon"),
        ("healthcheck_interval", "-1s"),
        ("content_type", "a\nb"),
        ("max_inflight", "-1"),
        ("http_buffer_req_body", "yes"),
        ("max_body", "much"),
        ("ready_path", "/a b"),
        ("prefix_logs", "maybe"),
        ("log_buffer_size", "0"),
        ("jwt_auth", "true"),
    ] {
        let error = read_config(&[("fprocess", "x"), (name, value)])
            .unwrap_err()
            .to_string();
        assert!(error.contains(name), "{name}={value}: {error}");
    }
}

#[test]
fn every_fault_is_shown_at_once() {
    let error = read_config(&[("port", "x"), ("exec_timeout", "y"), ("mode", "http")])
        .unwrap_err()
        .to_string();
    for name in ["port", "exec_timeout", "function_process", "upstream_url"] {
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn help_names_every_variable() {
    let help = keys::help_text();
    for name in keys::ALL.iter().flat_map(|key| key.names) {
        assert!(help.contains(name), "{name}");
    }
}

proptest! {
    #[test]
    fn any_value_is_answered(which in 0..keys::ALL.len(), value in ".{0,30}") {
        let name = keys::ALL[which].names[0];
        let _ = read_config(&[("fprocess", "x"), (name, &value)]);
    }
}
