//! A function without nearpath around it: called over HTTP, and calling over HTTP through a gateway that is a fake.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use nearpath::{CallOptions, Environment, ErrorKind, Path, Request, Response};
use nearpath_testkit::{free_addr, within};

/// What a fake gateway was asked: request line, fields, body.
type SeenRequest = (String, Vec<String>, Vec<u8>);

/// Answers one request after another with what `answer` makes; one connection each.
fn gateway(
    answer: impl Fn(&SeenRequest) -> Vec<u8> + Send + 'static,
) -> (SocketAddr, mpsc::Receiver<SeenRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, (told, asked)) = (listener.local_addr().unwrap(), mpsc::channel());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let request = read(&stream);
            let _ = (&stream).write_all(&answer(&request));
            let _ = told.send(request);
        }
    });
    (address, asked)
}

fn read(stream: &TcpStream) -> SeenRequest {
    let mut lines = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let length = head
        .iter()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    (head.remove(0), head, body)
}

fn http(status: u16, fields: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\n{fields}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into()
}

fn with_gateway<T>(address: SocketAddr, test: impl AsyncFnOnce() -> T) -> T {
    let environment = Environment {
        dispatch_socket: None,
        gateway: format!("http://{address}"),
        listen: address,
    };
    nearpath::run_in(environment, within(test())).unwrap()
}

#[test]
fn a_call_goes_through_the_gateway_and_tells_so() {
    let (address, asked) = gateway(|_| http(203, "x-by: currency\r\n", "one"));
    let ask = CallOptions::default()
        .method("PUT")
        .path("/a?b=c")
        .header("X-Tenant", "7")
        .unwrap();
    let answer = with_gateway(address, async || {
        nearpath::call_with("currency", "body", ask).await
    })
    .unwrap();
    assert_eq!(
        (answer.status(), answer.body().as_ref(), answer.path()),
        (203, &b"one"[..], Some(Path::Http))
    );
    assert_eq!(
        (answer.header("x-by"), answer.length()),
        (Some("currency"), Some(3))
    );
    let (line, fields, body) = asked.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(
        (&*line, &*body),
        ("PUT /function/currency/a?b=c HTTP/1.1", &b"body"[..])
    );
    assert!(fields.contains(&"x-tenant: 7".to_owned()), "{fields:?}");
}

#[test]
fn what_the_answer_says_of_its_way_is_believed() {
    let fields = |field: &'static str| move |_: &SeenRequest| http(200, field, "");
    for (field, way) in [
        ("x-nearpath-path: shm\r\n", (Path::Shm, None)),
        (
            "x-nearpath-path: http; obstacle=no_domain\r\n",
            (Path::Http, Some("no_domain")),
        ),
        ("", (Path::Http, Some("caller_no_endpoint"))),
    ] {
        let (address, _) = gateway(fields(field));
        let answer = with_gateway(address, async || nearpath::call("currency", "").await).unwrap();
        assert_eq!((answer.path().unwrap(), answer.obstacle()), way);
        assert_eq!(
            answer.header("x-nearpath-path"),
            None,
            "it is about this call, not about whoever passes the answer on"
        );
    }
}

#[test]
fn a_deadline_and_a_trace_go_along() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (address, asked) = gateway(|_| http(202, "x-call-id: seven\r\n", ""));
    let ask = || {
        CallOptions::default()
            .deadline(Duration::from_secs(60))
            .header("traceparent", TRACE)
            .unwrap()
    };
    let handed = ask().propagated_fields();
    assert_eq!(handed[0], ("traceparent", TRACE.to_owned()));
    with_gateway(address, async || {
        nearpath::call_with("currency", "", ask()).await.unwrap();
        nearpath::call_with(
            "currency",
            "",
            CallOptions::default().header("X-Timeout", "7s").unwrap(),
        )
        .await
        .unwrap();
        let later = ask()
            .callback("http://gateway:8080/function/ledger")
            .unwrap();
        assert_eq!(
            nearpath::call_later("currency", "", later)
                .await
                .unwrap()
                .as_deref(),
            Some("seven")
        );
    });
    let fields = || asked.recv_timeout(Duration::from_secs(30)).unwrap().1;
    let [with, own, later] = [fields(), fields(), fields()];
    let timeout = |fields: &[String]| {
        fields
            .iter()
            .find_map(|field| field.strip_prefix("x-timeout: ").map(str::to_owned))
    };
    assert!(
        with.contains(&format!("traceparent: {TRACE}"))
            && with.contains(&"x-nearpath-path: ?".to_owned()),
        "{with:?}"
    );
    assert!(
        timeout(&with).is_some_and(|left| left.starts_with("59") || left == "60s"),
        "{with:?}"
    );
    assert_eq!(timeout(&own).as_deref(), Some("7s"));
    assert_eq!(timeout(&later), None, "nobody waits for the answer");
    assert!(
        later.contains(&"x-callback-url: http://gateway:8080/function/ledger".to_owned()),
        "{later:?}"
    );
}

#[test]
fn an_event_goes_to_the_queue() {
    let (address, asked) = gateway(|_| http(202, "", ""));
    with_gateway(address, async || nearpath::notify("mail", "hello").await).unwrap();
    let (line, _, body) = asked.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(
        (&*line, &*body),
        ("POST /async-function/mail HTTP/1.1", &b"hello"[..])
    );
}

