//! Round trips of the text form, and the messages of its errors.

use proptest::prelude::*;

use super::*;

fn parse_one(text: &str) -> EgressSpec {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn refusal_text(text: &str) -> String {
    text.parse::<EgressSpec>().unwrap_err().flaw.to_string()
}

#[test]
fn a_port_says_what_is_spoken_there() {
    let known = |text| {
        let egress = parse_one(text);
        (egress.protocol, egress.mode, egress.max, egress.warm)
    };
    assert_eq!(
        known("db:5432"),
        (EgressProtocol::Postgres, PoolingMode::Transaction, 20, 8)
    );
    assert_eq!(
        known("db:3306"),
        (EgressProtocol::Mysql, PoolingMode::Session, 20, 8)
    );
    assert_eq!(
        known("db:6379"),
        (EgressProtocol::Redis, PoolingMode::Session, 20, 8)
    );
    assert_eq!(
        known("db:80"),
        (EgressProtocol::Tcp, PoolingMode::Session, 100, 8)
    );
    assert_eq!(
        known("db:80 protocol=http"),
        (EgressProtocol::Http, PoolingMode::Session, 100, 8)
    );
    assert_eq!(
        known("db:3306 protocol=tcp"),
        (EgressProtocol::Tcp, PoolingMode::Session, 100, 0),
        "the server speaks first"
    );
    assert_eq!(
        known("db:5432 max=3"),
        (EgressProtocol::Postgres, PoolingMode::Transaction, 3, 3)
    );
}

#[test]
fn every_setting_is_read() {
    let text = "db.x:6432 protocol=postgres mode=session max=5 warm=2 idle=10s age=1m wait=250ms \
                user=shop password=secret:db-password database=orders tls=originate ca=secret:ca.pem shared=chain";
    let login = EgressLogin {
        user: "shop".into(),
        password: Some("db-password".into()),
        database: Some("orders".into()),
    };
    let wanted = EgressSpec {
        host: EgressHost::Name("db.x".into()),
        port: 6432,
        protocol: EgressProtocol::Postgres,
        mode: PoolingMode::Session,
        max: 5,
        warm: 2,
        idle: Duration::from_secs(10),
        age: Duration::from_secs(60),
        wait: Duration::from_millis(250),
        login: Some(login),
        tls: EgressTls::Originate {
            ca: Some("ca.pem".into()),
        },
        shared: SharingScope::Chain,
        cache: None,
        writes: WriteMode::Sync,
        prefetch: Vec::new(),
    };
    assert_eq!(parse_one(text), wanted);
    assert_eq!(
        wanted.secret_names().collect::<Vec<_>>(),
        ["db-password", "ca.pem"]
    );
}

#[test]
fn cache_writes_and_prefetch_are_read() {
    let http = parse_one("api:80 protocol=http cache=16MB prefetch=/rates?x=1|/day|/rates?x=1");
    assert_eq!(http.cache, Some(CacheLimit::Bytes(16_000_000)));
    assert_eq!(http.prefetch, ["/rates?x=1", "/day"]);
    let redis = parse_one("cache:6379 cache=5s writes=async flush=3s prefetch=motd");
    assert_eq!(redis.cache, Some(CacheLimit::For(Duration::from_secs(5))));
    assert_eq!(
        redis.writes,
        WriteMode::Async {
            flush: Duration::from_secs(3)
        }
    );
    assert!(matches!(
        parse_one("log:514 writes=async tls=originate").writes,
        WriteMode::Async { .. }
    ));
    assert_eq!(
        parse_one("log:514 writes=async").writes,
        WriteMode::Async {
            flush: Duration::from_secs(10)
        }
    );
    let mut declared = EgressBuilder::for_address("api:80").unwrap();
    declared.set("prefetch", "GET /a|GET /b").unwrap();
    declared.set("protocol", "http").unwrap();
    assert_eq!(
        declared.build().unwrap().prefetch,
        ["/a", "/b"],
        "the word GET may stand where blanks may"
    );
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn each_fault_has_its_message() {
    for (text, why) in [
        ("db", "write HOST:PORT, for example `db.example.com:5432`"),
        ("db:1 max", "`max` is not a setting: write KEY=VALUE"),
        ("db:1 max = 3", "`max` is not a setting"),
        (
            "db:1 mac=3",
            "unknown setting `mac`: expected one of protocol, mode, max, ",
        ),
        ("db:1 max=3 max=3", "`max` is written twice"),
        (
            "db:1 protocol=pg",
            "protocol: invalid value `pg`: expected one of tcp, http, postgres, mysql, redis",
        ),
        ("db:1 max=0", "max: `0` is no number from 1 to 10000"),
        (
            "db:1 max=3 warm=4",
            "warm: more than `max`, 3, cannot be open",
        ),
        ("db:1 idle=soon", "idle: invalid duration \"soon\""),
        ("db:1 age=0", "age: 0 is no time to keep a connection"),
        (
            "db:1 mode=session",
            "mode: only protocols postgres and mysql have one",
        ),
        (
            "db:80 user=x",
            "user: only protocols postgres, mysql and redis have one",
        ),
        (
            "db:5432 password=secret:x",
            "password: it needs `user` beside it",
        ),
        (
            "db:5432 user=x password=hunter2",
            "password: write secret:NAME, ",
        ),
        (
            "db:5432 user=x password=secret:../x",
            "password: `../x` is not the name of a secret",
        ),
        ("db:5432 user=", "user: it is empty"),
        (
            "db:6379 database=x",
            "database: protocol redis has numbers for databases",
        ),
        (
            "db:1 cache=1MB",
            "cache: only protocols http and redis have one",
        ),
        (
            "db:1 protocol=http cache=5s",
            "cache: `5s` is no size from 64KiB to 4GiB; write for example 16MB",
        ),
        ("db:1 protocol=http cache=9GiB", "cache: `9GiB` is no size"),
        ("db:6379 cache=16MB", "cache: invalid duration"),
        ("db:6379 cache=0", "cache: it is no time up to 3600s"),
        (
            "db:5432 writes=async",
            "writes: only protocols tcp and redis",
        ),
        (
            "db:1 writes=asnyc",
            "writes: invalid value `asnyc`: expected one of sync, async",
        ),
        (
            "*.db.example.com:6379 prefetch=motd",
            "prefetch: it is for one place",
        ),
        ("db:1 flush=3s", "flush: it needs `writes=async` beside it"),
        (
            "db:1 writes=async flush=1h",
            "flush: it is longer than 600s",
        ),
        (
            "db:1 prefetch=/x",
            "prefetch: only protocols http and redis have it",
        ),
        ("db:1 protocol=http prefetch=x", "prefetch: `x` is no path"),
        (
            "db:6379 prefetch=a||b",
            "prefetch: a read has 1 to 512 plain characters",
        ),
        (
            "db:443 protocol=http",
            "protocol: http at port 443 needs `tls=originate` beside it",
        ),
        (
            "db:443 protocol=http tls=pass",
            "protocol: http at port 443 needs `tls=originate` beside it",
        ),
        ("db:1 ca=secret:x", "ca: it needs `tls=originate` beside it"),
    ] {
        assert!(
            refusal_text(text).starts_with(why),
            "{text}: {}",
            refusal_text(text)
        );
    }
    let error = "db:1 mac=3".parse::<EgressSpec>().unwrap_err();
    assert_eq!(error.flaw.mistyped_word(), Some(("mac", SETTING_NAMES)));
    assert!(
        !"db:5432 user=x password=hunter2"
            .parse::<EgressSpec>()
            .unwrap_err()
            .to_string()
            .contains("hunter2")
    );
}

#[test]
fn a_list_names_an_address_once() {
    assert_eq!(
        parse_list(" db:5432 , ,DB:5432, x.org:443,").unwrap().len(),
        2
    );
    let error = parse_list("db:1, db:1 max=3").unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid egress `db:1`: it is declared twice, with different settings"
    );
    let many: Vec<_> = (1..=MAX_DESTINATIONS + 1)
        .map(|port| format!("db:{port}"))
        .collect();
    assert_eq!(
        parse_list(&many[1..].join(",")).unwrap().len(),
        MAX_DESTINATIONS
    );
    assert_eq!(
        parse_list(&many.join(",")).unwrap_err().flaw,
        EgressFault::TooMany(MAX_DESTINATIONS)
    );
}

fn a_host() -> impl Strategy<Value = EgressHost> {
    let name = "[a-z_][a-z0-9_]{0,8}(\\.[a-z][a-z0-9-]{0,8}[a-z]){0,3}";
    prop_oneof![
        name.prop_map(EgressHost::Name),
        name.prop_map(EgressHost::Below),
        any::<u32>().prop_map(|bits| EgressHost::V4(bits.into())),
        any::<u128>().prop_map(|bits| EgressHost::V6(bits.into())),
        any::<u32>()
            .prop_map(|bits| EgressHost::V6(std::net::Ipv4Addr::from(bits).to_ipv6_mapped())),
    ]
}

/// Any login that a protocol may have.
fn a_login(protocol: EgressProtocol) -> impl Strategy<Value = Option<EgressLogin>> {
    let redis = protocol == EgressProtocol::Redis;
    let user = prop_oneof!["[a-zA-Z0-9_=:@é]{1,9}", Just("default".to_owned())];
    let database = if redis {
        "[0-9]{1,4}"
    } else {
        "[a-zA-Z_=]{1,9}"
    };
    let parts = (
        user,
        prop::option::of("[a-z0-9]{1,9}"),
        prop::option::of(database),
    );
    let login = parts.prop_map(|(user, password, database)| EgressLogin {
        user,
        password,
        database,
    });
    prop::option::of(login).prop_map(move |login| login.filter(|_| protocol.has_login()))
}

/// What may be set of those that let the node act ahead.
fn any_cache_and_prefetch(
    protocol: EgressProtocol,
    plain: bool,
) -> impl Strategy<Value = (Option<CacheLimit>, WriteMode, Vec<String>)> {
    let cache = match protocol {
        EgressProtocol::Http => {
            prop::option::of((64u64 << 10..=4 << 30).prop_map(CacheLimit::Bytes)).boxed()
        }
        EgressProtocol::Redis => prop::option::of(
            (1u64..=3_600_000).prop_map(|ms| CacheLimit::For(Duration::from_millis(ms))),
        )
        .boxed(),
        _ => Just(None).boxed(),
    };
    let writes =
        match protocol == EgressProtocol::Redis || (protocol == EgressProtocol::Tcp && plain) {
            true => prop::option::of(0u64..600_000).boxed(),
            false => Just(None).boxed(),
        };
    let lasting = |flush: Option<u64>| {
        flush.map_or(WriteMode::Sync, |ms| WriteMode::Async {
            flush: Duration::from_millis(ms),
        })
    };
    let reads = match protocol {
        EgressProtocol::Http => prop::collection::btree_set("/[a-z0-9?=&%.:-]{0,9}", 0..4).boxed(),
        EgressProtocol::Redis => prop::collection::btree_set("[a-zA-Z0-9:=-]{1,9}", 0..4).boxed(),
        _ => Just(std::collections::BTreeSet::new()).boxed(),
    };
    (
        cache,
        writes.prop_map(lasting),
        reads.prop_map(|reads| reads.into_iter().collect()),
    )
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn an_egress() -> impl Strategy<Value = EgressSpec> {
    let protocols = [
        EgressProtocol::Tcp,
        EgressProtocol::Http,
        EgressProtocol::Postgres,
        EgressProtocol::Mysql,
        EgressProtocol::Redis,
    ];
    let ports = prop_oneof![
        Just(5432u16),
        Just(3306),
        Just(6379),
        Just(25),
        Just(443),
        1u16..
    ];
    let place = (a_host(), ports, prop::sample::select(protocols.to_vec()));
    let times = (1u64..1 << 60, 1u64..1 << 60, 0u64..1 << 60);
    let rest = (
        any::<bool>(),
        1u32..=10_000,
        any::<prop::sample::Index>(),
        any::<bool>(),
        any::<[bool; 2]>(),
    );
    (place, times, rest).prop_flat_map(|((host, port, protocol), (idle, age, wait), rest)| {
        let (mode, max, warm, defaults, [chain, tls]) = rest;
        let ca = prop::option::of("[a-z][a-z0-9-]{0,5}[a-z]");
        (
            a_login(protocol),
            ca,
            any_cache_and_prefetch(protocol, !tls),
        )
            .prop_map(move |(login, ca, (cache, writes, prefetch))| {
                let default = EgressSpec::with_defaults(host.clone(), port, protocol);
                let tls = tls || (protocol, port) == (EgressProtocol::Http, 443); // plain HTTP is not for there
                let tls = if tls {
                    EgressTls::Originate { ca }
                } else {
                    EgressTls::Pass
                };
                let shared = if chain {
                    SharingScope::Chain
                } else {
                    SharingScope::Function
                };
                let prefetch = if matches!(default.host, EgressHost::Below(_)) {
                    Vec::new()
                } else {
                    prefetch
                };
                let egress = EgressSpec {
                    login,
                    tls,
                    shared,
                    cache,
                    writes,
                    prefetch,
                    ..default
                };
                if defaults {
                    return egress;
                }
                let mode = if mode && protocol.is_sql() {
                    PoolingMode::Transaction
                } else {
                    PoolingMode::Session
                };
                let [idle, age, wait] = [idle, age, wait].map(Duration::from_nanos);
                EgressSpec {
                    mode,
                    max,
                    warm: warm.index(max as usize + 1) as u32,
                    idle,
                    age,
                    wait,
                    ..egress
                }
            })
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(egress in an_egress()) {
        prop_assert_eq!(egress.to_string().parse::<EgressSpec>(), Ok(egress));
    }

    #[test]
    fn lists_are_written_and_read(all in prop::collection::vec(an_egress(), 0..5)) {
        let mut distinct: Vec<EgressSpec> = Vec::new();
        for egress in all {
            if !distinct.iter().any(|other| other.is_same_address(&egress)) {
                distinct.push(egress);
            }
        }
        let text = distinct.iter().map(EgressSpec::to_string).collect::<Vec<_>>().join(",");
        prop_assert_eq!(parse_list(&text), Ok(distinct));
    }

    #[test]
    fn any_text_is_answered_and_what_it_says_is_kept(text in "[a-c0-9.:=, *\\[\\]]{0,20}( (max|warm|user|mode|tls)=[a-z0-9]{0,4}){0,3}") {
        if let Ok(read) = parse_list(&text) {
            let again = read.iter().map(EgressSpec::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse_list(&again), Ok(read));
        }
    }
}
