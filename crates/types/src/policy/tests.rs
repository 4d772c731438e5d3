//! Each setting is read as it is written, and a wrong one names its key.

use super::*;

fn spec(annotations: &[(&str, &str)]) -> FunctionSpec {
    let mut spec = FunctionSpec::named("checkout".parse().unwrap());
    spec.annotations = annotations
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    spec
}

#[test]
fn edges_default_to_the_callers_namespace() {
    let policy = FunctionPolicy::from_spec(&spec(&[(CALLS, "cart, mail.other")])).unwrap();
    assert!(policy.may_call(&"cart".parse().unwrap()));
    assert!(policy.may_call(&"mail.other".parse().unwrap()));
    assert!(!policy.may_call(&"payment".parse().unwrap()));
}

#[test]
fn functions_that_agree_on_delivery_and_isolation_share_a_domain() {
    let domain = |delivery: &[(&str, &str)]| {
        let spec = spec(&[&[(CHAIN, "shop")], delivery].concat());
        FunctionPolicy::from_spec(&spec).map(|policy| policy.domain(&spec.id()).unwrap())
    };
    assert_eq!(domain(&[]).unwrap(), domain(&[(DELIVERY, "ring")]).unwrap());
    assert_eq!(domain(&[]).unwrap(), "shop.openfaas-fn");
    assert_eq!(
        domain(&[(DELIVERY, "sockmap")]).unwrap(),
        "shop.openfaas-fn:sockmap"
    );
    assert_eq!(
        domain(&[(ISOLATION, "shared")]).unwrap(),
        "shop.openfaas-fn"
    );
    assert_eq!(
        domain(&[(ISOLATION, "strict")]).unwrap(),
        "shop.openfaas-fn:strict"
    );
    assert_eq!(
        domain(&[(DELIVERY, "poll"), (ISOLATION, "strict")]).unwrap(),
        "shop.openfaas-fn:poll:strict"
    );
    let error = domain(&[(ISOLATION, "loose")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nearpath.io/isolation: invalid isolation \"loose\": expected shared or strict"
    );
    let error = domain(&[(DELIVERY, "pigeon")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nearpath.io/delivery: invalid delivery \"pigeon\": expected ring, sockmap or poll"
    );
}

#[test]
fn edges_have_a_balance() {
    let policy = |calls: &str| FunctionPolicy::from_spec(&spec(&[(CALLS, calls)]));
    for (calls, balanced) in [
        ("cart", vec![]),
        ("cart balance=request", vec![]),
        ("cart balance=connection, pay", vec!["cart"]),
        ("rates = currency  balance=connection", vec!["currency"]),
        (
            "rates=currency balance=connection, fx=currency, pay balance=connection",
            vec!["currency", "pay"],
        ),
    ] {
        let names = balanced.into_iter().map(|name| name.parse().unwrap());
        let names: Vec<FunctionId> = names.collect();
        assert_eq!(policy(calls).unwrap().connection_balanced, names, "{calls}");
    }
    for (calls, why) in [
        ("cart balance=sticky", "expected request or connection"),
        ("cart weight=3", "unknown setting `weight=3`"),
        ("cart balance=request balance=connection", "once"),
        ("cart pay", "unknown setting `pay`"),
        (
            "a=cart balance=connection, b=cart balance=request",
            "`cart` has both",
        ),
    ] {
        let error = policy(calls).unwrap_err();
        assert!(error.why.contains(why), "{}", error.why);
    }
}

#[test]
fn an_alias_is_another_name_for_a_callee() {
    let policy = FunctionPolicy::from_spec(&spec(&[(
        CALLS,
        "rates=currency, cart, fx = currency.other",
    )]))
    .unwrap();
    let id = |name: &str| name.parse::<FunctionId>().unwrap();
    assert_eq!(
        policy.calls,
        [id("currency"), id("cart"), id("currency.other")]
    );
    assert_eq!(policy.resolve_alias(&id("rates")), Some(&id("currency")));
    assert_eq!(policy.resolve_alias(&id("fx")), Some(&id("currency.other")));
    assert_eq!(policy.resolve_alias(&id("cart")), None);
    for (wrong, why) in [
        ("a=b, a=c", "`a` stands for two functions"),
        ("a=b, a", "`a=b`: a is called by its own name too"),
    ] {
        assert_eq!(
            FunctionPolicy::from_spec(&spec(&[(CALLS, wrong)]))
                .unwrap_err()
                .why,
            why
        );
    }
    for wrong in ["A=b", "a=B", "=b", "a=", "a.dev=b"] {
        assert_eq!(
            FunctionPolicy::from_spec(&spec(&[(CALLS, wrong)]))
                .map(drop)
                .map_err(|error| error.key),
            Err(CALLS),
            "{wrong}"
        );
    }
}

#[test]
fn topics_within_a_chain_are_filters_and_few() {
    let policy = FunctionPolicy::from_spec(&spec(&[
        (PUBLISHES, "order/placed"),
        (SUBSCRIBES, "order/+, stock/#"),
    ]))
    .unwrap();
    assert_eq!((policy.publishes.len(), policy.subscribes.len()), (1, 2));
    assert_eq!(
        FunctionPolicy::from_spec(&spec(&[(SUBSCRIBES, "a#")]))
            .unwrap_err()
            .key,
        SUBSCRIBES
    );
    let many = vec!["a/b/c"; 300].join(",");
    assert_eq!(
        FunctionPolicy::from_spec(&spec(&[(PUBLISHES, &many)]))
            .unwrap_err()
            .key,
        PUBLISHES
    );
}

#[test]
fn topics_are_filters() {
    let policy = FunctionPolicy::from_spec(&spec(&[(TOPIC, "vm/+/on, payments")])).unwrap();
    assert_eq!(policy.topics, ["vm/+/on", "payments"]);
    assert_eq!(
        FunctionPolicy::from_spec(&spec(&[(TOPIC, "a/#/b")]))
            .unwrap_err()
            .key,
        TOPIC
    );
}

#[test]
fn pages_chains_and_placements_are_read() {
    let pages =
        |text| FunctionPolicy::from_spec(&spec(&[(PAGES, text)])).map(|policy| policy.pages);
    assert_eq!(
        (pages("huge"), pages("auto"), pages("small")),
        (
            Ok(ChainPages::Huge),
            Ok(ChainPages::Auto),
            Ok(ChainPages::Small)
        )
    );
    assert_eq!(
        pages("large").unwrap_err().to_string(),
        "nearpath.io/pages: invalid page size \"large\": expected small, huge or auto"
    );
    assert_eq!(
        FunctionPolicy::from_spec(&spec(&[(CHAIN, "a.b")]))
            .unwrap_err()
            .key,
        CHAIN
    );
    let placement = |text| {
        FunctionPolicy::from_spec(&spec(&[(PLACEMENT, text)])).map(|policy| policy.placement)
    };
    assert_eq!(
        (placement("core"), placement("spread"), placement("auto")),
        (
            Ok(ChainPlacement::Core),
            Ok(ChainPlacement::Spread),
            Ok(ChainPlacement::Auto)
        )
    );
    assert_eq!(FunctionPolicy::default().placement, ChainPlacement::Auto);
    assert_eq!(
        placement("1").unwrap_err().to_string(),
        "nearpath.io/placement: invalid placement \"1\": expected auto, core or spread"
    );
}

#[test]
fn transports_and_zero_rtt_are_read() {
    let policy =
        FunctionPolicy::from_spec(&spec(&[(TRANSPORT, "tls12"), (ZERO_RTT, "idempotent")]))
            .unwrap();
    assert_eq!(
        (policy.transport, policy.zero_rtt),
        (CallTransport::Tls12, ZeroRttPolicy::Idempotent)
    );
    assert_eq!(
        (
            FunctionPolicy::default().transport,
            FunctionPolicy::default().zero_rtt
        ),
        (CallTransport::Auto, ZeroRttPolicy::Always)
    );
    for transport in [
        CallTransport::Auto,
        CallTransport::Quic,
        CallTransport::Tls13,
        CallTransport::Tls12,
        CallTransport::Tcp,
    ] {
        assert_eq!(transport.to_string().parse(), Ok(transport));
    }
    assert_eq!(
        FunctionPolicy::from_spec(&spec(&[(TRANSPORT, "udp")]))
            .unwrap_err()
            .key,
        TRANSPORT
    );
    assert_eq!(
        FunctionPolicy::from_spec(&spec(&[(ZERO_RTT, "yes")]))
            .unwrap_err()
            .key,
        ZERO_RTT
    );
}

#[test]
fn a_typing_error_names_its_key() {
    let error = FunctionPolicy::from_spec(&spec(&[(QUEUE_TIMEOUT, "soon")])).unwrap_err();
    assert_eq!(error.key, QUEUE_TIMEOUT);
}

#[test]
fn the_least_replicas_are_not_more_than_the_most() {
    let mut spec = spec(&[]);
    spec.labels.insert(SCALE_MIN.into(), "21".into());
    let error = FunctionPolicy::from_spec(&spec).unwrap_err();
    assert_eq!(
        error.to_string(),
        "com.openfaas.scale.min: 21 is more than com.openfaas.scale.max, 20"
    );
    spec.labels.insert(SCALE_MAX.into(), "21".into());
    assert_eq!(
        FunctionPolicy::from_spec(&spec).map(|policy| (policy.scale_min, policy.scale_max)),
        Ok((21, 21))
    );
}

#[test]
fn openfaas_max_inflight_is_honoured() {
    let mut spec = spec(&[]);
    spec.env_vars.insert("max_inflight".into(), "4".into());
    assert_eq!(
        FunctionPolicy::from_spec(&spec).unwrap().max_inflight,
        Some(4)
    );
}