#[test]
fn errors_say_which_function_which_path_and_why() {
    let (address, _) = gateway(|asked| match asked.0.split(' ').nth(1).unwrap() {
        "/function/refused" => http(403, "x-nearpath-reason: not_allowed\r\n", "no edge\n"),
        "/function/dies" => Vec::new(),
        _ => http(500, "", "its own fault"),
    });
    let errors = with_gateway(address, async || {
        let near = CallOptions::default().shm_only();
        [
            nearpath::call("refused", "").await.unwrap_err(),
            nearpath::call("dies", "").await.unwrap_err(),
            nearpath::call("No Name", "").await.unwrap_err(),
            nearpath::call_with("far", "", near).await.unwrap_err(),
        ]
    });
    let told: Vec<_> = errors
        .iter()
        .map(|e| {
            (
                e.function(),
                e.path(),
                e.kind().code_name(),
                e.retry_is_safe(),
            )
        })
        .collect();
    let http = Some(Path::Http);
    let wanted = [
        ("refused", http, "platform", false),
        ("dies", http, "died", false),
        ("No Name", None, "name", false),
        ("far", None, "unsent", true),
    ];
    assert_eq!(told, wanted);
    assert_eq!(
        errors[0].to_string(),
        "nearpath: refused over http: the platform answered 403 not_allowed: no edge"
    );
    let own = with_gateway(address, async || nearpath::call("fails", "").await).unwrap();
    assert_eq!(own.status(), 500, "an answer of the function is no error");
}

#[test]
fn nobody_at_the_gateway_is_safe_to_retry() {
    let error = with_gateway(free_addr(), async || nearpath::call("any", "").await).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unsent(_)) && error.retry_is_safe(),
        "{error}"
    );
}

#[test]
fn a_deadline_ends_a_call() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap(); // takes connections, never answers
    let ask = CallOptions::default().deadline(Duration::from_millis(20));
    let address = listener.local_addr().unwrap();
    let error =
        with_gateway(address, async || nearpath::call_with("slow", "", ask).await).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
}

#[test]
fn an_idempotent_call_is_made_twice_when_it_died() {
    let (address, asked) = gateway(|_| Vec::new());
    let ask = CallOptions::default().idempotent();
    let error =
        with_gateway(address, async || nearpath::call_with("dies", "", ask).await).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Died(_)), "{error}");
    assert!(
        asked.recv_timeout(Duration::from_secs(30)).is_ok()
            && asked.recv_timeout(Duration::from_secs(30)).is_ok()
    );
    assert!(asked.try_recv().is_err());
}

#[test]
fn a_handler_is_served_over_http() {
    let address = free_addr();
    let (end, ended) = tokio::sync::oneshot::channel();
    let serving = std::thread::spawn(move || {
        let handler = async |request: Request| match request.path() {
            "/fail" => Err("it broke"),
            "/event" => Ok(Response::new(format!(
                "{} {:?} {:?}",
                request.is_event(),
                request.topic(),
                request.caller()
            ))),
            _ => Ok(
                Response::new(format!("{} {}", request.method(), request.path()))
                    .with_header("X-By", "me")
                    .unwrap(),
            ),
        };
        let ended = async { drop(ended.await) };
        nearpath::FunctionServer::new(handler)
            .listen_on(address)
            .run_until(ended)
    });
    let ask_with = |path: &str, fields: &str| {
        let mut stream = connect(address);
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let ask = |path| ask_with(path, "");
    let good = ask("/a?b");
    assert!(
        good.starts_with("HTTP/1.1 200")
            && good.contains("x-by: me")
            && good.ends_with("POST /a?b"),
        "{good}"
    );
    let bad = ask("/fail");
    assert!(
        bad.starts_with("HTTP/1.1 500") && bad.ends_with("it broke"),
        "{bad}"
    );
    // The platform's fields make an event; a client can set the other one.
    let platform = "x-nearpath-topic: order/placed\r\nx-nearpath-caller: shop.fn\r\n";
    for (fields, expected) in [
        (platform, "true Some(\"order/placed\") Some(\"shop.fn\")"),
        ("x-topic: order/placed\r\n", "false None None"),
    ] {
        let answer = ask_with("/event", fields);
        assert!(answer.ends_with(expected), "{answer}");
    }
    end.send(()).unwrap();
    serving.join().unwrap().unwrap();
}

#[test]
fn who_is_told_to_stop_finishes_what_is_open() {
    let address = free_addr();
    let (end, ended) = tokio::sync::oneshot::channel();
    let serving = std::thread::spawn(move || {
        let end = std::rc::Rc::new(std::cell::Cell::new(Some(end)));
        let handler = move |_: Request| {
            if let Some(end) = end.take() {
                end.send(()).unwrap(); // the function stops while this call runs
            }
            async {
                tokio::task::yield_now().await;
                vec![7; 8 << 20] // more than a socket takes at once
            }
        };
        nearpath::FunctionServer::new(handler)
            .listen_on(address)
            .run_until(async { drop(ended.await) })
    });
    let mut stream = connect(address);
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap(); // the connection would stay open
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.len() > 8 << 20, "{} bytes", answer.len());
    serving.join().unwrap().unwrap();
}

fn connect(address: SocketAddr) -> TcpStream {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
        std::thread::yield_now();
    }
}
