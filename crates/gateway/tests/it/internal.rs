//! Calls from instances: along declared edges only.

use std::net::{Ipv4Addr, SocketAddr};

use http::Response;
use nearpath_types::{Eip, FunctionPolicy, InnerListener, InstanceState, RoutingSnapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{self, TestGateway, connect_from, full_body, start_instance_at};

async fn call_from(fixture: &TestGateway, from: [u8; 4], path: &str) -> String {
    call_over(connect_from(from, fixture.internal).await, path).await
}

async fn call_over(mut stream: TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    nearpath_testkit::within(stream.read_to_string(&mut answer))
        .await
        .unwrap();
    answer
}

/// `frontend` (127.0.0.2, still starting) may call `cart` (127.0.0.3), and nothing else.
async fn start_shop() -> TestGateway {
    let fixture = TestGateway::start();
    let cart = start_instance_at(Ipv4Addr::new(127, 0, 0, 3), async |_| {
        Response::new(full_body("cart"))
    })
    .await;
    let frontend = SocketAddr::from(([127, 0, 0, 2], 9));
    let id = |name: &str| name.parse().unwrap();
    let (calls, aliases) = (vec![id("cart")], vec![(id("basket"), id("cart"))]);
    let policy = FunctionPolicy {
        calls,
        aliases,
        chain: Some("shop".into()),
        ..FunctionPolicy::default()
    };
    let mut caller = fixture::function_route("frontend", policy, &[]);
    caller.instances = vec![fixture::instance_entry(frontend, InstanceState::Starting)];
    let functions = vec![
        caller,
        fixture::function_route("cart", FunctionPolicy::default(), &[cart]),
    ];
    fixture.gateway.publish(&RoutingSnapshot {
        version: 1,
        nodes: Default::default(),
        functions: functions.into_iter().collect(),
    });
    fixture
}

#[tokio::test]
async fn a_declared_edge_is_open_and_recorded() {
    let fixture = start_shop().await;
    assert!(
        call_from(&fixture, [127, 0, 0, 2], "/function/cart")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    nearpath_testkit::eventually("it is logged", async || {
        !fixture.log.parse_lines().is_empty()
    })
    .await;
    assert_eq!(
        fixture.log.parse_lines()[0]["caller"],
        "frontend.openfaas-fn"
    );
}

#[tokio::test]
async fn an_alias_is_a_name_for_its_own_function_alone() {
    let fixture = start_shop().await;
    for name in ["basket", "basket.openfaas-fn"] {
        let answer = call_from(&fixture, [127, 0, 0, 2], &format!("/function/{name}")).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("cart"),
            "{answer}"
        );
    }
    assert!(
        call_from(&fixture, [127, 0, 0, 3], "/function/basket")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
    assert_eq!(
        fixture.send_get("/function/basket").await.status,
        404,
        "nobody outside knows it"
    );
}

#[tokio::test]
async fn an_undeclared_edge_is_refused_with_the_line_to_add() {
    let fixture = start_shop().await;
    let answer = call_from(&fixture, [127, 0, 0, 3], "/function/frontend").await;
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("not_allowed"),
        "{answer}"
    );
    for part in [
        "cart.openfaas-fn",
        "frontend.openfaas-fn",
        "{edges: {cart: [frontend]}}",
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
    assert!(
        call_from(&fixture, [127, 0, 0, 2], "/function/frontend")
            .await
            .contains("shop: {edges: {frontend: [frontend]}}")
    );
}

#[tokio::test]
async fn an_unknown_address_is_refused() {
    let fixture = start_shop().await;
    let answer = call_from(&fixture, [127, 0, 0, 9], "/function/cart").await;
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("127.0.0.9"),
        "{answer}"
    );
}

#[tokio::test]
async fn admin_paths_are_not_served_to_instances() {
    let fixture = start_shop().await;
    for path in ["/system/functions", "/ui/", "/", "/async-function/cart"] {
        assert!(
            call_from(&fixture, [127, 0, 0, 2], path)
                .await
                .starts_with("HTTP/1.1 404 "),
            "{path}"
        );
    }
    assert!(
        call_from(&fixture, [127, 0, 0, 2], "/healthz")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
}

/// Waits until a thread of the gateway takes listeners.
async fn wait_serving(fixture: &TestGateway) {
    let is_serving = async || !fixture.inner_listeners.lock().unwrap().is_empty();
    nearpath_testkit::eventually("a thread serves", is_serving).await;
}

/// Gives a thread of the gateway a listener inside an instance; returns its address and a
/// descriptor to end it.
fn give_listener(fixture: &TestGateway, caller: [u8; 4]) -> (SocketAddr, std::net::TcpListener) {
    let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (addr, kept) = (socket.local_addr().unwrap(), socket.try_clone().unwrap());
    let threads = fixture.inner_listeners.lock().unwrap();
    let caller = Eip(caller.into());
    threads[0].send(InnerListener { socket, caller }).unwrap();
    (addr, kept)
}

#[tokio::test]
async fn a_listener_inside_an_instance_knows_its_caller() {
    let fixture = start_shop().await;
    wait_serving(&fixture).await;
    // Every test client has the address 127.0.0.1, which is nobody's.
    for (caller, status) in [
        ([127, 0, 0, 2], 200),
        ([127, 0, 0, 3], 403),
        ([127, 0, 0, 9], 403),
    ] {
        let (addr, _kept) = give_listener(&fixture, caller);
        for path in ["/function/cart", "/function/cart/again"] {
            let answer = call_over(TcpStream::connect(addr).await.unwrap(), path).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{caller:?}: {answer}"
            );
        }
        let admin = call_over(TcpStream::connect(addr).await.unwrap(), "/system/functions").await;
        assert!(admin.starts_with("HTTP/1.1 404 "), "{admin}");
    }
    nearpath_testkit::eventually("it is logged", async || {
        let lines = fixture.log.parse_lines();
        lines
            .iter()
            .any(|line| line["caller"] == "frontend.openfaas-fn")
    })
    .await;
}

#[tokio::test]
async fn a_listener_ends_with_its_instance_and_the_others_go_on() {
    let fixture = start_shop().await;
    wait_serving(&fixture).await;
    let (ending, kept) = give_listener(&fixture, [127, 0, 0, 2]);
    let (staying, _kept) = give_listener(&fixture, [127, 0, 0, 2]);
    rustix::net::shutdown(&kept, rustix::net::Shutdown::Read).unwrap();
    drop(kept);
    nearpath_testkit::eventually("the gateway closes it", async || {
        std::net::TcpListener::bind(ending).is_ok()
    })
    .await;
    let answer = call_over(TcpStream::connect(staying).await.unwrap(), "/function/cart").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
