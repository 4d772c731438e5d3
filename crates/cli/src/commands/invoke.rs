//! `invoke`: one call of a function, streamed both ways. No credentials are sent: functions are open to callers, and a
//! function has no business with the administrator's password.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use nearpath_types::FunctionId;
use nearpath_types::name::DEFAULT_NAMESPACE;
use ureq::Body;

use crate::api::{Client, Target, error_text, escape};
use crate::args::InvokeArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

pub(super) fn run(args: &InvokeArgs) -> Outcome {
    if args.asynchronous {
        return Err(Failure::new(
            Exit::Usage,
            "--async: asynchronous calls come with a later version; call without it",
        ));
    }
    let client = Client::new(Target::of(&args.connection, None)?);
    let head = head(&client, args)?;
    let source = Source::of(args, head.method())?;
    let response = source.send(&client, head, args.timeout)?;
    if args.verbose {
        print_head(&response);
    }
    deliver(response)
}

/// Where a function is called.
pub(super) fn url(client: &Client, id: &FunctionId) -> String {
    match id.namespace.as_str() {
        DEFAULT_NAMESPACE => format!("{}/function/{}", client.base(), id.name),
        _ => format!("{}/function/{id}", client.base()),
    }
}

fn head(client: &Client, args: &InvokeArgs) -> Result<Request<()>, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let method: Method =
        args.method.parse().map_err(|_| usage(format!("--method {:?} is not an HTTP method", args.method)))?;
    let mut uri = url(client, &args.name);
    if !args.path.is_empty() {
        uri = format!("{uri}/{}", args.path.trim_start_matches('/'));
    }
    let pairs: Vec<_> = args.query.iter().map(|(key, value)| format!("{}={}", escape(key), escape(value))).collect();
    if !pairs.is_empty() {
        uri += &format!("{}{}", if uri.contains('?') { '&' } else { '?' }, pairs.join("&"));
    }
    let mut request = Request::builder().method(method).uri(&uri);
    for (name, value) in &args.header {
        let name: HeaderName = name.parse().map_err(|_| usage(format!("--header: {name:?} is not a field name")))?;
        let value: HeaderValue =
            value.parse().map_err(|_| usage(format!("--header {name}: the value holds a control character")))?;
        request = request.header(name, value);
    }
    if !args.header.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        request = request.header(header::CONTENT_TYPE, "text/plain"); // what OpenFaaS's client sends
    }
    request.body(()).map_err(|error| usage(format!("{uri} is not a valid address: {error}")))
}

/// Where the body comes from.
enum Source {
    Nothing,
    Text(Vec<u8>),
    File(File),
    Stdin(io::Stdin),
}

impl Source {
    fn of(args: &InvokeArgs, method: &Method) -> Result<Self, Failure> {
        let bodiless = [Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE].contains(method);
        match args.data.as_deref() {
            None if bodiless || io::stdin().is_terminal() => Ok(Self::Nothing),
            None | Some("-") => Ok(Self::Stdin(io::stdin())),
            Some(data) => match data.strip_prefix('@') {
                None => Ok(Self::Text(data.as_bytes().to_vec())),
                Some(path) => match File::open(path) {
                    Ok(file) => Ok(Self::File(file)),
                    Err(error) => Err(Failure::new(Exit::Usage, format!("-d @{path}: {error}"))),
                },
            },
        }
    }

    /// Texts and files are sent with their length, standard input in chunks.
    fn send(self, client: &Client, head: Request<()>, limit: Option<Duration>) -> Result<Response<Body>, Failure> {
        match self {
            Self::Nothing => client.send(head, limit),
            Self::Text(text) => client.send(head.map(|()| text), limit),
            Self::File(file) => client.send(head.map(|()| file), limit),
            Self::Stdin(stdin) => client.send(head.map(|()| stdin), limit),
        }
    }
}

fn print_head(response: &Response<Body>) {
    eprintln!("{:?} {}", response.version(), response.status());
    for (name, value) in response.headers() {
        eprintln!("{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    eprintln!();
}

/// The body to standard output as it comes; a refusal by the platform is told on standard error instead.
fn deliver(response: Response<Body>) -> Outcome {
    let status = response.status();
    let reason = response
        .headers()
        .get("x-nearpath-reason")
        .map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    if let Some(reason) = reason {
        let exit = if reason == "no_function" { Exit::NotFound } else { Exit::FunctionError };
        return Err(Failure::new(exit, refusal(status.as_u16(), &reason, &error_text(response))));
    }
    copy(response.into_body())?;
    match status.is_client_error() || status.is_server_error() {
        true => Err(Failure::new(Exit::FunctionError, format!("the function answered {status}"))),
        false => Ok(Exit::Ok),
    }
}

/// The platform's texts name their reason; where one was lost on the way, its header tells it.
fn refusal(status: u16, reason: &str, text: &str) -> String {
    match text.contains(reason) {
        true => format!("{status}: {text}"),
        false => format!("{status} ({reason}): {text}"),
    }
}

fn copy(body: Body) -> Result<(), Failure> {
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    let mut out = io::stdout().lock();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::new(Exit::FunctionError, format!("the answer broke off: {error}"))),
        };
        out.write_all(&buffer[..read]).and_then(|()| out.flush()).map_err(|error| output::lost(&error))?;
    }
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn the_reason_is_told_once() {
        assert_eq!(refusal(404, "no_function", "gateway: no_function: none"), "404: gateway: no_function: none");
        assert_eq!(refusal(502, "connect_failed", "bad gateway"), "502 (connect_failed): bad gateway");
    }
}
